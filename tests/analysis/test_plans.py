"""What narrowing once can reach on recorded curves."""

from __future__ import annotations

import pytest

from analysis.judging import Cell, Data, find_data
from analysis.plans import NEVER, Constants, Plan, plans, regret, taken

SHORT = Cell("curves", "ogbg", 8, 0.3, "linear", 0.0, "done")
CONSTANTS = Constants(trained=0.8, enough=96, explore=0.35, wide=4)


@pytest.fixture
def data() -> Data:
    found = find_data()
    if found is None:
        pytest.skip("no shared/data with recorded curves beside this checkout")
    return found


def test_a_plan_without_narrowing_has_no_share() -> None:
    found = plans(8)
    assert Plan(8, NEVER, 8) in found
    assert all((plan.share == NEVER) == (plan.first == plan.last) for plan in found)


def test_faster_training_of_the_same_trials_is_never_worse(data: Data) -> None:
    """The same bound: one trial has all atoms, or only one of them."""
    alone, all_eight = Plan(1, NEVER, 1), Plan(8, NEVER, 8)
    for seed in range(100, 103):
        assert regret(SHORT, data, seed, alone) >= 0.0
        slow = regret(SHORT._replace(scaling="none"), data, seed, all_eight)
        assert slow <= regret(SHORT._replace(scaling="none"), data, seed, alone), "eight are seven more"


def test_a_costly_restart_makes_narrowing_worse(data: Data) -> None:
    costly = SHORT._replace(restart=0.1)
    plan = Plan(8, 0.35, 2)
    assert all(regret(costly, data, seed, plan) > regret(SHORT, data, seed, plan) for seed in range(100, 103))


def test_a_plan_is_narrower_where_the_deadline_is_shorter(data: Data) -> None:
    found = [taken(SHORT._replace(deadline=deadline), data, CONSTANTS) for deadline in (0.1, 0.3, 3.0)]
    assert [plan.last for plan in found] == [1, 2, 8]
    assert found[-1] == Plan(8, NEVER, 8)
