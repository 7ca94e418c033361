#!/usr/bin/env bash
#SBATCH --job-name=hpcsched-mpi
#SBATCH --nodes=2
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:05:00
#SBATCH --no-kill
#SBATCH --signal=B:USR2@30
# Trials that are MPI programs, inside a Slurm allocation. mpi4py must use the MPI library that Slurm's PMIx plugin is for
# (`srun --mpi=list` shows the plugins).
#
#   sbatch jobs/mpi_trial.sh           # from the project's folder; .venv there needs the extra `mpi`
#
# --exclusive, --mem=0: all cores and all memory of the nodes. Who asks for GPUs alone gets one core a node at many sites. Where nodes
# are shared, put --cpus-per-task=N and --mem=N in their place.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
exec "${HPCSCHED:-.venv/bin/hpcsched}" run jobs/mpi_trial/experiment.toml "$@"
