"""Is a node what the placement promised? What a supervisor asks before its ranks start, and what is asked again of GPUs set aside.

`python -m hpcsched.launch.checks NODE_JSON [--invented]`, run as a step that is shown what a trial's step is: prints FINE, or STILL and why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping

import msgspec

from hpcsched.errors import LaunchError
from hpcsched.launch.devices import MismatchError, check_cores, map_devices, visible_devices
from hpcsched.launch.gpus import check_gpus
from hpcsched.launchspec import LaunchNode

FINE = "hpcsched-checks fine"
STILL = "hpcsched-checks still:"


class Found(msgspec.Struct, frozen=True):
    """A node that is as promised."""

    devices: tuple[str, ...] | None
    """CUDA names of the GPUs, in the order of `LaunchNode.gpus`; None where GPUs are invented."""
    cores: tuple[int, ...]
    uuids: tuple[str, ...] = ()
    """() where NVML does not tell them."""


def check_node(
    node: LaunchNode,
    environ: Mapping[str, str],
    *,
    invented: bool,
    slurm_picks: bool = False,
    ours: Collection[int] = (),
) -> Found:
    """Whether GPUs and cores are there and nobody else is on them. `ours`: processes that do not count. Raises MismatchError."""
    cores = check_cores(node, sorted(os.sched_getaffinity(0)), slurm_picks=slurm_picks)
    if invented:
        return Found(None, cores)
    devices = map_devices(node, visible_devices(environ), slurm_picks=slurm_picks)
    uuids = check_gpus(node.node, node.gpus, devices, promised=() if slurm_picks else node.uuids, ours=ours)
    return Found(devices, cores, uuids)


def answer_in(text: str) -> str | None:
    """What the check printed: None when the node is fine, else why it is not. Raises LaunchError when it printed no answer."""
    for line in text.splitlines():
        if line.startswith(FINE):
            return None
        if line.startswith(STILL):
            return line.removeprefix(STILL).strip()
    raise LaunchError(f"the check gave no answer: {text.strip()[-300:] or 'it printed nothing'}")


def main() -> int:
    node = msgspec.json.decode(sys.argv[1], type=LaunchNode)
    try:
        check_node(node, os.environ, invented="--invented" in sys.argv[2:])
    except MismatchError as error:
        print(STILL, " ".join(str(error).split()), flush=True)
        return 1
    print(FINE, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
