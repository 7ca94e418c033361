"""Turnover: who grows, who can be caught up with, whose age keeps the entrance closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hpcsched.core.enums import TrialState
from hpcsched.core.policies.deadline_turnover import Growth, Turnover, leader_of
from hpcsched.core.settings import DeadlineSettings, Settings


def trial(trial_id: int, *, size: int = 1, score: float | None = None, training_s: float = 0.0) -> Any:
    return SimpleNamespace(
        trial_id=trial_id,
        num_atoms=size,
        score=score,
        training_s=training_s,
        state=TrialState.RUNNING,
        setup_time_s=0.0,
        warm=False,
        last_iter_s=1.0,
        training_iteration=1,
        problem=None,
    )


def view_of(*live: Any, num_atoms: int = 16, left_s: float = 100.0) -> Any:
    return SimpleNamespace(
        live=lambda: live,
        num_atoms=num_atoms,
        num_free=num_atoms - sum(one.num_atoms for one in live),
        time_left_s=lambda: left_s,
    )


def turnover(leap: int = 4) -> Turnover:
    policy = DeadlineSettings(leap=leap)
    return Turnover(Settings(policy=policy, max_iterations=1000, multiple_of=1), leap=policy.leap)


def growth(found: Turnover, view: Any, one: Any) -> int | None:
    grown: Growth | None = found.growth(cast(Any, view), one, lambda most: most)
    return None if grown is None else grown.size


def test_the_best_that_runs_leads() -> None:
    trials = [trial(0), trial(1, score=0.2), trial(2, score=0.4), trial(3, score=0.1)]
    assert leader_of(view_of(*trials)) is trials[2]
    assert leader_of(view_of(trials[0])) is None


def test_a_trial_grows_by_a_leap_or_not_at_all() -> None:
    few = [trial(i, score=float(i)) for i in range(14)]
    more = few[-13:]
    assert growth(turnover(), view_of(*few), few[-1]) is None, "two atoms are free"
    assert growth(turnover(leap=3), view_of(*few), few[-1]) == 3
    assert growth(turnover(), view_of(*more), more[-1]) == 4


def test_while_several_run_nobody_takes_more_than_half() -> None:
    first, second = trial(0, score=1.0), trial(1, score=0.5)
    assert growth(turnover(), view_of(first, second), first) == 8
    assert growth(turnover(), view_of(first), first) == 16


def test_the_others_get_what_the_best_leaves() -> None:
    first, second = trial(0, score=1.0), trial(1, score=0.5)
    assert growth(turnover(), view_of(first, second), second) == 8, "7 of 14 free atoms are kept for the best"
    third = trial(2, score=0.1, size=7)
    assert growth(turnover(), view_of(first, second, third), second) is None, "all 7 are"


def test_a_newcomer_can_catch_up_with_a_young_trial_only() -> None:
    found = turnover()
    young, old = trial(0, training_s=10.0), trial(1, training_s=40.0)
    for one in (young, old):
        found.judge(one)
    view = view_of(young, old, left_s=100.0)
    assert found.can_be_caught(view, young), "eta = 4: it meets it at 40 s"
    assert not found.can_be_caught(view, old), "at 160 s"
    assert not found.gate(view).is_open


def test_a_paused_trial_keeps_the_entrance_closed_and_one_that_has_ended_does_not() -> None:
    for state, is_open in ((TrialState.PAUSED, False), (TrialState.COMPLETED, True)):
        found = turnover()
        young, old = trial(0, training_s=10.0), trial(1, training_s=40.0)
        for one in (young, old):
            found.judge(one)
        old.state = state
        view = view_of(young, left_s=100.0)
        found.left(view, old)
        assert found.gate(view).is_open is is_open
