"""A trial whose rank 0 ends while a thread of its group still holds a tensor, and the interpreter's lock is held until it ends: the
instant in which torch aborts a process (see `hpcsched.runtime.groups.leave_groups`), made certain."""

import atexit
import ctypes
import os

if os.environ["RANK"] == "0":
    # The first that is registered is the last that is called. In C, with the lock held, and no bytecode after it.
    atexit.register(ctypes.PyDLL(None).usleep, 1_500_000)

import time

import torch
import torch.distributed as dist

import hpcsched


def main() -> None:
    trial = hpcsched.trial(learning_rate=0.1)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    trial.track(model=net)
    for _ in trial:
        trial.report(accuracy=0.5)
    group = trial._groups.verdicts
    if trial.rank == 0:
        dist.all_reduce(torch.ones(3), async_op=True, group=group)
    else:
        time.sleep(0.7)
        dist.all_reduce(torch.ones(3), group=group)


if __name__ == "__main__":
    main()
