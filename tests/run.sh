#!/usr/bin/env bash
# The tests: makes an environment (.venv), installs exact versions, and runs them all.
#
#   bash tests/run.sh                  # some minutes; tests that need Slurm or a GPU skip aloud where there is none
#   bash tests/run.sh --long           # the full counts
#   bash tests/run.sh tests/core -k rung   # other arguments go to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source jobs/environment.sh
make_environment .venv "all,dev"
options=(-n 2 --dist loadgroup) # two at a time: much of it waits
if [ "${1:-}" = --long ]; then
  shift
  options=(--long)
fi
export OMP_NUM_THREADS=1
exec .venv/bin/python -m pytest "${options[@]}" "$@"
