"""A training script for tests: a linear model, and misbehaviour on request (`do`)."""

import os
import signal
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcsched


def main() -> None:
    trial = hpcsched.trial(learning_rate=0.1, do="", max_iterations=3)
    do = trial.config["do"]
    torch.manual_seed(trial.seed)
    data = torch.randn(100, 8, generator=torch.Generator().manual_seed(1)).to(trial.device)
    net = DistributedDataParallel(nn.Linear(8, 4).to(trial.device))
    sgd = torch.optim.SGD(net.parameters(), lr=trial.config["learning_rate"], momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(sgd, step_size=2, gamma=0.5)
    sampler = trial.sampler(len(data), global_batch_size=12)
    trial.track(model=net, optimizer=sgd, schedule=schedule, sampler=sampler)

    def fingerprint() -> str:
        momentum = [state["momentum_buffer"].sum().item() for state in sgd.state.values()]
        weights = [parameter.sum().item() for parameter in net.parameters()]
        return " ".join(f"{number:.5f}" for number in weights + momentum)

    print(
        f"restored {trial.iteration}: {fingerprint()} lr {sgd.param_groups[0]['lr']:g} consumed {sampler.num_consumed}"
    )
    for iteration in trial:
        for batch in sampler.batches():
            sgd.zero_grad()
            net(data[batch]).square().mean().backward()
            sgd.step()
            if do == "boundary":
                trial.boundary()
        schedule.step()
        if do == f"raise on {trial.rank}" and iteration == 2:
            raise RuntimeError("the loss is on fire")
        if do == f"exit on {trial.rank}" and iteration == 2:
            sys.exit(3)
        if do == f"die on {trial.rank}" and iteration == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "break" and iteration == 2:
            trial.report(accuracy=iteration)
            break
        print(
            f"trained {iteration}: {fingerprint()} lr {sgd.param_groups[0]['lr']:g} consumed {sampler.num_consumed}"
        )
        trial.report(accuracy=iteration)
    if do == "end at once":
        os._exit(0)
    print("left early" if trial.left_early else "to the end")


if __name__ == "__main__":
    main()
