"""`asha`: asynchronous successive halving, pausing and promoting or (`stopping`) Ray's variant.

Pausing: a trial that is not among the best floor(n / eta) of its rung waits there; whoever comes into the best is
promoted as soon as an atom is free, highest rung first; else a new configuration starts at the bottom. Stopping:
decided once, on arrival, for good. Sizes are always one atom.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

from collections.abc import Sequence

from hpcsched.core.brackets import Bracket, PromotionBracket, StoppingBracket
from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.policies.queue import StartQueue
from hpcsched.core.settings import AshaSettings, Settings
from hpcsched.core.view import Decision, Drop, Pause, Start, Stop, TrialView, View


class Asha:
    """One bracket (s = 0)."""

    def __init__(self, settings: Settings, options: AshaSettings) -> None:
        bracket = StoppingBracket if options.stopping else PromotionBracket
        self._bracket: Bracket = bracket(
            grace_period=settings.grace_period,
            max_iterations=settings.max_iterations,
            reduction_factor=settings.reduction_factor,
            mode=settings.mode,
        )
        self._queue = StartQueue()

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._queue.add(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        """Nothing to remember."""

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        objection = self._bracket.judge(trial.trial_id, trial.training_iteration, trial.score, trial.problem)
        if objection is None:
            return ()
        if objection.for_good:
            return (Stop(trial.trial_id, objection.because),)
        return (Pause(trial.trial_id, objection.because),)

    def trial_left(self, view: View, trial: TrialView) -> None:
        if trial.state is TrialState.PAUSED:
            self._bracket.paused(trial.trial_id)
            return
        self._bracket.resumed(trial.trial_id)
        if trial.state is TrialState.PENDING:
            self._queue.add_interrupted(trial)

    def num_wanted(self, view: View) -> int:
        return view.num_free

    def next_start(self, view: View) -> Start | Drop | None:
        if not view.num_free:
            return None
        interrupted = self._queue.next_interrupted(view)
        if interrupted is not None:
            return interrupted
        promotion = self._bracket.promotion(lambda trial_id: _is_paused(view, trial_id))
        if promotion is not None:
            return Start(promotion.trial_id, 1, promotion.because)
        return self._queue.next_new(view)

    def idle_moves(self, view: View) -> Sequence[Decision]:
        return ()

    def finished(self, view: View) -> str | None:
        if view.search_exhausted and self._queue.is_empty(view):
            return "the search is exhausted and no paused trial is among the best of its rung"
        return None


def _is_paused(view: View, trial_id: TrialId) -> bool:
    return view.trial(trial_id).state is TrialState.PAUSED
