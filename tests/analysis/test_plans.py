"""What narrowing once can reach on recorded curves."""

from __future__ import annotations

import math

import pytest

from analysis.judging import Data, find_data
from analysis.plans import Case, Plan, plans, progress, regret, value

SHORT = Case(0.3, 8, "linear", 0.0)


@pytest.fixture
def data() -> Data:
    found = find_data()
    if found is None:
        pytest.skip("no shared/data with recorded curves beside this checkout")
    return found


def test_a_plan_without_narrowing_has_no_share() -> None:
    found = plans(8)
    assert Plan(8, 0.0, 8) in found
    assert all((plan.share == 0.0) == (plan.first == plan.last) for plan in found)


def test_progress_is_speed_times_time() -> None:
    assert progress(SHORT, Plan(8, 0.0, 8)) == (0.0, 0.3)
    judged, reached = progress(SHORT, Plan(8, 0.5, 1))
    assert math.isclose(judged, 0.15)
    assert math.isclose(reached, 0.15 + 0.15 * 8)


def test_a_restart_is_paid_by_those_that_grow() -> None:
    costly = SHORT._replace(restart=0.03)
    assert math.isclose(progress(costly, Plan(8, 0.0, 8)).reached, 0.27)
    assert math.isclose(progress(costly, Plan(8, 0.5, 1)).reached, 0.12 + 0.12 * 8)


def test_more_training_of_the_same_trials_is_never_worse(data: Data) -> None:
    short, long = (
        regret(data, "ogbg", SHORT._replace(deadline=deadline), Plan(8, 0.0, 8), 5) for deadline in (0.3, 0.9)
    )
    assert 0.0 <= long < short


def test_nothing_is_worth_nothing(data: Data) -> None:
    assert value(data, "ogbg", SHORT._replace(deadline=1e-4), Plan(8, 0.0, 8), 0.65) == -math.inf
