"""One rank of a small all-reduce; rank 0 prints backend, time to form, and bandwidth.

Started by `hpcsched doctor`, two to a host or one a node. Bus bandwidth is 2 (n - 1) / n times bytes over time (nccl-tests,
doc/PERFORMANCE.md), so that it can be compared with what the links promise.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

NUM_BYTES = 16 << 20
ROUNDS = 5
FORM_S = 120.0


def main() -> None:
    for ours, slurms in (
        ("RANK", "SLURM_PROCID"),
        ("WORLD_SIZE", "SLURM_NTASKS"),
        ("LOCAL_RANK", "SLURM_LOCALID"),
    ):
        os.environ.setdefault(ours, os.environ.get(slurms, ""))
    import torch
    import torch.distributed as dist

    began = time.monotonic()
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() > local_rank
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=FORM_S))
    data = torch.ones(NUM_BYTES // 4, device=device)
    dist.all_reduce(data)
    if float(data[0]) != dist.get_world_size():
        raise SystemExit(f"the sum is {float(data[0])}, not {dist.get_world_size()}")
    formed_s = time.monotonic() - began
    began = time.monotonic()
    for _ in range(ROUNDS):
        dist.all_reduce(data)
    if on_gpu:
        torch.cuda.synchronize()
    took = (time.monotonic() - began) / ROUNDS
    num = dist.get_world_size()
    if dist.get_rank() == 0:
        rate = 2 * (num - 1) / num * NUM_BYTES / took / 1e9
        sys.stdout.write(f"{num} ranks by {backend} formed in {formed_s:.1f} s, all-reduce {rate:.2f} GB/s\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
