"""What one node says of itself: the line that the probe prints on each node. Values only.

Ids are strings wherever a device may be named by a UUID or a MIG id; core and NUMA numbers are the kernel's.
"""

from __future__ import annotations

import msgspec


class GpuFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU (or MIG instance) that the job may use on a node."""

    index: str
    """Position in the job's GPUs on this node, in PCI order: the name used in placements and logs."""
    visible: str
    """How the probe step's CUDA_VISIBLE_DEVICES names it; relative to the step where the site confines devices."""
    uuid: str | None = None
    name: str | None = None
    memory_mb: int | None = None
    used_mb: int | None = None
    """Memory that was in use at the time of the probe."""
    pci: str | None = None


class NumaFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    numa: int
    cores: tuple[int, ...]
    memory_mb: int | None = None


class NodeFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node, seen from inside a step of the job."""

    node: str
    gpus: tuple[GpuFact, ...]
    gpu_rule: str
    """Which source gave the GPUs: "CUDA_VISIBLE_DEVICES", "nvidia-smi", ... or "none"."""
    cores: tuple[int, ...]
    """Cores that the step may run on (sched_getaffinity)."""
    num_cores_online: int
    core_groups: tuple[tuple[int, ...], ...] = ()
    """Hardware threads of one physical core, of cores that have several."""
    numa: tuple[NumaFact, ...] = ()
    memory_mb: int | None = None
    """Of the computer, or of the step's memory cgroup where that is less."""
    addresses: dict[str, str] = {}
    """Interface -> IPv4 address, loopback left out."""
    topology_address: str = ""
    """SLURM_TOPOLOGY_ADDR and its pattern."""
    topology_pattern: str = ""
    links_text: str = ""
    """`nvidia-smi topo -m` as printed; empty where there is none."""
    driver_version: str | None = None
    slingshot: bool = False
    """HPE Slingshot gives each step a network of its own (a VNI): ranks of one step can talk to each other, and to nobody else."""
    python: str = ""
    hostname: str = ""
    warnings: tuple[str, ...] = ()


def is_mig(uuid: str | None) -> bool:
    """It is of a MIG instance, not of a whole GPU."""
    return uuid is not None and uuid.startswith("MIG-")
