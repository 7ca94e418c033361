"""What a rank trains on: the GPU that it was given, or the CPU where CPU cores play GPUs.

A rank that has a GPU and cannot use it must not train on the CPU without a word: it would take its GPU's time for a model that
gets nowhere, and with NCCL on one side and Gloo on the other a group would not even form.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch

from hpcsched.errors import TrialError
from hpcsched.launchspec import LaunchNode, LaunchSpec
from hpcsched.runtime.place import Place

log = logging.getLogger(__name__)

DEVICE_VARIABLE = "HPCSCHED_DEVICE"
""""cpu": train on the CPU although there is a GPU. In a trial it comes from [trial.env] alone."""
DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/kfd")
"""Where one of them is, a driver for GPUs is loaded."""


def find_device(place: Place, environ: Mapping[str, str], *, root: Path = Path("/")) -> torch.device:
    """The rank's own. Raises TrialError for a rank of a trial that was given a real GPU and cannot use it."""
    launch = place.launch
    wanted = environ.get(DEVICE_VARIABLE, "")
    if wanted not in ("", "cpu"):
        raise TrialError(
            f'{DEVICE_VARIABLE}={wanted}: allowed is "cpu"; without it a rank takes the GPU it was given'
        )
    if wanted == "cpu" or (launch is not None and launch.invented_gpus):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if launch is None:
            return torch.device("cpu")
        why = why_no_gpu()
        if why is not None:
            node, given = _given(launch, place.rank)
            if not _is_real(node, root):
                # Slurm counts something as GPUs that nobody has seen: no nvidia-smi on the node, no driver.
                log.warning(
                    "hpcsched: rank %d trains on the CPU: it was given %s, but %s shows no driver of any GPU",
                    place.rank,
                    given,
                    node.node,
                )
                return torch.device("cpu")
            raise TrialError(_told(place.rank, node.node, given, why, environ))
    num_gpus = torch.cuda.device_count()
    if place.local_rank >= num_gpus:
        raise TrialError(f"local rank {place.local_rank} has no GPU of its own: this process sees {num_gpus}")
    return torch.device("cuda", place.local_rank)


def why_no_gpu() -> str | None:
    """Torch's own words; None: it can use one after all."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built for CPUs alone"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        return " ".join(str(error).split())
    return None


def _given(launch: LaunchSpec, rank: int) -> tuple[LaunchNode, str]:
    """(node, GPU in words) of a rank."""
    node = next(each for each in launch.nodes if 0 <= rank - each.first_rank < len(each.gpus))
    position = rank - node.first_rank
    uuid = f" ({node.uuids[position]})" if position < len(node.uuids) else ""
    return node, f"GPU {node.gpus[position]}{uuid}"


def _is_real(node: LaunchNode, root: Path) -> bool:
    return bool(node.uuids) or any((root / file).exists() for file in DRIVER_FILES)


def _told(rank: int, node: str, given: str, why: str, environ: Mapping[str, str]) -> str:
    """Lines short enough for the end of a log as the driver shows it."""
    words = why.lower()
    if "built for cpus" in words:
        cure = (
            "install a build for GPUs into the environment of the trials; https://pytorch.org/get-started/locally "
            "names the command"
        )
    elif "fork" in words or "initialization error" in words:
        cure = (
            "CUDA was used in the process that ranks are forked from: take the module that does it out of [trial] preload, "
            "or set [launcher] warm = false"
        )
    elif "too old" in words or "insufficient" in words:
        cure = "install a torch that is built for the CUDA version of this driver (`nvidia-smi` shows it), or ask for a newer driver"
    elif "no nvidia driver" in words:
        cure = (
            "in a container, hand the GPUs in (apptainer exec --nv); outside of one the node's driver is not loaded: "
            f"leave the node out (--exclude={node})"
        )
    else:
        cure = f"`nvidia-smi` in a step on {node} says more; a GPU that is lost or ill: leave the node out (--exclude={node})"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return (
        f"rank {rank} was given {given} of {node} and cannot use it: {why[:300]}\n"
        f"  (CUDA_VISIBLE_DEVICES is {'not set' if visible is None else repr(visible)})\n"
        f"  What to do: {cure}.\n"
        f'  To train on the CPU all the same: [trial.env] {DEVICE_VARIABLE} = "cpu"'
    )
