"""A tiny virtual machine that plays score tables to a `Scheduler`, with everything that trials do wrong.

Trials report every `stride` iterations (and at R), may report each result twice, crash before given iterations, and go on for
some iterations before they leave. What they report comes from a table. Saves take no time; leaving saves.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hpcsched.core.actions import Action, KillTrial, PreemptTrial, RequestTrial, SetTimer, StartTrial
from hpcsched.core.enums import ExperimentState, Mode, Outcome, TrialState
from hpcsched.core.events import (
    CheckpointSaved,
    Event,
    ExperimentBegan,
    ResultReported,
    SearchExhausted,
    TimerFired,
    TrialExited,
    TrialStarted,
    TrialSubmitted,
)
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from tests.support.simple_sha import Report
from tests.support.virtual import machine

SETUP_S = 0.25


@dataclass
class TableWorld:
    """One experiment; `run` plays it to its end."""

    settings: Settings
    report: Report
    num_atoms: int = 4
    num_configs: int = 1000
    deadline_s: float | None = None
    duration_s: Callable[[int], float] = lambda _: 1.0
    """Of one iteration of a trial on one atom; on a atoms it is a-th of it."""
    stride: Callable[[int], int] = lambda _: 1
    repeats: bool = False
    crashes: Mapping[int, list[int]] = field(default_factory=dict)
    """Trial -> iterations before which it crashes, once each."""
    lingers: int = 0
    """Iterations that a trial does after it was asked to leave."""
    results: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, trial, iteration), repetitions left out."""
    starts: list[tuple[float, StartTrial]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    waiting: list[TrialId] = field(default_factory=list)
    """Who held no atoms and had not ended, after the last event but the one that ended the experiment."""

    def run(self, most_events: int = 200_000) -> Scheduler:
        self.scheduler = Scheduler(self.settings)
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._submitted = 0
        self._incarnation: dict[TrialId, Incarnation] = {}
        self._leaves: dict[TrialId, int | None] = {}
        self._crashes = {trial_id: sorted(at) for trial_id, at in self.crashes.items()}
        self._timers: dict[object, int] = {}
        self._send(ExperimentBegan(0.0, machine(1, self.num_atoms), self.deadline_s))
        for _ in range(most_events):
            if self.scheduler.state is not ExperimentState.RUNNING:
                return self.scheduler
            assert self._heap, "nothing will ever happen, but the experiment has not ended"
            self.now, _, happen = heapq.heappop(self._heap)
            happen()
        raise AssertionError("it goes on for ever")

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, what))

    def _send(self, event: Event) -> None:
        for action in self.scheduler.handle(event):
            self.actions.append(action)
            self._perform(action)
        self.scheduler.check()
        if self.scheduler.state is ExperimentState.RUNNING:
            states = (TrialState.PENDING, TrialState.PAUSED)
            self.waiting = [trial.trial_id for trial in self.scheduler.trials if trial.state in states]

    def _perform(self, action: Action) -> None:
        if isinstance(action, RequestTrial):
            for _ in range(action.num):
                self._after(0.0, self._submit)
        elif isinstance(action, StartTrial):
            self._start(action)
        elif isinstance(action, PreemptTrial):
            self._leaves[action.trial_id] = self.lingers
        elif isinstance(action, KillTrial):
            trial_id, incarnation = action.trial_id, action.incarnation
            self._incarnation.pop(trial_id, None)
            self._after(0.0, lambda: self._send(TrialExited(self.now, trial_id, incarnation, Outcome.KILLED)))
        elif isinstance(action, SetTimer):
            self._set_timer(action)

    def _set_timer(self, action: SetTimer) -> None:
        key = (action.timer, action.trial_id)
        number = self._timers[key] = self._timers.get(key, 0) + 1
        if action.at is None:
            return

        def fire() -> None:
            if self._timers[key] == number:
                self._send(TimerFired(self.now, action.timer, action.trial_id, action.incarnation))

        self._after(action.at - self.now, fire)

    def _submit(self) -> None:
        if self._submitted >= self.num_configs:
            self._send(SearchExhausted(self.now))
            return
        self._submitted += 1
        self._send(TrialSubmitted(self.now, TrialId(self._submitted - 1), {}))

    def _start(self, action: StartTrial) -> None:
        self.starts.append((self.now, action))
        trial_id, incarnation = action.trial_id, action.incarnation
        self._incarnation[trial_id] = incarnation
        self._leaves[trial_id] = None
        done = 0 if action.checkpoint is None else action.checkpoint.training_iteration
        num_atoms = len(action.placement.atoms)

        def started() -> None:
            if self._incarnation.get(trial_id) == incarnation:
                self._send(TrialStarted(self.now, trial_id, incarnation, SETUP_S))
                self._train(trial_id, incarnation, num_atoms, done)

        self._after(SETUP_S, started)

    def _train(self, trial_id: TrialId, incarnation: Incarnation, num_atoms: int, done: int) -> None:
        if self._incarnation.get(trial_id) != incarnation:
            return
        last = self.settings.max_iterations
        leaves = self._leaves[trial_id]
        if leaves == 0 or done >= last:
            del self._incarnation[trial_id]
            self._send(CheckpointSaved(self.now, trial_id, incarnation, done, 0.0))
            outcome = Outcome.COMPLETED if leaves is None else Outcome.PREEMPTED
            self._send(TrialExited(self.now, trial_id, incarnation, outcome))
            return
        if leaves is not None:
            self._leaves[trial_id] = leaves - 1
        iteration = min(last, done + self.stride(trial_id))
        took = self.duration_s(trial_id) * (iteration - done) / num_atoms

        def finish() -> None:
            if self._incarnation.get(trial_id) != incarnation:
                return
            crashes = self._crashes.get(trial_id, [])
            if crashes and iteration >= crashes[0]:
                crashes.pop(0)
                del self._incarnation[trial_id]
                self._send(TrialExited(self.now, trial_id, incarnation, Outcome.CRASHED))
                return
            self.results.append((self.now, trial_id, iteration))
            shown = self.report(trial_id, iteration)
            sign = 1.0 if self.settings.mode is Mode.MAX else -1.0
            metric, problem = (None, shown) if isinstance(shown, str) else (sign * shown, None)
            for _ in range(2 if self.repeats else 1):
                self._send(ResultReported(self.now, trial_id, incarnation, iteration, metric, took, problem))
            self._train(trial_id, incarnation, num_atoms, iteration)

        self._after(took, finish)
