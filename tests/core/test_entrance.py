"""Cases T11 to T13: when the entrance closes."""

from __future__ import annotations

import pytest

from hpcsched.core.entrance import Entrance, fixed_gate


def entrance(*, longest: float, setup: float, iterations: float, max_iterations: int = 100) -> Entrance:
    made = Entrance(eta=4, max_iterations=max_iterations, ignore_overhead=False)
    made.observe_setup(setup)
    made.observe_training(longest)
    made.observe_one_atom_iteration(iterations)
    return made


def is_open(made: Entrance, time_left_s: float) -> bool:
    return made.gate(time_left_s=time_left_s, longest_s=made.longest_s).is_open


@pytest.mark.parametrize(
    ("one_atom_iteration", "time_left", "expected"),
    [(1.0, 72.0, True), (1.0, 71.9, False), (0.5, 50.0, True), (0.5, 49.9, False), (0.3, 40.0, True)],
)
def test_t11_the_bound_is_the_smaller_of_catching_up_and_finishing(
    one_atom_iteration: float, time_left: float, expected: bool
) -> None:
    """eta (T' - S) = 4 (20 - 2) = 72; R Ta = 100, 50, 30. Equality is open."""
    assert is_open(entrance(longest=20.0, setup=2.0, iterations=one_atom_iteration), time_left) is expected


def test_t11_without_results_it_is_open() -> None:
    """4 (-1 - -1) = 0."""
    made = Entrance(eta=4, max_iterations=100, ignore_overhead=False)
    assert made.gate(time_left_s=0.0, longest_s=None).is_open


@pytest.mark.parametrize(
    ("setup", "now", "expected"),
    [(20.0, 212.0, True), (20.0, 212.5, False), (0.0, 180.0, True), (0.0, 180.5, False)],
)
def test_t12_one_trial_closes_it_after_a_fifth_of_the_time(setup: float, now: float, expected: bool) -> None:
    """900 - t < 4 (t - 2 S), T' = t - S: t > (900 + 8 S) / 5 = 212 for S = 20, 180 for S = 0."""
    made = entrance(longest=now - setup, setup=setup, iterations=1e6)
    assert is_open(made, 900.0 - now) is expected


def test_t13_right_after_the_first_result_it_is_open() -> None:
    """The paper's literal inequality would have it closed: T' is tiny, and the whole deadline is left."""
    made = entrance(longest=0.9, setup=0.1, iterations=0.9)
    assert is_open(made, 899.1)


def test_the_overhead_is_the_90th_percentile_of_the_distinct_set_up_times() -> None:
    """1 .. 11: position 9, the tenth; repeated values count once."""
    made = Entrance(eta=4, max_iterations=100, ignore_overhead=False)
    assert made.overhead_s == -1.0
    for value in [*range(1, 12), 1, 1, 1, 1, 1]:
        made.observe_setup(float(value))
    assert made.overhead_s == 10.0


def test_until_a_start_was_measured_a_profiles_seconds_are_the_overhead() -> None:
    made = Entrance(eta=4, max_iterations=100, ignore_overhead=False, expected_overhead_s=7.0)
    assert made.overhead_s == 7.0
    assert made.gate(time_left_s=0.0, longest_s=None).is_open
    made.observe_setup(2.0)
    assert made.overhead_s == 2.0


def test_overhead_can_be_ignored() -> None:
    made = Entrance(eta=4, max_iterations=100, ignore_overhead=True)
    made.observe_setup(9.0)
    assert made.overhead_s == 0.0


def test_a_fixed_exploration_fraction_closes_when_its_time_is_over() -> None:
    """T = 100, f = 0.3: closed when less than 70 s are left."""
    assert fixed_gate(time_left_s=70.0, deadline_s=100.0, explore_fraction=0.3).is_open
    assert not fixed_gate(time_left_s=69.9, deadline_s=100.0, explore_fraction=0.3).is_open


def test_without_a_deadline_it_never_closes() -> None:
    assert entrance(longest=1e9, setup=0.0, iterations=1e9).gate(time_left_s=None, longest_s=1e9).is_open
