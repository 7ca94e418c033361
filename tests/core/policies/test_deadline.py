"""The policy `deadline`: who stays, when the field is narrowed, who gets a free atom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.core.actions import StartTrial
from hpcsched.core.enums import ExperimentState, PreemptReason, TrialState
from hpcsched.core.settings import DeadlineSettings, RetrySettings, ScalingSettings, Settings
from tests.support.byhand import ByHand, preempted, started
from tests.support.tableworld import TableWorld
from tests.support.virtual import NO_TIMEOUTS


def deadline(options: DeadlineSettings | None = None, **changed: Any) -> Settings:
    values: dict[str, Any] = {
        "policy": options or DeadlineSettings(),
        "max_iterations": 100,
        "multiple_of": 1,
        "timeouts": NO_TIMEOUTS,
        "retries": RetrySettings(fail_fast=0),
        "save_at_deadline": False,
    }
    return Settings(**(values | changed))


def steady(trial: int, iteration: int) -> float:
    """The higher the number (mod 11), the better, all the way; growth that slows down."""
    return trial * 7 % 11 / 10 + 1.0 - 1.0 / iteration


def sizes(world: TableWorld, trial: int) -> list[int]:
    return [len(start.placement.atoms) for _, start in world.starts if start.trial_id == trial]


def test_the_first_trial_is_a_scout_on_all_atoms_and_gives_them_back_when_there_is_time() -> None:
    hand = ByHand(deadline(), num_atoms=4, deadline_s=1000.0)
    assert started(hand.submit(4)) == [(0, 4)]
    assert preempted(hand.report(0, 1, 0.1)) == [(0, PreemptReason.RESIZE)]
    assert sorted(started(hand.leave(0))) == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_scout_keeps_its_atoms_when_there_is_time_for_one_trial_only() -> None:
    """Its iteration took 1 s on four atoms: another 4 s are one iteration on one atom."""
    hand = ByHand(deadline(), num_atoms=4, deadline_s=5.0)
    hand.submit(4)
    assert preempted(hand.report(0, 1, 0.1)) == []


def test_without_scouts_all_start_on_one_atom() -> None:
    hand = ByHand(deadline(DeadlineSettings(scouts=0)), num_atoms=4, deadline_s=1000.0)
    assert started(hand.submit(4)) == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_short_deadline_ends_with_fewer_and_larger_trials() -> None:
    world = TableWorld(deadline(), steady, num_atoms=8, num_configs=8, deadline_s=30.0)
    scheduler = world.run()
    last = max(scheduler.trials, key=lambda trial: trial.training_iteration)
    assert sizes(world, last.trial_id)[-1] > 1
    assert last.training_iteration > 30, "more than one atom could have done"


def test_nobody_grows_where_more_atoms_do_not_help() -> None:
    world = TableWorld(
        deadline(scaling=ScalingSettings(assume="none")), steady, num_atoms=8, num_configs=8, deadline_s=30.0
    )
    world.run()
    assert {len(start.placement.atoms) for _, start in world.starts} == {1}


def test_a_long_deadline_trains_everybody_to_the_end_on_one_atom() -> None:
    world = TableWorld(
        deadline(DeadlineSettings(scouts=0)), steady, num_atoms=4, num_configs=4, deadline_s=500.0
    )
    scheduler = world.run()
    assert [trial.state for trial in scheduler.trials] == [TrialState.COMPLETED] * 4
    assert {len(start.placement.atoms) for _, start in world.starts} == {1}


def test_hopeless_trials_make_room_and_the_best_is_never_paused_for_a_newcomer() -> None:
    world = TableWorld(
        deadline(DeadlineSettings(narrow=False)),
        steady,
        num_atoms=4,
        num_configs=60,
        deadline_s=200.0,
    )
    scheduler = world.run()
    assert scheduler.counts.paused > 4
    assert scheduler.counts.started > 8
    best = scheduler.best
    assert best is not None
    assert best.trial_id * 7 % 11 == 10
    kept = TableWorld(
        deadline(DeadlineSettings(narrow=False, early_stop=False)),
        steady,
        num_atoms=4,
        num_configs=60,
        deadline_s=200.0,
    ).run()
    assert kept.counts.paused == 0


def test_nobody_is_paused_for_newcomers_that_do_not_exist() -> None:
    options = DeadlineSettings(narrow=False)
    world = TableWorld(deadline(options, num_trials=4), steady, num_atoms=4, num_configs=4, deadline_s=90.0)
    assert world.run().counts.paused == 0


def test_each_move_says_the_numbers_that_were_compared() -> None:
    world = TableWorld(deadline(), steady, num_atoms=8, num_configs=8, deadline_s=30.0)
    world.run()
    grown = [start for _, start in world.starts if len(start.placement.atoms) > 1 and start.incarnation > 1]
    assert grown
    assert all(" atoms: " in start.because or "promise most" in start.because for start in grown)


def test_without_a_deadline_trials_run_to_their_end() -> None:
    world = TableWorld(deadline(), steady, num_atoms=2, num_configs=3, deadline_s=None)
    scheduler = world.run()
    assert [trial.state for trial in scheduler.trials] == [TrialState.COMPLETED] * 3


@pytest.mark.parametrize("num_atoms", [1, 3, 8])
def test_the_same_events_give_the_same_actions(num_atoms: int) -> None:
    def actions() -> list[Any]:
        world = TableWorld(deadline(), steady, num_atoms=num_atoms, num_configs=30, deadline_s=80.0)
        world.run()
        return world.actions

    assert actions() == actions()


@settings(max_examples=30, deadline=None)
@given(
    num_atoms=st.integers(1, 9),
    num_configs=st.integers(1, 40),
    deadline_s=st.floats(2.0, 300.0),
    multiple_of=st.sampled_from([1, 2]),
    scaling=st.sampled_from(["linear", "sqrt", "none"]),
    crash=st.integers(1, 20),
    scores=st.lists(st.one_of(st.just("nan"), st.floats(-1e3, 1e3)), min_size=1, max_size=50),
)
def test_whatever_trials_do_the_experiment_ends_and_no_atom_is_lost(
    num_atoms: int,
    num_configs: int,
    deadline_s: float,
    multiple_of: int,
    scaling: Any,
    crash: int,
    scores: Any,
) -> None:
    world = TableWorld(
        deadline(multiple_of=multiple_of, max_iterations=40, scaling=ScalingSettings(assume=scaling)),
        lambda trial, iteration: scores[(trial * 31 + iteration) % len(scores)],
        num_atoms=num_atoms,
        num_configs=num_configs,
        deadline_s=deadline_s,
        crashes={0: [crash]},
    )
    scheduler = world.run()
    scheduler.check()
    assert scheduler.state in {ExperimentState.FINISHED, ExperimentState.FAILED}
    for action in world.actions:
        if isinstance(action, StartTrial):
            size = len(action.placement.atoms)
            assert size == 1 or size % multiple_of == 0
            assert action.because
