"""A trial in which rank 1 sleeps in iteration 2, and all compute in iteration 3, until a file of that iteration tells them to go on."""

import sys
import time
from pathlib import Path

import torch

import hpcsched


def main() -> None:
    trial = hpcsched.trial(learning_rate=0.1)
    go = Path(sys.argv[1])
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    sampler = trial.sampler(120, global_batch_size=12)
    trial.track(model=net, optimizer=sgd, sampler=sampler)
    work = torch.ones(64, 64)
    for iteration in trial:
        for batch in sampler.batches():
            while iteration == 2 and trial.rank == 1 and not (go / "2").exists():
                time.sleep(0.05)
            while iteration == 3 and not (go / "3").exists():
                work @ work
            sgd.zero_grad()
            net(torch.ones(len(batch), 8)).square().mean().backward()
            sgd.step()
        trial.report(accuracy=iteration)


if __name__ == "__main__":
    main()
