"""Which GPUs that this process is shown reach each other's memory directly (P2P), and how fast: one JSON line.

`hpcsched doctor` runs it where there are two GPUs or more. A pair without P2P still works, through the host's memory, at a
fraction of the speed: so it is a warning and no failure.
"""

from __future__ import annotations

import sys
import time

import msgspec

from hpcsched.doctor.finding import Finding, ok, skip, warn

NUM_BYTES = 64 << 20
ROUNDS = 5
WHAT = "P2P between GPUs"


class Peers(msgspec.Struct, frozen=True):
    """What was found. Pairs are ordered: (from, to)."""

    num_gpus: int
    without: tuple[tuple[int, int], ...] = ()
    """Pairs that do not reach each other directly."""
    rates: dict[str, float] = {}
    """"0-1" -> GB/s of a copy."""


def finding_of(peers: Peers) -> Finding:
    num = peers.num_gpus
    if num < 2:
        return skip(
            WHAT, f"a process is shown {num} GPU{'s' * (num != 1)}", "look where there are two or more"
        )
    pairs = num * (num - 1)
    speed = ""
    if peers.rates:
        slow, fast = (pick(peers.rates, key=lambda pair: peers.rates[pair]) for pick in (min, max))
        speed = f"; copies of 64 MiB at {peers.rates[slow]:.1f} GB/s ({slow}) to {peers.rates[fast]:.1f} GB/s ({fast})"
    if not peers.without:
        return ok(WHAT, f"all {pairs} pairs of {num} GPUs{speed}")
    some = ", ".join(f"{one}-{two}" for one, two in peers.without[:6])
    return warn(
        WHAT,
        f"{len(peers.without)} of {pairs} pairs of {num} GPUs go through the host ({some}){speed}",
        "nvidia-smi topo -p2p r says why; within a trial NCCL falls back to shared memory: slower, nothing breaks",
    )


def look() -> Peers:
    """Copies between all pairs of up to 8 GPUs."""
    import torch

    num = torch.cuda.device_count()
    without: list[tuple[int, int]] = []
    rates: dict[str, float] = {}
    for one in range(num):
        for two in range(num):
            if one == two:
                continue
            if not torch.cuda.can_device_access_peer(one, two):
                without.append((one, two))
            if max(one, two) < 8:
                rates[f"{one}-{two}"] = _rate(one, two)
    return Peers(num, tuple(without), rates)


def _rate(one: int, two: int) -> float:
    import torch

    source = torch.empty(NUM_BYTES, dtype=torch.uint8, device=f"cuda:{one}")
    target = torch.empty(NUM_BYTES, dtype=torch.uint8, device=f"cuda:{two}")
    target.copy_(source)  # sets up the way
    for device in (one, two):
        torch.cuda.synchronize(device)
    began = time.monotonic()
    for _ in range(ROUNDS):
        target.copy_(source)
    for device in (one, two):
        torch.cuda.synchronize(device)
    return ROUNDS * NUM_BYTES / (time.monotonic() - began) / 1e9


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(look()).decode() + "\n")
