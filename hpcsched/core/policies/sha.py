"""`sha`: synchronous successive halving, SHA(n, r, R, eta) (algorithms.md section 4).

One bracket, s = 0: n_i = floor(n eta^-i) trials train to r_i = r eta^i; when all of them are there the best
floor(n_i / eta) go on. SHA(81, 1, 81, 3) is 81 x 1, 27 x 3, 9 x 9, 3 x 27, 1 x 81. Where R is not one of the r eta^i the
best of the last rung (at least one) train on to R.

Every trial runs on one atom; atoms without a trial are idle. Ties, missing and non-finite metrics, failures and fewer
configurations than n: see `halving`. Mode min needs nothing here: scores are negated before policies see them.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

from collections.abc import Sequence

from hpcsched.core.halving import HalvingBracket, Line, Plan
from hpcsched.core.rungs import milestones_of
from hpcsched.core.settings import Settings, ShaSettings
from hpcsched.core.view import Decision, Drop, Start, TrialView, View


def sha_plan(num_trials: int, grace_period: int, max_iterations: int, reduction_factor: int) -> Plan:
    """SHA(n, r, R, eta)."""
    milestones = milestones_of(grace_period, max_iterations, reduction_factor)
    if milestones[-1] < max_iterations:
        milestones = (*milestones, max_iterations)
    return Plan("", num_trials, milestones)


class Sha:
    """A single bracket."""

    def __init__(self, settings: Settings, options: ShaSettings) -> None:
        self._line = Line()
        num_trials = options.num_trials
        if settings.num_trials is not None:
            num_trials = min(num_trials, settings.num_trials)
        self._bracket = HalvingBracket(
            sha_plan(num_trials, settings.grace_period, settings.max_iterations, settings.reduction_factor),
            number=0,
            reduction_factor=settings.reduction_factor,
            line=self._line,
        )

    def trial_added(self, view: View, trial: TrialView) -> None:
        if self._bracket.num_missing:
            self._bracket.enter(trial)
        else:
            self._line.is_out(trial.trial_id, f"all {self._bracket.num_entered} places are taken")

    def trial_started(self, view: View, trial: TrialView) -> None:
        """Nothing to remember."""

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        decision = self._bracket.judge(view, trial)
        return () if decision is None else (decision,)

    def trial_left(self, view: View, trial: TrialView) -> None:
        self._bracket.left(view, trial)

    def num_wanted(self, view: View) -> int:
        return min(view.num_free, self._bracket.num_missing)

    def next_start(self, view: View) -> Start | Drop | None:
        if view.search_exhausted and self._bracket.num_missing:
            self._bracket.close_entry(view)
        while (head := self._line.first()) is not None:
            start = self._bracket.start(view, head[1])
            if start is not None and not view.num_free:
                break
            self._line.discard()
            if start is not None:
                return start
        return self._line.next_out(view)

    def idle_moves(self, view: View) -> Sequence[Decision]:
        return ()

    def finished(self, view: View) -> str | None:
        return "the last rung is done" if self._bracket.is_over else None
