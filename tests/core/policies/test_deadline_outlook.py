"""What narrowing the field now, later or never can be expected to be worth."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.core.policies.deadline_evidence import top_mean
from hpcsched.core.policies.deadline_outlook import Field, Outlook, Plan, best_plan, width


def outlook(
    left_s: float, *, most: int = 100, rho: float = 0.75, growth: float = 1.0, saturation: float = 60.0
) -> Outlook:
    return Outlook(left_s, 1.0, most, rho, growth, saturation)


def plan_for(
    view: Outlook, field: Field, *, linear: bool = True, restart_s: float = 0.0
) -> tuple[Plan, Plan]:
    return best_plan(
        view,
        field,
        size_for=lambda num: max(1, 8 // num) if linear else 1,
        scaling=(lambda size, _: float(size)) if linear else (lambda _, __: 1.0),
        restart_s=lambda _: restart_s,
        seen_per_s=0.0,
    )


def test_a_long_deadline_narrows_never() -> None:
    """300 s for trainings of 100 s at most: all of the eight end without more atoms, and the best of them is known then."""
    best, never = plan_for(outlook(300.0), Field(8, 1, 10.0, 8))
    assert best == never
    assert (
        abs(never.value - (top_mean(1, 8) + outlook(300.0).maturity(100) - outlook(300.0).maturity(10)))
        < 1e-6
    )


def test_a_short_deadline_narrows_at_once() -> None:
    best, never = plan_for(outlook(8.0, growth=2.0), Field(8, 1, 4.0, 8))
    assert best.wait_s == 0.0
    assert best.num < 8
    assert best.value > never.value


def test_nothing_is_narrowed_where_more_atoms_do_not_help() -> None:
    best, never = plan_for(outlook(8.0, growth=2.0), Field(8, 1, 4.0, 8), linear=False)
    assert best == never


def test_a_restart_that_takes_all_the_time_left_is_not_paid() -> None:
    best, never = plan_for(outlook(8.0, growth=2.0), Field(8, 1, 4.0, 8), restart_s=8.0)
    assert best == never


def test_where_ranks_foretell_everything_the_field_is_narrowed_to_fewer() -> None:
    sure, _ = plan_for(outlook(20.0, rho=0.99), Field(8, 1, 8.0, 8))
    unsure, _ = plan_for(outlook(20.0, rho=0.5), Field(8, 1, 8.0, 8))
    assert sure.num < unsure.num


def test_the_speed_is_that_of_so_many_trials_placed_on_the_machine() -> None:
    """Two nodes of four atoms: one trial over both is slower than one on either."""

    def narrowed(scaling: Callable[[int, int], float]) -> Plan:
        return best_plan(
            outlook(8.0, growth=2.0, rho=0.99),
            Field(8, 1, 4.0, 8),
            size_for=lambda num: 8 // num,
            scaling=scaling,
            restart_s=lambda _: 0.0,
            seen_per_s=0.0,
        )[0]

    assert narrowed(lambda size, _: float(size)).num == 1
    assert narrowed(lambda size, num: float(size) if num > 1 else 2.0).num == 2


def test_few_large_trials_start_where_time_is_shortest() -> None:
    def first(left_s: float) -> Plan:
        return width(
            outlook(left_s, growth=2.0),
            8,
            size_for=lambda num: 8 // num,
            scaling=lambda size, _: float(size),
            restart_s=lambda _: 0.0,
        )

    assert first(400.0).num == 8
    assert first(1.5).num < 8


@settings(deadline=None)
@given(st.floats(1, 1000), st.floats(1, 1000))
def test_more_iterations_are_never_worth_less(one: float, other: float) -> None:
    view = outlook(10.0)
    assert (view.maturity(one) <= view.maturity(other)) or one > other
    assert view.maturity(max(one, other)) <= view.maturity(100)
    assert 0.0 <= view.foretold(one, other) <= 0.999
