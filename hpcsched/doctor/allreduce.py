"""One rank of small all-reduces; rank 0 prints backends, time to form, and bandwidth.

Started by `hpcsched doctor`, two to a host or one a node. All ranks form a gloo group, which a trial needs for its verdicts and saves;
then those that have a GPU of their own form one by NCCL, be it one rank on a host of one GPU. A rank cannot know that of the others
beforehand, and ranks that come with different backends wait for each other for ever. Bus bandwidth is 2 (n - 1) / n times bytes over
time (nccl-tests, doc/PERFORMANCE.md), so that it can be compared with what the links promise.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

NUM_BYTES = 16 << 20
ROUNDS = 5
FORM_S = 120.0
GPU_BACKEND = "nccl"


def gpu_of(local_rank: int) -> torch.device | None:
    """The GPU that this rank has for itself."""
    import torch

    if not torch.cuda.is_available() or torch.cuda.device_count() <= local_rank:
        return None
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def measure(device: torch.device, group: dist.ProcessGroup | None, num: int) -> tuple[float, float]:
    """Seconds of the first all-reduce over `num` ranks, which connects them, and of one more. Raises SystemExit when the sum is wrong."""
    import torch
    import torch.distributed as dist

    began = time.monotonic()
    data = torch.ones(NUM_BYTES // 4, device=device)
    dist.all_reduce(data, group=group)
    if float(data[0]) != num:
        raise SystemExit(f"the sum is {float(data[0])}, not {num}")
    first_s = time.monotonic() - began
    began = time.monotonic()
    for _ in range(ROUNDS):
        dist.all_reduce(data, group=group)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return first_s, (time.monotonic() - began) / ROUNDS


def in_words(backend: str, num: int, formed_s: float, took_s: float) -> str:
    """Such as "2 ranks by gloo formed in 0.3 s, all-reduce 1.20 GB/s"."""
    text = f"{num} rank{'s' * (num > 1)} by {backend} formed in {formed_s:.1f} s"
    if num == 1:
        return text
    return f"{text}, all-reduce {2 * (num - 1) / num * NUM_BYTES / took_s / 1e9:.2f} GB/s"


def main() -> None:
    for ours, slurms in (
        ("RANK", "SLURM_PROCID"),
        ("WORLD_SIZE", "SLURM_NTASKS"),
        ("LOCAL_RANK", "SLURM_LOCALID"),
    ):
        os.environ.setdefault(ours, os.environ.get(slurms, ""))
    import torch
    import torch.distributed as dist

    gpu = gpu_of(int(os.environ["LOCAL_RANK"]))
    limit = timedelta(seconds=FORM_S)
    began = time.monotonic()
    dist.init_process_group("gloo", timeout=limit)
    rank, num = dist.get_rank(), dist.get_world_size()
    init_s = time.monotonic() - began
    first_s, took_s = measure(torch.device("cpu"), None, num)
    said = [in_words("gloo", num, init_s + first_s, took_s)]
    have_gpu = torch.zeros(num)
    have_gpu[rank] = gpu is not None
    dist.all_reduce(have_gpu)
    ranks = [each for each in range(num) if have_gpu[each]]
    if ranks:
        group = dist.new_group(ranks, timeout=limit, backend=GPU_BACKEND)
        # Those without a GPU hear of it from the others, of whom rank 0 need not be one.
        took = torch.zeros(2) if gpu is None else torch.tensor(measure(gpu, group, len(ranks)))
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        said.append(in_words(GPU_BACKEND, len(ranks), float(took[0]), float(took[1])))
    if rank == 0:
        sys.stdout.write("; ".join(said) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
