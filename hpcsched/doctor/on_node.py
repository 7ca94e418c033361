"""What a compute node says of itself to `hpcsched doctor`: one JSON line. Run as one task a node by srun."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from pathlib import Path

import msgspec

from hpcsched.launch.connect_back import try_addresses


class NodeSays(msgspec.Struct, frozen=True):
    node: str
    unix_s: float
    python: str
    import_s: float
    """From the start of the interpreter to here."""
    sees_folder: bool
    gpus: str
    """What the step shows: CUDA_VISIBLE_DEVICES or its like; "" for nothing."""
    num_cores: int
    """That the step may use."""
    open_files: int
    reached: str | None
    """Address of the driver's host that answered."""
    why_not: str


def main() -> None:
    marker, port, *addresses = sys.argv[1:]
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    unix_s = time.time()
    ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    reached = try_addresses(node, int(port), addresses)
    gpus = next(
        (
            os.environ[name]
            for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
            if os.environ.get(name)
        ),
        "",
    )
    says = NodeSays(
        node=node,
        unix_s=unix_s,
        python=".".join(map(str, sys.version_info[:3])),
        import_s=uptime - ticks / os.sysconf("SC_CLK_TCK"),
        sees_folder=Path(marker).is_file(),
        gpus=gpus,
        num_cores=len(os.sched_getaffinity(0)),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        reached=reached.address,
        why_not=reached.why,
    )
    sys.stdout.write(msgspec.json.encode(says).decode() + "\n")


if __name__ == "__main__":
    main()
