"""One process group of one rank for all in-process tests of the runtime (torch allows one a process)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec
from hpcsched.runtime.groups import Groups
from hpcsched.runtime.place import Place
from hpcsched.runtime.tracked import Tracked
from hpcsched.runtime.trial import Trial
from hpcsched.wire import Leaving, Report, ToDriver


@cache
def groups_of_one() -> Groups:
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return Groups(
        device=torch.device("cpu"),
        verdicts=dist.new_group(backend="gloo"),
        saves=dist.new_group(backend="gloo"),
    )


class Objects:
    """A model, its optimizer and a scheduler, trained a little so that all of them have state."""

    def __init__(self, *, seed: int = 0, features: int = 6, steps: int = 2) -> None:
        torch.manual_seed(seed)
        self.net = nn.Linear(features, 3)
        self.adam = torch.optim.AdamW(self.net.parameters(), lr=0.1, betas=(0.8, 0.99))
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.adam, milestones=[1, 3], gamma=0.1)
        for _ in range(steps):
            self.train()

    def train(self) -> None:
        self.adam.zero_grad()
        self.net(torch.randn(4, self.net.in_features)).square().sum().backward()
        self.adam.step()
        self.schedule.step()

    @property
    def named(self) -> dict[str, Any]:
        return {"model": self.net, "optimizer": self.adam, "schedule": self.schedule}

    @property
    def tracked(self) -> Tracked:
        made = Tracked()
        made.add(self.named)
        return made

    def numbers(self) -> list[Any]:
        """Everything that training depends on, for comparison."""
        flat: list[Any] = [parameter.tolist() for parameter in self.net.parameters()]
        for state in self.adam.state.values():
            flat += [state[key].tolist() for key in sorted(state)]
        group = self.adam.param_groups[0]
        return [*flat, group["lr"], group["betas"], self.schedule.last_epoch, dict(self.schedule.milestones)]


class HeardLine:
    """Records what the trial says; asks it to leave once `leave_after` reports were made."""

    def __init__(self, *, leave_after: int | None = None) -> None:
        self.said: list[ToDriver] = []
        self.leave_after = leave_after
        self.waits: list[float] = []
        self.num_flushed = 0
        """So many of `said` had been waited for."""

    def say(self, message: ToDriver) -> None:
        self.said.append(message)

    def ask(self, report: Report, wait_s: float) -> None:
        self.said.append(report)
        self.waits.append(wait_s)

    def must_leave(self) -> str | None:
        if self.leave_after is not None and len(self.of(Report)) >= self.leave_after:
            return "pause"
        return None

    def flush(self) -> None:
        self.num_flushed = len(self.said)

    def close(self) -> None:
        pass

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]

    @property
    def goodbye(self) -> Leaving:
        (message,) = self.of(Leaving)
        assert isinstance(message, Leaving)
        return message


def launch(run_dir: Path, **changes: Any) -> LaunchSpec:
    fields: dict[str, Any] = {
        "trial_id": 3,
        "incarnation": 1,
        "config": {"learning_rate": 0.1},
        "command": ("python", "train.py"),
        "cwd": "",
        "env": {},
        "nodes": (LaunchNode("here", ("0",), (0,), None, 0, ()),),
        "master_addr": "127.0.0.1",
        "master_port": 1,
        "channel": Channel((), "", ""),
        "run_dir": str(run_dir),
        "metric": "accuracy",
        "mode": "max",
        "max_iterations": 4,
        "seed": 7,
        "restore": None,
        "restore_iteration": 0,
    }
    return LaunchSpec(**(fields | changes))


def place_of(spec: LaunchSpec | None) -> Place:
    return Place(rank=0, world_size=1, local_rank=0, launch=spec, rendezvous=spec is not None)


def make_trial(spec: LaunchSpec | None, line: HeardLine, **defaults: Any) -> Trial:
    return Trial(
        place_of(spec), groups_of_one(), line, defaults=defaults, max_iterations=None, seed=None, setup_s={}
    )


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Writes beyond that many bytes of a file fail, as on a disk that is full (setrlimit(2), RLIMIT_FSIZE)."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
