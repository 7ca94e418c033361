"""From promised GPUs and cores to what the step really shows. Pure.

A placement names GPUs by their index in the list of GPUs that the *job* holds on the node, in PCI order. A step shows them
as `CUDA_VISIBLE_DEVICES`: numbers of the node, numbers relative to what its cgroup lets it open, or UUIDs and MIG ids.
All three list the step's GPUs in the same order, so an index is a *position*; numbers are sorted first, since CUDA
numbers devices in PCI order (CUDA_DEVICE_ORDER=PCI_BUS_ID) whatever order Slurm prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcsched.errors import LaunchError
from hpcsched.launchspec import LaunchNode
from hpcsched.topology.facts import is_mig
from hpcsched.topology.machine import share_evenly

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


class MismatchError(LaunchError):
    """The step does not show what the placement promised. `gpus`: those at fault; empty: all of this node."""

    def __init__(self, what: str, gpus: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.gpus = tuple(gpus)


def visible_devices(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Ids that the step shows, in PCI order as far as they tell it; None when it says nothing about GPUs.

    As CUDA does, the list ends at the first that is no device ("NoDevFiles", "-1"); CUDA C Programming Guide,
    Environment Variables."""
    text = next((environ[name] for name in VISIBLE if name in environ), None)
    if text is None:
        return None
    ids: list[str] = []
    for piece in text.split(","):
        name = piece.strip()
        if not name or name == "NoDevFiles" or name.startswith("-"):
            break
        if name not in ids:
            ids.append(name)
    return tuple(sorted(ids, key=int)) if all(_is_number(name) for name in ids) else tuple(ids)


def map_devices(
    node: LaunchNode, shown: Sequence[str] | None, *, slurm_picks: bool = False
) -> tuple[str, ...]:
    """CUDA names of the promised GPUs, in the order of `node.gpus`.

    `slurm_picks`: Slurm chose the GPUs itself (binding "slurm"); then they are all that the step shows. Raises
    MismatchError."""
    if slurm_picks and shown is not None:
        if len(shown) != len(node.gpus):
            raise MismatchError(
                f"{node.node}: the step was to get {len(node.gpus)} GPUs and shows {len(shown)} ({_list(shown)})"
            )
        return tuple(shown)
    if shown is None and any(map(is_mig, node.uuids)):
        return node.uuids  # CUDA numbers only one of the instances
    if shown is None:
        # Nothing narrows what a process sees: CUDA's own numbers are the positions.
        shown = [str(number) for number in range(len(node.job_gpus))]
    if all(gpu in shown and not _is_number(gpu) for gpu in node.gpus):
        return node.gpus  # UUIDs on both sides
    if len(shown) < len(node.job_gpus):
        raise MismatchError(
            f"{node.node}: the job holds {len(node.job_gpus)} GPUs here ({_list(node.job_gpus)}), "
            f"but the step shows {len(shown)} ({_list(shown)}), so GPU {_list(node.gpus)} cannot be told apart. "
            'Where the site refuses shared steps, set launcher.binding = "slurm"'
        )
    # More than the placement knows of is no mismatch: [atoms] gpus_per_node may leave some unused.
    wrong = [gpu for gpu in node.gpus if not (_is_number(gpu) and int(gpu) < len(shown))]
    if wrong:
        raise MismatchError(
            f"{node.node}: GPU {_list(wrong)} is none of those that the step shows ({_list(shown)})"
        )
    return tuple(shown[int(gpu)] for gpu in node.gpus)


def check_cores(node: LaunchNode, allowed: Sequence[int], *, slurm_picks: bool = False) -> tuple[int, ...]:
    """Cores for the ranks of this node. Raises MismatchError when a promised one may not be used here."""
    if slurm_picks or not node.cores:
        return tuple(sorted(allowed))
    missing = sorted(set(node.cores) - set(allowed))
    if missing:
        raise MismatchError(
            f"{node.node}: promised cores {_list(node.cores)}, but the step may only use {_list(sorted(allowed))}; "
            f"{_list(missing)} cannot be pinned"
        )
    return tuple(sorted(node.cores))


def cores_of_ranks(
    node: LaunchNode,
    cores: Sequence[int],
    *,
    slurm_picks: bool = False,
    core_groups: Sequence[tuple[int, ...]] = (),
) -> list[tuple[int, ...]]:
    """Core set of each rank of this node: its GPU's. Where Slurm picked both, nobody knows which are near: `cores` are shared out
    evenly. `core_groups`: hardware threads of one physical core."""
    if node.cores and node.gpu_cores and not slurm_picks:
        return list(node.gpu_cores)
    return share_evenly(cores, core_groups, len(node.gpus))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _list(items: Sequence[object]) -> str:
    return ",".join(map(str, items)) or "none"
