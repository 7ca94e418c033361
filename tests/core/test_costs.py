"""What a start is expected to cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.costs import Costs
from hpcsched.core.entrance import Entrance
from hpcsched.core.warmth import NUM_LAST


def test_a_start_is_expected_to_cost_what_nine_of_ten_have_cost_at_the_nearest_size() -> None:
    costs = Costs()
    assert costs.setup_s(1) is None
    for setup_s in (10.0, 12.0):
        costs.observe_setup(1, setup_s)
    costs.observe_setup(4, 30.0)
    assert costs.setup_s(1) == 11.8
    assert costs.setup_s(3) == 30.0


def test_the_first_cold_starts_say_nothing_once_spares_are_there() -> None:
    """Four cold starts of 10 s, then spares: the next resize costs what a spare costs, not ten seconds."""
    costs = Costs()
    entrance = Entrance(eta=4, max_iterations=100, ignore_overhead=False)
    for setup_s in (10.0, 10.5, 11.0, 12.0):
        costs.observe_setup(1, setup_s)
        entrance.observe_setup(setup_s)
    assert not costs.are_warm
    costs.observe_setup(2, 0.5, warm=True)
    entrance.observe_setup(0.5, warm=True)
    assert costs.are_warm
    assert costs.setup_s(1) == costs.setup_s(4) == 0.5
    assert costs.setups_by_size_s() == {2: 0.5}
    assert entrance.overhead_s == 0.5


def test_where_spares_are_used_up_the_next_start_may_be_cold_again() -> None:
    costs = Costs()
    entrance = Entrance(eta=4, max_iterations=100, ignore_overhead=False)
    for setup_s, warm in ((10.0, False), (0.5, True), (10.0, False)):
        costs.observe_setup(1, setup_s, warm=warm)
        entrance.observe_setup(setup_s, warm=warm)
    assert costs.setup_s(1) == entrance.overhead_s == (0.5 + 10.0) / 2
    for _ in range(2):
        costs.observe_setup(1, 0.5, warm=True)
    assert costs.setup_s(1) == (3 * 0.5 + 10.0) / 4
    for _ in range(NUM_LAST):
        costs.observe_setup(1, 0.5, warm=True)
    assert costs.setup_s(1) == 0.5, "it was long ago"


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 100.0)), min_size=1, max_size=30))
def test_a_start_is_expected_between_the_shortest_and_the_longest_seen(
    starts: list[tuple[bool, float]],
) -> None:
    costs = Costs()
    for warm, setup_s in starts:
        costs.observe_setup(1, setup_s, warm=warm)
    expected = costs.setup_s(1)
    seconds = [setup_s for _, setup_s in starts]
    assert expected is not None
    assert min(seconds) - 1e-9 <= expected <= max(seconds) + 1e-9
    assert costs.are_warm == any(warm for warm, _ in starts)


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
