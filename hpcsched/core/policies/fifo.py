"""`fifo`: no early stop; one atom a trial, the next when one ends."""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

from collections.abc import Sequence

from hpcsched.core.enums import TrialState
from hpcsched.core.policies.queue import StartQueue
from hpcsched.core.view import Decision, Drop, Start, TrialView, View


class Fifo:
    """The baseline, and the smallest example of a policy."""

    def __init__(self) -> None:
        self._queue = StartQueue()

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._queue.add(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        """Nothing to remember."""

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        return ()

    def trial_left(self, view: View, trial: TrialView) -> None:
        if trial.state is TrialState.PENDING:
            self._queue.add_interrupted(trial)

    def num_wanted(self, view: View) -> int:
        return view.num_free

    def next_start(self, view: View) -> Start | Drop | None:
        return self._queue.next_interrupted(view) or self._queue.next_new(view)

    def idle_moves(self, view: View) -> Sequence[Decision]:
        return ()

    def finished(self, view: View) -> str | None:
        if view.search_exhausted and self._queue.is_empty(view):
            return "every trial has ended"
        return None
