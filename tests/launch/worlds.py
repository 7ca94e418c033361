"""Where the launcher tests run: on fake Slurm executables, and on a real cluster. The same tests hold for both, so that
the fakes are held to the truth."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcsched.launch.allocation import Allocation, read_allocation
from hpcsched.launch.command import run_command
from hpcsched.launch.srun import KillLimits, SrunLauncher
from hpcsched.launchspec import LaunchNode, LaunchSpec
from hpcsched.topology.machine import Machine, Node
from tests.support.cluster import Cluster
from tests.support.dialogue import FakeDriver, driver_in


@dataclass(frozen=True)
class Options:
    """The [launcher] table, as far as the launcher looks."""

    binding: Any = "overlap"
    srun_args: tuple[str, ...] = ()
    max_steps: int = 256


@dataclass
class World:
    """A job with nodes to launch on."""

    env: dict[str, str]
    allocation: Allocation
    nodes: tuple[str, ...]
    gpus: dict[str, int]
    driver: FakeDriver
    addresses: dict[str, str] = field(default_factory=dict)
    launchers: list[SrunLauncher] = field(default_factory=list)

    def launcher(self, options: Options = Options(), **changes: Any) -> SrunLauncher:
        machine = Machine(
            nodes=tuple(Node(node, tuple(map(str, range(num))), ()) for node, num in self.gpus.items()),
            atoms=(),
        )
        made = SrunLauncher(
            self.driver.folder,
            allocation=self.allocation,
            machine=machine,
            table=options,
            notify=self.driver.notify,
            environ=self.env,
            **({"limits": KillLimits(grace_s=1.0)} | changes),
        )
        self.launchers.append(made)
        self.driver.on_hello = lambda hello: made.note_step(hello.trial_id, hello.incarnation, hello.step_id)
        return made

    def spec(
        self, script: str | Sequence[str], layout: dict[str, Sequence[int]], **changes: Any
    ) -> LaunchSpec:
        """`layout`: node -> indices of its GPUs that the trial gets."""
        nodes, rank = [], 0
        for node, gpus in layout.items():
            job_gpus = tuple(map(str, range(self.gpus[node])))
            nodes.append(LaunchNode(node, tuple(map(str, gpus)), (), None, rank, job_gpus))
            rank += len(gpus)
        return self.driver.spec(script, nodes=nodes, **({"invented_gpus": False} | changes))

    def command(self, *argv: str) -> str:
        return run_command(argv, timeout_s=30, env=self.env)

    def live_steps(self) -> list[str]:
        told = self.command("squeue", "-h", "-s", "-j", self.allocation.job_id, "-o", "%i").split()
        return [step for step in told if step.partition(".")[2].isdigit()]


@contextlib.contextmanager
def real_world(cluster: Cluster, root: Path, *options: str) -> Iterator[World]:
    with (
        cluster.allocation(*options) as held,
        driver_in(root, endpoint_host=cluster.driver_address) as driver,
    ):
        allocation = read_allocation(held.env, run_command)
        assert allocation is not None
        gpus = {grant.node: grant.gpus.num for grant in allocation.grants if grant.gpus is not None}
        world = World(held.env, allocation, allocation.nodes, gpus, driver)
        try:
            yield world
        finally:
            for launcher in world.launchers:
                launcher.close()
            print(driver.logs())
