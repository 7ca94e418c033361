"""The trial of `tests.benchmarks.restart`: a small model, and after its last iteration the limit of a restart.

The limit is what no restart can beat: the same ranks, alive, leave their groups and form them again.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcsched

ITERATION_S = 0.02


def form_again(rank: int, world_size: int) -> float:
    """Seconds to leave all groups and form as many as a trial has."""
    port = torch.zeros(1, dtype=torch.int64)
    store = None
    address = os.environ["MASTER_ADDR"]
    wait = timedelta(seconds=60)
    if rank == 0:
        store = dist.TCPStore(address, 0, world_size, is_master=True, timeout=wait, wait_for_workers=False)
        port[0] = store.port
    dist.broadcast(port, src=0)
    if store is None:
        store = dist.TCPStore(address, int(port), world_size, is_master=False, timeout=wait)
    dist.barrier()
    began = time.monotonic()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    for _ in range(2):
        dist.new_group(backend="gloo")
    took_s = time.monotonic() - began
    dist.barrier()
    return took_s


def main() -> None:
    trial = hpcsched.trial(measure_limit=True)
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(64, 64))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    trial.track(model=net, optimizer=sgd)
    for _ in trial:
        sgd.zero_grad()
        net(torch.ones(8, 64)).square().mean().backward()
        sgd.step()
        time.sleep(ITERATION_S)
        trial.report(score=0.0)
    took_s = form_again(trial.rank, trial.world_size)
    if trial.rank == 0:
        print(f"limit_s {took_s:.6f}")


if __name__ == "__main__":
    main()
