"""The driver's loop with stand-ins for all that is outside of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from hpcsched import wire
from hpcsched.channel.server import Arrived, Server
from hpcsched.config.load import load_experiment
from hpcsched.config.settings import core_settings
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver import inbox as ib
from hpcsched.driver.clock import Clock
from hpcsched.driver.crew import SILENT_AFTER_S, Crew
from hpcsched.driver.loop import Loop
from hpcsched.driver.painter import Painter
from hpcsched.driver.ports import Ports
from hpcsched.eventlog.journal import JournalWriter
from hpcsched.eventlog.records import Header
from hpcsched.launch.launcher import Launcher
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec
from hpcsched.runfolder import RunFolder
from hpcsched.search.samplers import make_sampler
from hpcsched.sim.machine import simulated_machine
from hpcsched.topology.machine import AtomId
from tests.support.smallest import smallest


class Outside:
    """Launcher, server and onlooker: takes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **_: self.calls.append((name, args))


class Watched(ib.Inbox):
    num_waits = 0

    def take(self, wait_s: float, most: int = 2000) -> list[Any]:
        self.num_waits += wait_s > 0
        return super().take(wait_s, most)


class Case:
    def __init__(self, root: Path) -> None:
        self.outside = Outside()
        self.inbox = Watched()
        folder = RunFolder(root / "run")
        folder.journal.mkdir(parents=True)
        file = root / "experiment.toml"
        file.write_text(smallest(num_trials=2))
        spec = load_experiment(file, simulate=False)
        settings = core_settings(spec)
        header = Header(1, spec.text, "one", "accuracy", settings, 0.0)
        self.writer = JournalWriter(folder, header, durable=lambda _: None)
        scheduler = Scheduler(settings)
        self.channel = Channel(("tcp://127.0.0.1:1",), "", "")
        self.loop = Loop(
            spec=spec, folder=folder, scheduler=scheduler, sampler=make_sampler(spec, seed=1), machine=simulated_machine(4, 2),
            launcher=cast(Launcher, self.outside), server=cast(Server, self.outside), channel=self.channel, writer=self.writer,
            inbox=self.inbox, clock=Clock(0.0), ports=Ports(salt=""), onlooker=self.outside,
            painter=Painter(folder, header, scheduler), local=False, invented_gpus=True, began_at_unix_s=0.0,
            file_deadline_s=None, allocation_ends_s=None, warm=False, one_node_spares=False, first_n=0, told={}, order_ids=(),
        )  # fmt: skip

    def crew(self, *nodes: str) -> Crew:
        """Trial 0 on these, its supervisors have said hello at 0 s."""
        spec = LaunchSpec(
            0, 1, {}, ("true",), "/", {},
            tuple(LaunchNode(node, ("0",), (), None, rank, ("0",)) for rank, node in enumerate(nodes)),
            nodes[0], 20000, self.channel, "/run", "accuracy", "max", 9, 0, None, 0,
        )  # fmt: skip
        crew = Crew(spec, lambda node: (AtomId(nodes.index(node)),), started_at=0.0)
        for node in nodes:
            crew.heard(wire.SupervisorHello(0, 1, node=node, pid=1, step_id="1.0", devices=(), cores=()), 0.0)
        self.loop._crews[0, 1] = crew
        return crew


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.writer.close(20.0)


def test_the_end_does_not_wait_for_nodes_that_are_lost(case: Case) -> None:
    """A run that had once lost a node took 20 s more for each of its ends: longer than half of Slurm's KillWait."""
    crew = case.crew("n1", "n2")
    crew.heard(wire.Heartbeat(0, 1, node="n2"), SILENT_AFTER_S)
    crew.tick(SILENT_AFTER_S + 1.0)
    crew.heard(wire.SupervisorGoodbye(0, 1, node="n2", exits={}), SILENT_AFTER_S + 1.0)
    assert crew.closed
    assert not crew.settled, "n1 may come back"
    case.loop.wind_up()
    assert case.inbox.num_waits == 0


def test_the_end_waits_for_those_who_can_still_say_goodbye(case: Case) -> None:
    crew = case.crew("n1")
    goodbye = wire.SupervisorGoodbye(0, 1, node="n1", exits={})
    case.inbox.put(Arrived("0.1.sup.n1", goodbye, time.monotonic()))
    case.loop.wind_up()
    assert crew.settled
    assert "kill" not in [name for name, _ in case.outside.calls], "it has been told by the channel"


def test_who_cannot_come_back_is_forgotten_by_the_launcher_and_the_channel_too(case: Case) -> None:
    crew = case.crew("n1")
    case.loop._forget(crew)
    assert [args for name, args in case.outside.calls if name == "forget"] == [
        (0, 1),
        ("0.1.rank0",),
        ("0.1.sup.n1",),
    ]
    case.loop.wind_up()
