"""Where the launcher tests run: on fake Slurm executables, and on a real cluster. The same tests hold for both, so that
the fakes are held to the truth."""

from __future__ import annotations

import contextlib
import json
import os
import sys
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

FAKES = Path(__file__).resolve().parent.parent / "fakes" / "bin"


@dataclass(frozen=True)
class Options:
    """The [launcher] table, as far as the launcher looks."""

    binding: Any = "overlap"
    srun_args: tuple[str, ...] = ()
    max_steps: int | None = 256
    spares_per_node: int = 1


@dataclass
class World:
    """A job with nodes to launch on."""

    env: dict[str, str]
    allocation: Allocation
    nodes: tuple[str, ...]
    gpus: dict[str, int]
    driver: FakeDriver
    launchers: list[SrunLauncher] = field(default_factory=list)
    slurm: FakeSlurm | None = None
    cluster: Cluster | None = None

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


class FakeSlurm:
    """The executables of tests/fakes/bin and what they shall imitate."""

    def __init__(self, home: Path, **behaviour: Any) -> None:
        self.home = home
        home.mkdir()
        nodes = {f"n{number}": {"gpus": 4, "cpus": 16} for number in range(1, 5)}
        self.behaviour: dict[str, Any] = {"nodes": nodes, "job_id": "77"} | behaviour
        self.set()

    def set(self, **changes: Any) -> None:
        """Change what is imitated, while things run. (Refusals that srun has used up are kept so.)"""
        file = self.home / "behaviour.json"
        if file.exists():
            self.behaviour["refuse"] = json.loads(file.read_text()).get("refuse", [])
        self.behaviour |= changes
        part = file.with_suffix(".new")
        part.write_text(json.dumps(self.behaviour))
        part.replace(file)

    def calls(self, tool: str) -> list[dict[str, Any]]:
        lines = (
            (self.home / "calls.jsonl").read_text().splitlines()
            if (self.home / "calls.jsonl").exists()
            else []
        )
        return [call for call in map(json.loads, lines) if call["tool"] == tool]

    def env(self) -> dict[str, str]:
        """What a driver inside the job would have, leaks included."""
        path = f"{FAKES}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return dict(os.environ) | {
            "PATH": path, "FAKE_SLURM": str(self.home), "SLURM_JOB_ID": self.behaviour["job_id"], "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_GPUS_PER_NODE": "4", "SLURM_NNODES": "4", "SLURM_CPU_BIND": "verbose", "SLURM_TRES_PER_TASK": "cpu=4", "PMIX_RANK": "0",
        }  # fmt: skip


@contextlib.contextmanager
def fake_world(root: Path, **behaviour: Any) -> Iterator[World]:
    slurm = FakeSlurm(root.parent / "slurm", **behaviour)
    gpus = {node: facts["gpus"] for node, facts in slurm.behaviour["nodes"].items()}
    version = tuple(map(int, slurm.behaviour.get("version", "22.05.8").split(".")[:2]))
    allocation = Allocation(
        job_id=slurm.behaviour["job_id"], nodes=tuple(gpus), version=(version[0], version[1])
    )
    with driver_in(root) as driver:
        world = World(slurm.env(), allocation, tuple(gpus), gpus, driver, slurm=slurm)
        try:
            yield world
        finally:
            slurm.set(hang=False, unkillable=False, controller_away=False)
            for launcher in world.launchers:
                launcher.close()
            print(driver.logs())


@contextlib.contextmanager
def real_world(cluster: Cluster, root: Path, *options: str) -> Iterator[World]:
    with (
        cluster.allocation(*options) as held,
        driver_in(root, endpoint_host=cluster.driver_address) as driver,
    ):
        allocation = read_allocation(held.env, run_command)
        assert allocation is not None
        gpus = {grant.node: grant.gpus.num for grant in allocation.grants if grant.gpus is not None}
        world = World(held.env, allocation, allocation.nodes, gpus, driver, cluster=cluster)
        try:
            yield world
        finally:
            for launcher in world.launchers:
                launcher.close()
            print(driver.logs())
