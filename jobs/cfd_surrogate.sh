#!/usr/bin/env bash
#SBATCH --job-name=hpcsched-cfd
#SBATCH --nodes=4
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:30:00
#SBATCH --no-kill
#SBATCH --signal=B:USR2@60
# A surrogate for a 2-D flow, searched by RASDA. The first run makes the data, which every later one finds.
#
#   sbatch jobs/cfd_surrogate.sh       # from the project's folder; needs .venv there
#
# --exclusive, --mem=0: all cores and all memory of the nodes. Who asks for GPUs alone gets one core a node at many sites. Where nodes
# are shared, put --cpus-per-task=N and --mem=N in their place.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
hpcsched=${HPCSCHED:-.venv/bin/hpcsched}
"$(dirname "$hpcsched")/python" jobs/cfd_surrogate/flow.py jobs/cfd_surrogate/flow.h5
exec "$hpcsched" run jobs/cfd_surrogate/experiment.toml "$@"
