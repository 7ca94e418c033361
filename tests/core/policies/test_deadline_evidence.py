"""How good a search's trials are, and whether choice or training matters more in it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.core.ids import TrialId
from hpcsched.core.policies.deadline_evidence import (
    MOST_COMPARED,
    WIDEST,
    Evidence,
    spread_of,
)


def evidence() -> Evidence:
    return Evidence(growth=1.5, prior_weight=2.0)


def play(found: Evidence, num: int, score: Callable[[int, int], float], until: int = 8) -> None:
    for iteration in range(1, until + 1):
        for trial in range(num):
            found.report(TrialId(trial), iteration, score(trial, iteration))


def test_the_spread_of_normal_deviates_is_their_standard_deviation_and_diverged_ones_do_not_count() -> None:
    rng = random.Random(1)
    scores = sorted((rng.gauss(5.0, 2.0) for _ in range(4001)), reverse=True)
    assert abs(spread_of(scores) - 2.0) < 0.15
    assert spread_of([*scores[:-1], scores[-1] - 1e6]) == spread_of(scores)


def test_a_score_that_was_reached_once_stays() -> None:
    found = evidence()
    for iteration, score in enumerate([1.0, 9.0, 2.0, None], 1):
        found.report(TrialId(0), iteration, score)
    assert found.best(TrialId(0)) == 9.0
    assert found.best(TrialId(1)) == -math.inf
    assert (found.best_at(TrialId(0)), found.best_at(TrialId(1))) == (2, 0)


def test_growth_is_measured_in_spreads() -> None:
    found = evidence()
    normal = NormalDist()
    play(
        found,
        33,
        lambda trial, iteration: normal.inv_cdf((trial + 0.625) / 33.25) + 2.0 * math.log2(iteration),
    )
    assert abs(found.growth() - 2.0) < 0.2
    assert not found.choice_outweighs_training()


def test_choice_outweighs_training_where_trials_differ_by_more_than_a_doubling_brings() -> None:
    found = evidence()
    play(found, 8, lambda trial, iteration: trial + 0.1 * math.log2(iteration))
    assert found.choice_outweighs_training()


def test_growth_is_known_when_three_trials_have_shown_a_doubling() -> None:
    few, many = evidence(), evidence()
    play(few, 2, lambda trial, iteration: trial + iteration)
    play(many, 3, lambda trial, iteration: trial + iteration, until=3)
    assert not few.is_growth_known()
    assert not many.is_growth_known()
    play(many, 3, lambda trial, iteration: trial + iteration, until=4)
    assert many.is_growth_known()


def test_training_is_assumed_to_outweigh_choice_until_three_trials_have_shown_a_doubling() -> None:
    few, fresh = evidence(), evidence()
    play(few, 2, lambda trial, iteration: trial + 0.1 * math.log2(iteration))
    play(fresh, 8, lambda trial, iteration: trial + 0.1 * math.log2(iteration), until=3)
    assert few.growth() == fresh.growth() == evidence().growth()
    assert math.isclose(evidence().growth(), 1.5)
    assert not evidence().choice_outweighs_training()


def test_trials_that_never_had_a_score_or_are_all_equal_show_nothing() -> None:
    nothing, equal = evidence(), evidence()
    for iteration in range(1, 9):
        for trial in range(5):
            nothing.report(TrialId(trial), iteration, None)
            equal.report(TrialId(trial), iteration, 1.0)
    assert nothing.growth() == equal.growth() == evidence().growth()


def test_late_trials_do_not_change_what_the_first_have_shown() -> None:
    found = evidence()
    play(found, MOST_COMPARED, lambda trial, iteration: trial + 0.1 * iteration)
    before = found.growth()
    for iteration in range(1, 9):
        found.report(TrialId(MOST_COMPARED), iteration, 1e9 * iteration)
    assert found.growth() == before
    assert found.best(TrialId(MOST_COMPARED)) == 8e9


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.floats(-1e6, 1e6))), max_size=120))
def test_whatever_is_reported_growth_stays_within_its_bounds(reports: list[tuple[int, float | None]]) -> None:
    found = evidence()
    at = dict.fromkeys(range(6), 0)
    for trial, score in reports:
        at[trial] += 1
        found.report(TrialId(trial), at[trial], score)
        assert 1 / WIDEST - 1e-9 <= found.growth() <= WIDEST + 1e-9
