"""What a start is expected to cost."""

from __future__ import annotations

from hpcsched.core.costs import Costs
from hpcsched.core.entrance import Entrance


def test_a_start_is_expected_to_cost_what_nine_of_ten_have_cost_at_the_nearest_size() -> None:
    costs = Costs()
    assert costs.setup_s(1) is None
    for setup_s in (10.0, 12.0):
        costs.observe_setup(1, setup_s)
    costs.observe_setup(4, 30.0)
    assert costs.setup_s(1) == 11.8
    assert costs.setup_s(3) == 30.0


def test_once_there_was_a_warm_start_cold_ones_do_not_count_any_more() -> None:
    """Four cold starts of 10 s, then spares: the next resize costs what a spare costs, not ten seconds."""
    costs = Costs()
    entrance = Entrance(eta=4, max_iterations=100, ignore_overhead=False)
    for setup_s in (10.0, 10.5, 11.0, 11.5):
        costs.observe_setup(1, setup_s)
        entrance.observe_setup(setup_s)
    costs.observe_setup(2, 0.5, warm=True)
    entrance.observe_setup(0.5, warm=True)
    costs.observe_setup(1, 12.0)
    entrance.observe_setup(12.0)
    assert costs.setup_s(1) == costs.setup_s(4) == 0.5
    assert costs.distinct_setups_s == [0.5]
    assert entrance.overhead_s == 0.5


def test_the_next_save_may_grow_as_the_last_one_did() -> None:
    costs = Costs()
    assert costs.save_s is None
    costs.observe_save(2.0)
    assert costs.save_s == 2.0
    costs.observe_save(3.0)
    assert costs.save_s == 4.0
    costs.observe_save(1.0)
    assert costs.save_s == 3.0, "the longest of the last few"
    for _ in range(20):
        costs.observe_save(1.0)
    assert costs.save_s == 1.0


def test_who_saves_in_the_background_may_need_two_saves_to_leave() -> None:
    costs = Costs()
    assert costs.last_save_s is None
    costs.observe_save(2.0)
    assert costs.last_save_s == 2.0
    costs.observe_save(2.0, in_background=True)
    assert costs.last_save_s == 4.0, "one may have just begun when the deadline comes"
    assert costs.save_s == 2.0
