#!/usr/bin/env bash
#SBATCH --job-name=hpcsched-digits
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:10:00
#SBATCH --no-kill
#SBATCH --signal=B:USR2@30
# The digits job inside a Slurm allocation: the same experiment file as on a laptop.
#
#   sbatch jobs/digits.sh              # from the project's folder, after `bash jobs/quickstart.sh` made .venv there
#
# --no-kill: a dead node ends its trials, not the job. --signal: a warning before the end; exec lets it reach the driver.
# --exclusive, --mem=0: all cores and all memory of the nodes. Who asks for GPUs alone gets one core a node at many sites. Where nodes
# are shared, put --cpus-per-task=N and --mem=N in their place.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
exec "${HPCSCHED:-.venv/bin/hpcsched}" run jobs/digits/experiment.toml "$@"
