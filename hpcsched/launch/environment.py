"""Environments of srun and of ranks: pure functions from dict to dict.

Slurm's client commands read some eighty variables, and the ones that a job's script holds describe the *job's* request:
inherited by a step they change its size, its binding or its memory (srun(1), INPUT ENVIRONMENT VARIABLES). So whatever
begins with one of the prefixes is dropped, and each size is said on the command line. A rank in turn must not see
Slurm's numbers: several frameworks take their rank from SLURM_PROCID, which counts supervisors here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcsched.launchspec import LaunchNode, LaunchSpec
from hpcsched.runfolder import RunFolder

SRUN_DROPPED = (
    "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "PMI", "OMPI_", "PALS_", "TORCHELASTIC_",
)  # fmt: skip
"""Prefixes of what srun, scancel, squeue and scontrol must not inherit ("PMI" covers PMIX)."""
SRUN_KEPT = frozenset(
    {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME", "SLURM_STEPMGR", "SLURM_JWT"}
)  # fmt: skip

RANK_DROPPED = (*SRUN_DROPPED, "HPCSCHED_")
RANK_KEPT = frozenset(
    {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME"}
)
MPI_KEPT = ("SLURM_", "SLURMD_", "PMI", "OMPI_", "PRTE_", "PALS_", "MPI_LOCAL")
"""Prefixes of what an MPI library reads to find its peers: each task's own, kept for the ranks of MPI trials."""
RANK_NAMES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)  # fmt: skip
"""Names of torchrun (torch.distributed.run, Environment Variables): an inherited one would be a lie."""


MEMORY_NODES = "HPCSCHED_MEMORY_NODES"
"""NUMA nodes to which a rank binds its memory before it becomes the command; [trial] env may empty it."""
INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""What [launcher] interface is told to, unless the user or a module has said something else."""


def srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What srun and the other Slurm commands get: everything (modules, proxies, NCCL_*) but the job's own request."""
    return {
        name: value
        for name, value in environ.items()
        if name in SRUN_KEPT or not name.startswith(SRUN_DROPPED)
    }


def mpi_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the rank of an MPI trial gets of its task's environment besides `rank_environment`."""
    return {name: value for name, value in environ.items() if name.startswith(MPI_KEPT)}


def rank_environment(
    spec: LaunchSpec,
    node: LaunchNode,
    local_rank: int,
    *,
    inherited: Mapping[str, str],
    devices: Sequence[str] | None,
    num_cores: int,
    python_dir: str | None = None,
) -> dict[str, str]:
    """The environment of one rank (`contract.md`, "Environment of a rank").

    `devices`: CUDA names of all the trial's GPUs on this node, None where GPUs are invented. `num_cores`: cores of this
    rank. `python_dir`: the virtual environment's folder of executables, put first on PATH unless PATH names it already, so
    that "python" in a command is the one that runs hpcsched.
    """
    env = {
        name: value
        for name, value in inherited.items()
        if name in RANK_KEPT or not (name in RANK_NAMES or name.startswith(RANK_DROPPED))
    }
    if python_dir is not None and python_dir not in env.get("PATH", "").split(os.pathsep):
        env["PATH"] = os.pathsep.join(filter(None, (python_dir, env.get("PATH", ""))))
    env["OMP_NUM_THREADS"] = str(max(1, num_cores))
    env["PYTHONUNBUFFERED"] = "1"
    if spec.interface is not None:
        for name in INTERFACE_NAMES:
            env.setdefault(name, spec.interface)
    if node.memory_nodes:
        env[MEMORY_NODES] = ",".join(map(str, node.memory_nodes))
    env.update(spec.env)
    node_rank = [each.node for each in spec.nodes].index(node.node)
    folder = RunFolder(Path(spec.run_dir))
    env.update(
        RANK=str(node.first_rank + local_rank),
        WORLD_SIZE=str(spec.world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(len(node.gpus)),
        NODE_RANK=str(node_rank),
        GROUP_RANK=str(node_rank),
        MASTER_ADDR=spec.master_addr,
        MASTER_PORT=str(spec.master_port),
        HPCSCHED_RUN_DIR=spec.run_dir,
        HPCSCHED_LAUNCH=str(folder.launch_file(spec.trial_id, spec.incarnation)),
        HPCSCHED_TRIAL_ID=str(spec.trial_id),
        HPCSCHED_INCARNATION=str(spec.incarnation),
        HPCSCHED_NODE=node.node,
    )
    if devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return env
