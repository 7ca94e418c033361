#!/usr/bin/env bash
# The first run: makes an environment beside the project (.venv), installs exact versions, and searches for the best
# digit classifier for two minutes on this machine. Needs Python 3.11 or newer and nothing else.
#
#   bash jobs/quickstart.sh            # arguments go to `hpcsched run`, such as --deadline 60s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source jobs/environment.sh
make_environment .venv "train,examples,analysis"
exec .venv/bin/hpcsched run jobs/digits/experiment.toml "$@"
