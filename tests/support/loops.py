"""The driver's loop by hand: no threads, no sockets, no processes; a test sends what would arrive and moves the clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from hpcsched import wire
from hpcsched.channel.server import Arrived
from hpcsched.config.load import load_experiment
from hpcsched.config.settings import core_settings
from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver import inbox as ib
from hpcsched.driver.clock import Clock
from hpcsched.driver.crew import supervisor_peer
from hpcsched.driver.loop import Loop
from hpcsched.driver.painter import Painter
from hpcsched.driver.ports import Ports
from hpcsched.eventlog.records import Header, Note, Step
from hpcsched.launchspec import Channel, LaunchSpec, SpareSpec
from hpcsched.runfolder import RunFolder
from hpcsched.search.samplers import make_sampler
from tests.support.virtual import machine

EXPERIMENT = """\
[experiment]
metric = "accuracy"
[trial]
command = ["true"]
[scheduler]
policy = "fifo"
[atoms]
multiple_of = 1
[search]
num_trials = {num_trials}
[search.space]
x = {{ uniform = [0.0, 1.0] }}
"""

Event = TypeVar("Event", bound=ev.Event)


class Written:
    """A journal that is durable at once."""

    life = 1
    trouble = None
    waiting_s = 0.0

    def __init__(self) -> None:
        self.records: list[Step | Note] = []

    def append(self, record: Step | Note) -> int:
        self.records.append(record)
        return len(self.records)


class Told:
    """What the loop has said to its peers and asked of the launcher."""

    keeps_spares = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, wire.FromDriver]] = []
        self.started: list[LaunchSpec] = []
        self.spares: list[SpareSpec] = []
        self.killed: list[tuple[int, int]] = []

    def send(self, peer: str, message: wire.FromDriver) -> None:
        self.sent.append((peer, message))

    def forget(self, *ids: object) -> None: ...
    def start(self, spec: LaunchSpec) -> None:
        self.started.append(spec)

    def start_spare(self, spec: SpareSpec) -> None:
        self.spares.append(spec)

    def adopt(self, spec: LaunchSpec, spares: Sequence[int]) -> None: ...
    def note_step(self, trial_id: int, incarnation: int, step_id: str) -> None: ...
    def kill(self, trial_id: int, incarnation: int) -> None:
        self.killed.append((trial_id, incarnation))


class Nobody:
    """Looks on."""

    def step(self, event: ev.Event, actions: list[act.Action]) -> None: ...
    def note(self, time_s: float, text: str) -> None: ...
    def refresh(self, now: float) -> None: ...


class LoopByHand:
    """A search by turns on `nodes` nodes n0, n1, ... of `gpus` atoms each. Seconds are experiment time."""

    def __init__(
        self, root: Path, *, nodes: int = 2, gpus: int = 2, num_trials: int = 4, warm: bool = False
    ) -> None:
        folder = RunFolder(root / "run")
        folder.root.mkdir(mode=0o700)
        file = root / "experiment.toml"
        file.write_text(EXPERIMENT.format(num_trials=num_trials))
        spec = load_experiment(file, simulate=False)
        self._now = 0.0
        self.machine = machine(nodes, gpus)
        self.scheduler = Scheduler(core_settings(spec))
        self.written = Written()
        self.told = Told()
        header = Header(1, spec.text, "by hand", "accuracy", self.scheduler.settings, 0.0)
        inbox = ib.Inbox()
        doubles: dict[str, Any] = {"launcher": self.told, "server": self.told, "writer": self.written}
        self.loop = Loop(
            spec=spec, folder=folder, scheduler=self.scheduler, sampler=make_sampler(spec, seed=0), machine=self.machine,
            channel=Channel((), "", ""), inbox=inbox, clock=Clock(0.0, lambda: self._now), ports=Ports(salt="by hand"), onlooker=Nobody(),
            painter=Painter(folder, header, self.scheduler), local=False, invented_gpus=True, began_at_unix_s=0.0, file_deadline_s=None,
            allocation_ends_s=None, warm=warm, one_node_spares=False, first_n=0, told={}, order_ids=(), **doubles,
        )  # fmt: skip
        self.loop._handle(ev.ExperimentBegan(0.0, self.machine, None))
        self._perform()

    def take(self, item: object, now: float) -> None:
        """Something arrives."""
        self._now = now
        self.loop._take(item)
        self._perform()

    def look(self, now: float) -> None:
        """Time has passed: timers and what the loop looks at."""
        self._now = now
        for fired in self.loop._timers.due(now):
            self.loop._handle(fired)
        self.loop._look(now)
        self._perform()

    def hello(self, trial_id: int, node: str, now: float) -> None:
        hello = wire.SupervisorHello(
            trial_id, 1, node=node, pid=1, step_id="", devices=(), cores=()
        )  # of its first incarnation
        self.take(Arrived(supervisor_peer(trial_id, 1, node), hello, now), now)

    def beat(self, trial_id: int, node: str, now: float, incarnation: int = 1) -> None:
        beat = wire.Heartbeat(trial_id, incarnation, node=node)
        self.take(Arrived(supervisor_peer(trial_id, incarnation, node), beat, now), now)

    def events(self, kind: type[Event]) -> list[Event]:
        """Of this kind so far, oldest first."""
        steps = [record for record in self.written.records if isinstance(record, Step)]
        return [step.event for step in steps if isinstance(step.event, kind)]

    def _perform(self) -> None:
        while self.loop._pending:
            self.loop._take(ib.Durable(len(self.written.records)))
