#!/usr/bin/env bash
# The tests: makes an environment (.venv), installs exact versions, and runs them all.
#
#   bash tests/run.sh                  # some minutes; tests that need Slurm or a GPU skip aloud where there is none
#   bash tests/run.sh --long           # the full counts: two hours, on a machine that does nothing else
#   bash tests/run.sh tests/core -k rung   # other arguments go to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source jobs/environment.sh
make_environment .venv "all,dev"
export OMP_NUM_THREADS=1
is_long=
arguments=()
for argument in "$@"; do
  if [ "$argument" = --long ]; then is_long=1; else arguments+=("$argument"); fi
done
tests() { .venv/bin/python -m pytest "$@" ${arguments[@]+"${arguments[@]}"}; }
two=(-n 2 --dist loadgroup) # two at a time: much of it waits
if [ -z "$is_long" ]; then
  tests "${two[@]}"
  exit
fi
if [[ " $* " = *" --alone "* ]]; then
  tests --long -s
  exit
fi
# First those whose figures others would spoil, and show them; then the rest.
first=0 rest=0
tests --long --alone only -s || first=$?
tests --long --alone none "${two[@]}" || rest=$?
[ "$first" != 5 ] || first=$rest # 5: none was chosen
[ "$rest" != 5 ] || rest=$first
exit $((first ? first : rest))
