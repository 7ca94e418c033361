"""How a search's trials rank, and how well early ranks have foretold later ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.ids import TrialId
from hpcsched.core.policies.deadline_evidence import Evidence, deviate, rungs_until, spread_of, top_mean


def evidence(most: int = 64) -> Evidence:
    return Evidence(most, rho=0.75, growth=1.0, prior_weight=4.0)


def play(found: Evidence, num: int, score: Callable[[int, int], float], until: int) -> None:
    for iteration in range(1, until + 1):
        for trial in range(num):
            found.report(TrialId(trial), iteration, score(trial, iteration))


def test_rungs_are_half_a_doubling_apart_and_end_at_r() -> None:
    assert rungs_until(33) == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32]


@given(st.integers(1, 60))
def test_deviates_fall_with_the_place_and_are_symmetric(num: int) -> None:
    found = [deviate(place, num) for place in range(1, num + 1)]
    assert found == sorted(found, reverse=True)
    assert math.isclose(sum(found), 0.0, abs_tol=1e-9)
    assert math.isclose(top_mean(num, num), 0.0, abs_tol=1e-9)


def test_the_spread_of_normal_deviates_is_their_standard_deviation_and_diverged_ones_do_not_count() -> None:
    rng = random.Random(1)
    scores = [rng.gauss(5.0, 2.0) for _ in range(4001)]
    assert abs(spread_of(scores) - 2.0) < 0.15
    lowest = min(scores)
    assert spread_of([score - 1e6 if score == lowest else score for score in scores]) == spread_of(scores)


def test_the_better_trial_stands_higher() -> None:
    found = evidence()
    play(found, 5, lambda trial, iteration: trial + iteration / 100, 8)
    standing = [found.z(TrialId(trial)) for trial in range(5)]
    assert [seen for _, seen in standing] == [8] * 5
    assert [z for z, _ in standing] == sorted(z for z, _ in standing)
    assert found.behind(TrialId(0), 8) == 0.8
    assert found.behind(TrialId(4), 8) == 0.0


def test_a_score_that_was_reached_once_stays() -> None:
    found = evidence()
    for trial, scores in enumerate([(1.0, 9.0, 2.0, 2.0), (3.0, 3.0, 3.0, 3.0), (4.0, 4.0, 4.0, 4.0)]):
        for iteration, score in enumerate(scores, 1):
            found.report(TrialId(trial), iteration, score)
    assert found.standing(TrialId(0), 3) == (1, 3)


def test_a_trial_without_a_score_is_last() -> None:
    found = evidence()
    for iteration in (1, 2):
        found.report(TrialId(0), iteration, None)
        for trial in (1, 2):
            found.report(TrialId(trial), iteration, -5.0 * trial)
    assert found.standing(TrialId(0), 1) == (3, 3)


def test_who_ended_early_counts_as_behind_only_as_far_as_ranks_foretell() -> None:
    found = evidence()
    play(found, 8, lambda trial, _: float(trial), 1)
    for trial in range(4):
        found.left(TrialId(trial))
    for trial in range(4, 8):
        for iteration in range(2, 17):
            found.report(TrialId(trial), iteration, float(trial))
    _, near = found.standing(TrialId(4), 1)
    _, far = found.standing(TrialId(4), found.num_rungs(TrialId(4)) - 1)
    assert near == 4 + round(4 * 0.75)
    assert far == 4 + round(4 * 0.75**4)
    found.came_back(TrialId(0))
    assert found.standing(TrialId(4), 1)[1] == 4 + round(3 * 0.75)


def test_ranks_that_hold_are_believed_and_ranks_that_turn_are_not() -> None:
    holding, turning = evidence(), evidence()
    play(holding, 16, lambda trial, iteration: trial + iteration, 64)
    play(turning, 16, lambda trial, iteration: trial if iteration < 16 else 1000 - trial, 64)
    first = holding.rungs.index(4)
    assert holding.rho()[first] > 0.94
    assert turning.rho()[first] < 0.55
    assert evidence().rho()[first] == 0.75, "nothing seen: the prior"


def test_growth_is_measured_in_spreads_and_says_where() -> None:
    found = evidence()
    play(found, 33, lambda trial, iteration: deviate(trial + 1, 33) + 2.0 * math.log2(iteration), 64)
    growth, at = found.growth()
    assert abs(growth - 2.0) < 0.2
    assert 32 < at < 64
    assert evidence().growth() == (1.0, 1.0)


def test_accelerating_scores_rise_and_saturating_ones_do_not() -> None:
    rising, saturating = evidence(), evidence()
    play(rising, 5, lambda trial, iteration: (trial + 1.0) * iteration, 64)
    play(saturating, 5, lambda trial, iteration: trial - 1.0 / iteration, 64)
    assert rising.rising() == 1.0
    assert saturating.rising() == 0.0
    assert evidence().rising() == 0.0


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.floats(-1e6, 1e6))), max_size=120))
def test_whatever_is_reported_the_numbers_stay_numbers(reports: list[tuple[int, float | None]]) -> None:
    found = evidence(16)
    at = dict.fromkeys(range(6), 0)
    for trial, score in reports:
        at[trial] += 1
        found.report(TrialId(trial), at[trial], score)
        if at[trial] % 5 == 0:
            found.left(TrialId(trial))
            found.came_back(TrialId(trial))
    assert all(0.0 <= rho <= 0.99 for rho in found.rho())
    assert math.isfinite(found.growth()[0])
    assert 0.0 <= found.rising() <= 1.0
    for trial in range(6):
        z, seen = found.z(TrialId(trial))
        assert math.isfinite(z)
        assert seen <= at[trial]
