"""`hyperband`: SHA from several grace periods, since nobody knows how early a ranking can be trusted.

Hyperband(R, eta) with the least resource r (Li et al. 2018; algorithms.md section 4; r = 1 there): s_max is the largest s
with r eta^s <= R. For s = s_max .. 0 a bracket begins with n = ceil((s_max + 1) eta^s / (s + 1)) trials and the milestones
r_i = floor(R eta^(i - s)), i = 0 .. s, the last of which is R. All of it in whole numbers: (81, 3) gives n = 81, 34, 15,
8, 5; (27, 3) 27, 12, 6, 4; (64, 4) 64, 22, 8, 4.

- Brackets are filled one after another, so a trial's number says its bracket (`bracket_of`). An atom that the older
  brackets cannot use now (they wait for the last trials of a rung) goes to the next bracket: the published algorithm
  leaves the order open, and idle atoms help nobody. Older brackets come first as soon as they can use an atom again.
- With a deadline the brackets start again from s_max after s = 0, until the deadline or until the search is exhausted;
  without one they run once.
- An exhausted search closes the bracket that is being filled: its n is what came.

Inside a bracket everything is as in `sha`.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from hpcsched.core.halving import HalvingBracket, Line, Plan
from hpcsched.core.ids import TrialId
from hpcsched.core.settings import HyperbandSettings, Settings
from hpcsched.core.view import Decision, Drop, Start, TrialView, View


def hyperband_plans(grace_period: int, max_iterations: int, reduction_factor: int) -> tuple[Plan, ...]:
    """The brackets of one round, s = s_max first."""
    s_max = 0
    while grace_period * reduction_factor ** (s_max + 1) <= max_iterations:
        s_max += 1
    return tuple(
        Plan(
            f"bracket s = {s}, ",
            -(-(s_max + 1) * reduction_factor**s // (s + 1)),
            tuple(max_iterations * reduction_factor**i // reduction_factor**s for i in range(s + 1)),
        )
        for s in range(s_max, -1, -1)
    )


class Hyperband:
    """All brackets, the older ones first."""

    def __init__(self, settings: Settings, options: HyperbandSettings) -> None:
        self._eta = settings.reduction_factor
        self._plans = hyperband_plans(
            settings.grace_period, settings.max_iterations, settings.reduction_factor
        )
        self._line = Line()
        self._brackets: list[HalvingBracket] = []
        self._firsts: list[TrialId] = []
        """The first trial of each bracket."""
        self._num_open = 0
        """Brackets that are not over; those that are over keep nothing but their numbers."""

    def bracket_of(self, trial_id: TrialId) -> HalvingBracket:
        """The bracket that a trial belongs to."""
        return self._brackets[bisect_right(self._firsts, trial_id) - 1]

    def trial_added(self, view: View, trial: TrialView) -> None:
        if not self._brackets or not self._brackets[-1].num_missing:
            number = len(self._brackets)
            plan = self._plans[number % len(self._plans)]
            turn = number // len(self._plans)
            if turn:
                plan = plan._replace(label=f"round {turn + 1}, {plan.label}")
            self._brackets.append(
                HalvingBracket(plan, number=number, reduction_factor=self._eta, line=self._line)
            )
            self._firsts.append(trial.trial_id)
        self._brackets[-1].enter(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        """Nothing to remember."""

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        decision = self.bracket_of(trial.trial_id).judge(view, trial)
        return () if decision is None else (decision,)

    def trial_left(self, view: View, trial: TrialView) -> None:
        self.bracket_of(trial.trial_id).left(view, trial)

    def num_wanted(self, view: View) -> int:
        if view.deadline_s is not None:
            return view.num_free
        return min(view.num_free, self._num_missing())

    def _num_missing(self) -> int:
        """Of the first round."""
        opened = len(self._brackets)
        later = sum(plan.num_trials for plan in self._plans[opened:])
        return later + (self._brackets[-1].num_missing if self._brackets else 0)

    def next_start(self, view: View) -> Start | Drop | None:
        if view.search_exhausted and self._brackets and self._brackets[-1].num_missing:
            self._brackets[-1].close_entry(view)
        while (head := self._line.first()) is not None:
            number, trial_id = head
            start = self._brackets[number].start(view, trial_id)
            if start is not None and not view.num_free:
                break
            self._line.discard()
            if start is not None:
                return start
        return self._line.next_out(view)

    def idle_moves(self, view: View) -> Sequence[Decision]:
        return ()

    def finished(self, view: View) -> str | None:
        more = not view.search_exhausted and (view.deadline_s is not None or self._num_missing() > 0)
        if more or not all(bracket.is_over for bracket in self._brackets):
            return None
        return "the last bracket is done"
