#!/usr/bin/env bash
#SBATCH --job-name=hpcsched-cifar10
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=01:05:00
#SBATCH --no-kill
#SBATCH --signal=B:USR2@60
# The paper's CIFAR-10 search: ResNet-50, 8 GPUs, one hour (deadline of the experiment file).
#
#   CIFAR10=/data/cifar-10-batches-py sbatch jobs/cifar10.sh      # from the project's folder; needs .venv there
#   sbatch jobs/cifar10.sh --deadline 15m                         # options go to `hpcsched run`
#
# --exclusive, --mem=0: all cores and all memory of the nodes. Who asks for GPUs alone gets one core a node at many sites. Where nodes
# are shared, put --cpus-per-task=N and --mem=N in their place.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
exec "${HPCSCHED:-.venv/bin/hpcsched}" run jobs/cifar10/experiment.toml "$@"
