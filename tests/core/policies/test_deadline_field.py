"""How many trials share the atoms where training outweighs choice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.policies.deadline_field import Reach


def reach(left_s: float, *, linear: bool = True, **changed: Any) -> Reach:
    """Eight atoms; an iteration takes 1 s on one."""
    values: dict[str, Any] = {
        "left_s": left_s,
        "iteration_s": 1.0,
        "max_iterations": 100,
        "trained": 0.8,
        "enough": 1000,
        "size_for": (lambda num: max(1, 8 // num)) if linear else (lambda _: 1),
        "scaling": (lambda size, _: float(size)) if linear else (lambda _, __: 1.0),
        "restart_s": lambda _: 0.0,
    }
    return Reach(**(values | changed))


@pytest.mark.parametrize(("left_s", "num"), [(100.0, 8), (40.0, 4), (20.0, 2), (10.0, 1), (1.0, 1)])
def test_as_many_as_can_be_trained_share_the_atoms(left_s: float, num: int) -> None:
    """Trained is who has done 80 iterations."""
    assert reach(left_s).contenders(8, 1, 0.0) == num


def test_what_is_done_already_counts() -> None:
    assert reach(20.0).contenders(8, 1, 0.0, done=45.0) == 4


def test_a_wide_field_at_first_leaves_less_for_the_contenders_of_the_end() -> None:
    assert reach(40.0).contenders(8, 4, 14.0) == 2
    assert reach(47.0).contenders(8, 2, 14.0) == 4, "14 iterations on one atom and 66 on two"


def test_a_restart_is_paid_from_the_time_that_is_left() -> None:
    assert reach(20.0).contenders(8, 1, 0.0) == 2
    assert reach(20.0, restart_s=lambda _: 1.0).contenders(8, 1, 0.0) == 1


def test_nobody_is_left_out_where_more_atoms_do_not_help() -> None:
    assert reach(10.0, linear=False).contenders(8, 1, 0.0) == 8


def test_the_speed_is_that_of_so_many_trials_placed_on_the_machine() -> None:
    """Two nodes of four atoms: one trial over both is no faster than two."""
    assert reach(10.0, scaling=lambda size, num: 4.0 if num < 3 else float(size)).contenders(8, 1, 0.0) == 2


def test_the_field_is_not_narrowed_where_all_can_do_half_of_a_training() -> None:
    assert reach(40.0).all_are_trained(8)
    assert not reach(39.0).all_are_trained(8)
    assert reach(30.0).all_are_trained(8, done=10.0)


def test_a_training_is_a_number_of_iterations_at_most_however_large_r_is() -> None:
    assert not reach(40.0, max_iterations=10_000).all_are_trained(8)
    assert reach(40.0, max_iterations=10_000, enough=80).all_are_trained(8)


@given(st.floats(0.1, 1000.0), st.floats(0.1, 1000.0))
def test_with_more_time_there_are_not_fewer(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert reach(less).contenders(8, 1, 0.0) <= reach(more).contenders(8, 1, 0.0)
