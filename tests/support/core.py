"""Short words for dialogues with a `Scheduler`: events by name, actions without timers and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hpcsched.core.actions import Action, SetTimer
from hpcsched.core.enums import Outcome, TimerKind
from hpcsched.core.events import (
    CheckpointSaved,
    Event,
    ExperimentBegan,
    LaunchRefused,
    ResultReported,
    TimerFired,
    TrialExited,
    TrialStarted,
    TrialSubmitted,
)
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import FifoSettings, PolicySettings, Settings, TimeoutSettings
from hpcsched.core.view import Policy
from hpcsched.topology.machine import AtomId, Machine
from tests.support.virtual import NO_TIMEOUTS, machine


def settings(policy: PolicySettings | None = None, **changes: Any) -> Settings:
    """One atom sizes and up, no time limits, nobody saves at the deadline: what is not named does not disturb."""
    defaults: dict[str, Any] = {
        "policy": policy or FifoSettings(),
        "multiple_of": 1,
        "timeouts": NO_TIMEOUTS,
        "save_at_deadline": False,
        "max_iterations": 100,
        "reduction_factor": 4,
    }
    return Settings(**(defaults | changes))


LIMITS = TimeoutSettings(
    start_s=60.0, silence_s=100.0, preempt_grace_s=10.0, kill_wait_s=5.0, deadline_margin_s=1.0
)


class Talk:
    """A scheduler and a clock. Each method sends one event and returns the actions as short strings."""

    def __init__(
        self,
        given: Settings,
        *,
        atoms: Machine | int = 4,
        deadline_s: float | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(given, policy=policy)
        self.machine = machine(1, atoms) if isinstance(atoms, int) else atoms
        self.raw: list[Action] = []
        self.began = self.send(ExperimentBegan(0.0, self.machine, deadline_s))

    def send(self, event: Event) -> list[str]:
        self.now = max(self.now, event.time)
        self.raw = self.scheduler.handle(event)
        self.scheduler.check()
        return [short(action) for action in self.raw if not isinstance(action, SetTimer)]

    def timers(self) -> dict[TimerKind, float | None]:
        """Those set by the last event."""
        return {action.timer: action.at for action in self.raw if isinstance(action, SetTimer)}

    def because(self, number: int = 0) -> str:
        """Of the last actions, timers left out."""
        return [action for action in self.raw if not isinstance(action, SetTimer)][number].because

    def submit(self, **config: Any) -> list[str]:
        return self.send(TrialSubmitted(self.now, len(self.scheduler.trials), config))

    def _of(self, trial_id: int, incarnation: int | None) -> tuple[int, int]:
        return trial_id, incarnation or self.scheduler.trials[trial_id].incarnation

    def started(
        self, trial_id: int, setup_s: float = 0.0, incarnation: int | None = None, *, state_bytes: int = 0
    ) -> list[str]:
        ids = self._of(trial_id, incarnation)
        return self.send(TrialStarted(self.now, *ids, setup_s, state_bytes=state_bytes))

    def result(
        self,
        trial_id: int,
        iteration: int,
        metric: float | None,
        *,
        took_s: float = 1.0,
        problem: str | None = None,
        incarnation: int | None = None,
    ) -> list[str]:
        return self.send(
            ResultReported(self.now, *self._of(trial_id, incarnation), iteration, metric, took_s, problem)
        )

    def saved(
        self, trial_id: int, iteration: int, took_s: float = 0.0, incarnation: int | None = None
    ) -> list[str]:
        return self.send(CheckpointSaved(self.now, *self._of(trial_id, incarnation), iteration, took_s))

    def exited(
        self,
        trial_id: int,
        outcome: Outcome = Outcome.PREEMPTED,
        *,
        unproven: Sequence[int] = (),
        incarnation: int | None = None,
        why: str = "",
    ) -> list[str]:
        return self.send(
            TrialExited(
                self.now,
                *self._of(trial_id, incarnation),
                outcome,
                why,
                tuple(AtomId(atom) for atom in unproven),
            )
        )

    def leaves(self, trial_id: int) -> list[str]:
        """As asked: a checkpoint at its last iteration, then the exit; the actions of both."""
        trial = self.scheduler.trials[trial_id]
        return self.saved(trial_id, trial.training_iteration) + self.exited(trial_id)

    def refused(self, trial_id: int, retry_at: float) -> list[str]:
        return self.send(LaunchRefused(self.now, *self._of(trial_id, None), retry_at, "busy"))

    def fired(
        self, kind: TimerKind, trial_id: int | None = None, incarnation: int | None = None
    ) -> list[str]:
        if trial_id is None:
            return self.send(TimerFired(self.now, kind))
        return self.send(TimerFired(self.now, kind, *self._of(trial_id, incarnation)))

    def state(self, trial_id: int) -> str:
        return str(self.scheduler.trials[trial_id].state)


def short(action: Action) -> str:
    """ "StartTrial 3.1 on 0,1 from 8", "PreemptTrial 3.1 pause", ..."""
    fields = msgspec.structs.asdict(action)
    words = [type(action).__name__]
    if "trial_id" in fields and "incarnation" in fields:
        words.append(f"{fields['trial_id']}.{fields['incarnation']}")
    if "placement" in fields:
        words.append("on " + ",".join(map(str, fields["placement"].atoms)))
    if fields.get("checkpoint") is not None:
        ref = fields["checkpoint"]
        words.append(
            f"from {ref.training_iteration}"
            if "placement" in fields
            else f"{ref.trial_id}.{ref.incarnation}@{ref.training_iteration}"
        )
    others = [
        fields[name] for name in ("reason", "num", "metric", "state", "best_trial_id") if name in fields
    ]
    words += [
        f"{value:g}" if isinstance(value, float) else str(value) for value in others if value is not None
    ]
    return " ".join(words)
