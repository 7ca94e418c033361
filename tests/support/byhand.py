"""A `Scheduler` driven by hand: each test says what happens, event by event, at its own clock."""

from __future__ import annotations

from hpcsched.core.actions import Action, PreemptTrial, StartTrial
from hpcsched.core.enums import Outcome, PreemptReason
from hpcsched.core.events import (
    CheckpointSaved,
    Event,
    ExperimentBegan,
    ResultReported,
    SearchExhausted,
    TrialExited,
    TrialStarted,
    TrialStopRequested,
    TrialSubmitted,
)
from hpcsched.core.ids import TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from tests.support.virtual import machine


class ByHand:
    """One experiment."""

    def __init__(self, settings: Settings, *, num_atoms: int, deadline_s: float | None = None) -> None:
        self.scheduler = Scheduler(settings)
        self.now = 0.0
        self.actions: list[Action] = []
        """Of the last call."""
        self._send(ExperimentBegan(0.0, machine(1, num_atoms), deadline_s))

    def _send(self, *events: Event) -> list[Action]:
        self.actions = [action for event in events for action in self.scheduler.handle(event)]
        self.scheduler.check()
        return self.actions

    def submit(self, num: int = 1) -> list[Action]:
        """New configurations; those that start are up at once."""
        first = len(self.scheduler.trials)
        actions = self._send(*(TrialSubmitted(self.now, TrialId(first + i), {}) for i in range(num)))
        self.bring_up()
        return actions

    def exhaust(self) -> list[Action]:
        return self._send(SearchExhausted(self.now))

    def bring_up(self) -> None:
        """All that are starting have started."""
        actions = self.actions
        for trial in self.scheduler.live():
            if not trial.contacted:
                actions = actions + self._send(TrialStarted(self.now, trial.trial_id, trial.incarnation, 0.1))
        self.actions = actions

    def report(
        self,
        trial_id: int,
        iteration: int,
        metric: float | None,
        problem: str | None = None,
        *,
        took_s: float = 1.0,
    ) -> list[Action]:
        self.now += 1.0
        trial = self.scheduler.trials[trial_id]
        event = ResultReported(
            self.now, trial.trial_id, trial.incarnation, iteration, metric, took_s, problem
        )
        return self._send(event)

    def leave(self, trial_id: int, outcome: Outcome = Outcome.PREEMPTED) -> list[Action]:
        """The incarnation ends; what starts then is up at once. A crash loses what came after the last checkpoint."""
        trial = self.scheduler.trials[trial_id]
        events: list[Event] = []
        if outcome in {Outcome.PREEMPTED, Outcome.COMPLETED}:
            events.append(
                CheckpointSaved(self.now, trial.trial_id, trial.incarnation, trial.training_iteration, 0.0)
            )
        events.append(TrialExited(self.now, trial.trial_id, trial.incarnation, outcome))
        actions = self._send(*events)
        self.bring_up()
        return actions

    def stop(self, trial_id: int) -> list[Action]:
        """The user asks for it."""
        return self._send(TrialStopRequested(self.now, TrialId(trial_id)))


def preempted(actions: list[Action]) -> list[tuple[int, PreemptReason]]:
    return [(action.trial_id, action.reason) for action in actions if isinstance(action, PreemptTrial)]


def started(actions: list[Action]) -> list[tuple[int, int]]:
    """(trial, atoms)."""
    return [
        (action.trial_id, len(action.placement.atoms)) for action in actions if isinstance(action, StartTrial)
    ]
