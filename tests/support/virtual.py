"""A tiny virtual world for tests of the core: a heap, a clock, and trials whose curves are functions.

No faults, no delays but set-up and iteration time; saves take no time and happen whenever a trial leaves. The
simulator of `hpcsched.sim` is the real one; this one is small enough to be read beside a failing test.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcsched.core.actions import Action, KillTrial, PreemptTrial, RequestTrial, SetTimer, StartTrial
from hpcsched.core.enums import ExperimentState, Outcome
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
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings, TimeoutSettings
from hpcsched.topology.machine import Machine, Node, atoms_of_nodes

NO_TIMEOUTS = TimeoutSettings(
    start_s=None, silence_s=None, preempt_grace_s=None, kill_wait_s=None, deadline_margin_s=0.0
)


def machine(num_nodes: int = 1, gpus: int = 4) -> Machine:
    """Nodes n0, n1, ... with so many GPUs each, one GPU an atom."""
    nodes = tuple(
        Node(name=f"n{i}", gpus=tuple(map(str, range(gpus))), cores=tuple(range(gpus)))
        for i in range(num_nodes)
    )
    return atoms_of_nodes(nodes, 1)


@dataclass
class World:
    """Plays one experiment to its end."""

    settings: Settings
    machine: Machine
    deadline_s: float | None
    curve: Callable[[int, int], float | None]
    """(trial_id, iteration) -> metric."""
    iteration_s: Callable[[int, int], float]
    """(trial_id, atoms) -> seconds."""
    setup_s: float = 0.001
    num_configs: int = 1000
    events: list[Event] = field(default_factory=list)
    actions: list[list[Action]] = field(default_factory=list)

    def run(self, most_events: int = 1_000_000) -> Scheduler:
        scheduler = self.scheduler = Scheduler(self.settings)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._num = 0
        self._timers: dict[object, int] = {}
        self._iterations: dict[int, int] = {}
        self._incarnation: dict[int, int] = {}
        self._leave: dict[int, bool] = {}
        self._configs = 0
        self.now = 0.0
        self._send(ExperimentBegan(0.0, self.machine, self.deadline_s))
        while scheduler.state is ExperimentState.RUNNING:
            assert self._heap, "nothing will ever happen, but the experiment has not ended"
            self.now, _, what = heapq.heappop(self._heap)
            what()
            assert len(self.events) < most_events, "it goes on for ever"
        return scheduler

    def _at(self, time: float, what: Callable[[], None]) -> None:
        self._num += 1
        heapq.heappush(self._heap, (time, self._num, what))

    def _send(self, event: Event) -> None:
        self.events.append(event)
        actions = self.scheduler.handle(event)
        self.actions.append(actions)
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        if isinstance(action, RequestTrial):
            for _ in range(action.num):
                self._at(self.now, self._submit)
        elif isinstance(action, StartTrial):
            trial_id, incarnation = action.trial_id, action.incarnation
            done = 0 if action.checkpoint is None else action.checkpoint.training_iteration
            self._incarnation[trial_id] = incarnation
            self._leave[trial_id] = False
            size = len(action.placement.atoms)

            def started() -> None:
                if self._incarnation.get(trial_id) != incarnation:
                    return
                self._send(TrialStarted(self.now, trial_id, incarnation, self.setup_s))
                self._iterate(trial_id, incarnation, size, done)

            self._at(self.now + self.setup_s, started)
        elif isinstance(action, PreemptTrial):
            self._leave[action.trial_id] = True
        elif isinstance(action, KillTrial):
            self._incarnation.pop(action.trial_id, None)
            self._at(
                self.now,
                lambda: self._send(
                    TrialExited(self.now, action.trial_id, action.incarnation, Outcome.KILLED)
                ),
            )
        elif isinstance(action, SetTimer):
            key = (action.timer, action.trial_id)
            self._timers[key] = self._timers.get(key, 0) + 1
            if action.at is not None:
                number = self._timers[key]

                def fire() -> None:
                    if self._timers[key] == number:
                        self._send(TimerFired(self.now, action.timer, action.trial_id, action.incarnation))

                self._at(action.at, fire)

    def _submit(self) -> None:
        if self._configs >= self.num_configs:
            self._send(SearchExhausted(self.now))
            return
        self._configs += 1
        self._send(TrialSubmitted(self.now, self._configs - 1, {"number": self._configs - 1}))

    def _iterate(self, trial_id: int, incarnation: int, size: int, done: int) -> None:
        if (
            self._incarnation.get(trial_id) != incarnation
            or self.scheduler.state is not ExperimentState.RUNNING
        ):
            return
        leave = self._leave[trial_id]
        if leave or done >= self.settings.max_iterations:
            del self._incarnation[trial_id]
            self._send(CheckpointSaved(self.now, trial_id, incarnation, done, 0.0))
            outcome = Outcome.PREEMPTED if leave else Outcome.COMPLETED
            self._send(TrialExited(self.now, trial_id, incarnation, outcome))
            return
        took = self.iteration_s(trial_id, size)

        def report() -> None:
            if self._incarnation.get(trial_id) != incarnation:
                return
            self._send(
                ResultReported(
                    self.now, trial_id, incarnation, done + 1, self.curve(trial_id, done + 1), took
                )
            )
            self._iterate(trial_id, incarnation, size, done + 1)

        self._at(self.now + took, report)
