#!/usr/bin/env bash
#SBATCH --job-name=hpcsched-imagenet
#SBATCH --nodes=8
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=02:10:00
#SBATCH --no-kill
#SBATCH --signal=B:USR2@120
# The paper's ImageNet search: ResNet-50, two hours, here on 32 GPUs (16 atoms of 2).
#
#   IMAGENET=/data/imagenet sbatch jobs/imagenet_resnet50.sh      # from the project's folder; .venv there needs the extra `examples`
#   sbatch --nodes=16 jobs/imagenet_resnet50.sh
#
# --exclusive, --mem=0: all cores and all memory of the nodes. Who asks for GPUs alone gets one core a node at many sites. Where nodes
# are shared, put --cpus-per-task=N and --mem=N in their place.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
hpcsched=${HPCSCHED:-.venv/bin/hpcsched}
IMAGENET=$(realpath "${IMAGENET:-jobs/imagenet_resnet50/imagenet}") # trials run in another folder
export IMAGENET
# The lists of images take minutes to make: once, here, and not in each of the first trials.
"$(dirname "$hpcsched")/python" jobs/imagenet_resnet50/images.py
exec "$hpcsched" run jobs/imagenet_resnet50/experiment.toml "$@"
