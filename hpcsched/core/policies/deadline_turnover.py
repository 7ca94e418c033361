"""Turnover: how `deadline` searches where choice outweighs training. The rules of `hypersched`, mended.

Many trials begin on one atom and most of them go again soon:

- who falls below the best 1 / eta of a rung is paused, at once and whenever the rung's cutoff has passed it (the
  speculative bracket); the leader of the highest rung is exempt;
- newcomers come while there is time for them to catch up with the oldest trial that runs or waits (`Entrance`); when that one
  has ended, they come again. A trial that no newcomer could catch up with is not paused for one;
- when newcomers come no more, free atoms belong to the best trial and then to the others, up to half of all while several run.
  A trial grows at its own report, by a factor of `leap` or to the largest useful size: once or twice in all;
- atoms that nobody could grow into go to newcomers all the same; paused trials are promoted when there are no newcomers left, for
  a promotion costs a restart and a newcomer does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpcsched.core.brackets import Objection, Promotion, SpeculativeBracket
from hpcsched.core.entrance import Entrance, Gate
from hpcsched.core.enums import TrialState
from hpcsched.core.settings import Settings
from hpcsched.core.view import TrialView, View


class Growth(NamedTuple):
    size: int
    because: str


class Turnover:
    """Rungs and entrance. Results are always recorded; whether they are acted upon is the policy's decision."""

    def __init__(self, settings: Settings, *, leap: int) -> None:
        self._leap = leap
        profiled = settings.scaling.restart_s
        self._bracket = SpeculativeBracket(
            mode=settings.mode,
            grace_period=settings.grace_period,
            max_iterations=settings.max_iterations,
            reduction_factor=settings.reduction_factor,
            protect_leader=True,
        )
        self._entrance = Entrance(
            eta=settings.reduction_factor,
            max_iterations=settings.max_iterations,
            ignore_overhead=False,
            expected_overhead_s=profiled[min(profiled)] if profiled else None,
        )
        self._oldest: TrialView | None = None
        """The trial that has trained longest, of those that run or have been paused since they were it."""

    def judge(self, trial: TrialView) -> Objection | None:
        """Record a result; whether its trial should go on."""
        if trial.setup_time_s is not None:
            self._entrance.observe_setup(trial.setup_time_s, warm=trial.warm)
        if trial.num_atoms == 1 and trial.last_iter_s is not None:
            self._entrance.observe_one_atom_iteration(trial.last_iter_s)
        self._note_age(trial)
        return self._bracket.judge(trial.trial_id, trial.training_iteration, trial.score, trial.problem)

    def _note_age(self, trial: TrialView) -> None:
        if self._oldest is None or trial.training_s > self._oldest.training_s:
            self._oldest = trial

    def started(self, trial: TrialView) -> None:
        self._bracket.resumed(trial.trial_id)
        self._note_age(trial)

    def left(self, view: View, trial: TrialView) -> None:
        if trial is self._oldest and trial.state is not TrialState.PAUSED:
            self._oldest = None
            for other in view.live():
                self._note_age(other)
        if trial.state is TrialState.PAUSED:
            self._bracket.paused(trial.trial_id)
        else:
            self._bracket.resumed(trial.trial_id)

    def gate(self, view: View) -> Gate:
        """Do newcomers come?"""
        longest = None if self._oldest is None else self._oldest.training_s
        return self._entrance.gate(time_left_s=view.time_left_s(), longest_s=longest)

    def can_be_caught(self, view: View, trial: TrialView) -> bool:
        """Is there time for a newcomer to catch up with this trial?"""
        return self._entrance.gate(time_left_s=view.time_left_s(), longest_s=trial.training_s).is_open

    def promotion(self, view: View) -> Promotion | None:
        return self._bracket.promotion(lambda trial_id: view.trial(trial_id).state is TrialState.PAUSED)

    def kept_for_leader(self, view: View, most: int) -> int:
        """Free atoms that the leader waits for; `most`: the largest useful size."""
        leader = leader_of(view)
        return 0 if leader is None else max(0, most - leader.num_atoms)

    def growth(self, view: View, trial: TrialView, useful: Callable[[int], int]) -> Growth | None:
        """The size that the reporting trial should have out of the free atoms; None: its own."""
        alone = len(view.live()) == 1
        most = useful(view.num_atoms if alone else max(1, view.num_atoms // 2))
        size = trial.num_atoms
        free = view.num_free
        leader = leader_of(view)
        leads = leader is trial
        if leader is not None and not leads:
            free -= max(0, most - leader.num_atoms)
        if free <= 0 or size >= most:
            return None
        wanted = min(most, useful(size + free))
        if wanted < self._leap * size and wanted < most:
            return None
        place = "the best that runs" if leads else "after the best"
        return Growth(wanted, f"no newcomer can catch up; {place} takes what is free and helps")


def leader_of(view: View) -> TrialView | None:
    """The best of the trials that run. O(running)."""
    best: TrialView | None = None
    for trial in view.live():
        if trial.score is not None and (best is None or best.score is None or trial.score > best.score):
            best = trial
    return best
