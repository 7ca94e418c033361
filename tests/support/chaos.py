"""A world that plays badly against a `Scheduler`, and knows what is really on each atom.

`ChaosWorld` does what drivers, clusters and training scripts can do, one method each: late and repeated results,
crashes, nodes that vanish, refused launches, kills that are never confirmed, a new life of the driver. It keeps its
own record of which ranks are alive where; the scheduler's records are not asked. Every StartTrial is checked
against that record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from hpcsched.core.actions import (
    Action,
    CheckpointRef,
    DeleteCheckpoint,
    FinishExperiment,
    KillTrial,
    PreemptTrial,
    PublishBest,
    RequestTrial,
    SetTimer,
    StartTrial,
    SuspendExperiment,
)
from hpcsched.core.enums import AtomState, ExperimentState, Mode, Outcome, TimerKind, TrialState
from hpcsched.core.events import (
    AtomsReturned,
    CheckpointSaved,
    Event,
    ExperimentBegan,
    ExperimentResumed,
    LaunchRefused,
    MachineChanged,
    NodeDown,
    NodeUp,
    ResultReported,
    SearchExhausted,
    TimerFired,
    TrialExited,
    TrialStarted,
    TrialSubmitted,
)
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from hpcsched.topology.machine import AtomId, Machine


@dataclass
class Ranks:
    """The processes of one incarnation, as they really are."""

    trial_id: int
    incarnation: int
    atoms: frozenset[AtomId]
    iteration: int
    is_up: bool = False
    is_asked: bool = False
    is_killed: bool = False
    saved: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.trial_id, self.incarnation


@dataclass
class ChaosWorld:
    settings: Settings
    machine: Machine
    deadline_s: float | None
    most_configs: int = 12

    now: float = 0.0
    events: list[Event] = field(default_factory=list)
    actions: list[list[Action]] = field(default_factory=list)
    alive: dict[tuple[int, int], Ranks] = field(default_factory=dict)
    """Ranks that the scheduler has not heard the end of."""
    lost: dict[tuple[int, int], Ranks] = field(default_factory=dict)
    """Ranks on silent nodes: the scheduler was told that they are unproven, or gave up on a kill."""
    timers: dict[tuple[TimerKind, int | None], SetTimer] = field(default_factory=dict)
    checkpoints: set[CheckpointRef] = field(default_factory=set)
    num_wanted: int = 0
    num_configs: int = 0
    down: set[str] = field(default_factory=set)
    aside: set[AtomId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.settings)
        self.send(ExperimentBegan(0.0, self.machine, self.deadline_s))

    @property
    def is_over(self) -> bool:
        return self.scheduler.state in {ExperimentState.FINISHED, ExperimentState.FAILED}

    # ---- the loop

    def send(self, event: Event) -> None:
        self.events.append(event)
        actions = self.scheduler.handle(event)
        self.actions.append(actions)
        for action in actions:
            assert action.because, f"{action} does not say why"
            self._perform(action)
        self.scheduler.check()

    def _perform(self, action: Action) -> None:
        if isinstance(action, StartTrial):
            self._start(action)
        elif isinstance(action, PreemptTrial):
            ranks = self.alive[action.trial_id, action.incarnation]
            assert ranks.is_up, "asked to leave before it was up"
            ranks.is_asked = True
        elif isinstance(action, KillTrial):
            key = (action.trial_id, action.incarnation)
            if key in self.alive:
                self.alive[key].is_killed = True
            else:  # after the deadline everybody is killed, whatever the event says that tells the time
                said = self.events[-1]
                assert isinstance(said, TrialExited | LaunchRefused), f"{action} of nobody"
                assert (said.trial_id, said.incarnation) == key, f"{action} of nobody"
                assert self.scheduler.state is not ExperimentState.RUNNING
        elif isinstance(action, SetTimer):
            if action.at is None:
                self.timers.pop((action.timer, action.trial_id), None)
            else:
                self.timers[action.timer, action.trial_id] = action
        elif isinstance(action, RequestTrial):
            assert action.num > 0
            self.num_wanted += action.num
        elif isinstance(action, PublishBest):
            assert action.checkpoint in self.checkpoints, "the best is no complete checkpoint"
        elif isinstance(action, DeleteCheckpoint):
            assert action.checkpoint in self.checkpoints, "deleted what is not there"
            best = self.scheduler.best
            assert best is None or action.checkpoint != best.checkpoint, "deleted the best"
            self.checkpoints.discard(action.checkpoint)
        else:
            assert isinstance(action, FinishExperiment | SuspendExperiment)

    def _start(self, action: StartTrial) -> None:
        atoms = frozenset(action.placement.atoms)
        size = len(action.placement.atoms)
        assert len(atoms) == size, "an atom twice in one placement"
        assert self.scheduler.sizes.allows(size), f"{size} atoms are not an allowed size"
        for ranks in [*self.alive.values(), *self.lost.values()]:
            assert not atoms & ranks.atoms, f"{ranks} is still there"
        assert not any(ranks.trial_id == action.trial_id for ranks in self.alive.values()), "it runs twice"
        assert all(self.machine.atoms[atom].node not in self.down for atom in atoms), "started on a dead node"
        assert not atoms & self.aside, "started on an atom that was set aside"
        assert action.checkpoint is None or action.checkpoint in self.checkpoints, "restores what was deleted"
        if self.scheduler.deadline_s is not None:
            assert self.now <= self.scheduler.deadline_s
        done = 0 if action.checkpoint is None else action.checkpoint.training_iteration
        key = (action.trial_id, action.incarnation)
        assert key not in self.alive
        assert key not in self.lost
        self.alive[key] = Ranks(action.trial_id, action.incarnation, atoms, done, saved=done)

    # ---- what may happen

    def answer(self, give: bool) -> None:
        """The sampler answers one question."""
        if not self.num_wanted:
            return
        if give and self.num_configs < self.most_configs:
            self.num_wanted -= 1
            self.num_configs += 1
            self.send(TrialSubmitted(self.now, len(self.scheduler.trials), {"x": self.num_configs}))
        else:
            self.num_wanted = 0
            self.send(SearchExhausted(self.now))

    def contact(self, ranks: Ranks) -> None:
        if not ranks.is_up and not ranks.is_killed:
            ranks.is_up = True
            self.send(TrialStarted(self.now, *ranks.key, 0.5))

    def report(self, ranks: Ranks, metric: float | None, step: int, problem: str | None = None) -> None:
        """`step` iterations further; 0 or less: a repeated or older iteration."""
        if not ranks.is_up or ranks.is_killed:
            return
        iteration = max(1, ranks.iteration + step)
        ranks.iteration = max(ranks.iteration, iteration)
        self.send(ResultReported(self.now, *ranks.key, iteration, metric, 1.0, problem))

    def save(self, ranks: Ranks) -> None:
        if ranks.is_up and ranks.iteration > ranks.saved:
            ranks.saved = ranks.iteration
            if self.scheduler.deadline_s is None or self.now <= self.scheduler.deadline_s:
                self.checkpoints.add(CheckpointRef(ranks.trial_id, ranks.incarnation, ranks.iteration))
            self.send(CheckpointSaved(self.now, *ranks.key, ranks.iteration, 0.1))

    def leave(self, ranks: Ranks, *, save: bool = True) -> None:
        """It leaves as it was asked to, or because it is done."""
        if not ranks.is_up or ranks.is_killed:
            return
        done = ranks.iteration >= self.settings.max_iterations
        if not ranks.is_asked and not done:
            return
        if save:
            self.save(ranks)
        self.end(ranks, Outcome.COMPLETED if done and not ranks.is_asked else Outcome.PREEMPTED)

    def end(self, ranks: Ranks, outcome: Outcome, *, unproven: bool = False) -> None:
        """The incarnation is over; its first node may not have confirmed it."""
        if ranks.key not in self.alive:
            return
        del self.alive[ranks.key]
        silent: tuple[AtomId, ...] = ()
        if unproven:
            node = self.machine.atoms[min(ranks.atoms)].node
            silent = tuple(sorted(atom for atom in ranks.atoms if self.machine.atoms[atom].node == node))
            self.lost[ranks.key] = Ranks(
                ranks.trial_id, ranks.incarnation, frozenset(silent), ranks.iteration
            )
        self.send(TrialExited(self.now, *ranks.key, outcome, "it happened", silent))

    def refuse(self, ranks: Ranks) -> None:
        if not ranks.is_up and ranks.key in self.alive:
            del self.alive[ranks.key]
            self.send(LaunchRefused(self.now, *ranks.key, self.now + 2.0, "busy"))

    def found(self, ranks: Ranks, *, by_exit: bool) -> None:
        """Ranks on a silent node are proven gone."""
        if self.lost.pop(ranks.key, None) is None:
            return
        if by_exit:
            self.send(TrialExited(self.now, *ranks.key, Outcome.KILLED))
        else:
            self.send(AtomsReturned(self.now, tuple(sorted(ranks.atoms))))

    def node_down(self, node: str) -> None:
        if node not in self.down:
            self.down.add(node)
            self.send(NodeDown(self.now, node, "it does not answer"))

    def node_up(self, node: str) -> None:
        if node in self.down:
            self.down.discard(node)
            self.send(NodeUp(self.now, node))

    def set_aside(self, atom: AtomId) -> None:
        self.aside.add(atom)
        self.send(MachineChanged(self.now, down=(atom,), why="a stranger's memory is on it"))

    def take_back(self) -> None:
        atoms = tuple(sorted(self.aside))
        self.aside.clear()
        self.send(MachineChanged(self.now, up=atoms, why="it is free again"))

    def go_round(self, metrics: list[float | None]) -> None:
        """A while in which nothing goes wrong: answers, starts, one result each, and who was asked leaves."""
        self.pass_time(1.0)
        self.answer(give=True)
        for number, ranks in enumerate(list(self.alive.values())):
            if ranks.key not in self.alive:
                continue
            if ranks.is_killed:
                self.end(ranks, Outcome.KILLED)
                continue
            self.contact(ranks)
            if not ranks.is_asked and ranks.iteration < self.settings.max_iterations:
                self.report(ranks, metrics[number % len(metrics)], 1)
            if ranks.key in self.alive:
                self.leave(ranks)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def fire(self, key: tuple[TimerKind, int | None]) -> None:
        """A timer goes off; the clock is at least at its time."""
        timer = self.timers.pop(key)
        assert timer.at is not None
        self.now = max(self.now, timer.at)
        if timer.timer is TimerKind.KILL_WAIT:
            ranks = self.alive.get((timer.trial_id or 0, timer.incarnation or 0))
            if ranks is not None and ranks.is_killed:
                self.lost[ranks.key] = self.alive.pop(ranks.key)
        self.send(TimerFired(self.now, timer.timer, timer.trial_id, timer.incarnation))

    def resume(self) -> None:
        """The driver died and lives again; all nodes are up."""
        self.alive.clear()
        self.lost.clear()
        self.down.clear()
        self.aside.clear()
        self.timers.clear()
        self.num_wanted = 0
        self.send(ExperimentResumed(self.now, self.machine, self.scheduler.deadline_s))

    # ---- to the end

    def play_out(self, most_rounds: int = 2_000) -> None:
        """From here on nothing goes wrong any more: the experiment must come to its end."""
        for _ in range(most_rounds):
            if self.is_over:
                return
            if self.scheduler.state is ExperimentState.SUSPENDED:
                self.resume()
            for node in sorted(self.down):
                self.node_up(node)
            for ranks in list(self.lost.values()):
                self.found(ranks, by_exit=False)
            if self.aside:
                self.take_back()
            self.go_round([0.5])
            if self.is_over:
                return
            if self.scheduler.state is ExperimentState.SUSPENDED:
                continue
            if not self.alive and not self.num_wanted:
                due = sorted(self.timers, key=lambda key: (self.timers[key].at or 0.0, str(key)))
                assert due, "atoms are free, work is left, and nothing will ever happen"
                self.fire(due[0])
            else:
                for key in list(self.timers):
                    if key in self.timers and (self.timers[key].at or 0.0) <= self.now and not self.is_over:
                        self.fire(key)
        raise AssertionError("it goes on for ever")


def replayed(settings: Settings, events: list[Event]) -> list[list[Action]]:
    """What a fresh scheduler does about the same events."""
    scheduler = Scheduler(settings)
    return [scheduler.handle(event) for event in events]


def negated(settings: Settings, events: list[Event]) -> tuple[Settings, list[Event]]:
    """The same experiment with the metric turned upside down."""
    mode = Mode.MIN if settings.mode is Mode.MAX else Mode.MAX
    turned = [
        msgspec.structs.replace(event, metric=-event.metric)
        if isinstance(event, ResultReported) and event.metric is not None
        else event
        for event in events
    ]
    return msgspec.structs.replace(settings, mode=mode), turned


def without_numbers(actions: list[list[Action]]) -> list[list[Action]]:
    """Actions without `because` and the user's sign."""
    return [
        [
            msgspec.structs.replace(action, because="", metric=abs(action.metric))
            if isinstance(action, PublishBest)
            else msgspec.structs.replace(action, because="")
            for action in batch
        ]
        for batch in actions
    ]


__all__ = ["AtomState", "ChaosWorld", "Ranks", "TrialState", "negated", "replayed", "without_numbers"]
