"""The policy `deadline`: who stays, when the field is narrowed, who gets a free atom."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.core.actions import StartTrial
from hpcsched.core.enums import ExperimentState, Outcome, PreemptReason, TrialState
from hpcsched.core.ids import TrialId
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


def rank(trial: int) -> float:
    return trial * 7 % 11 / 10


def chosen(trial: int, iteration: int) -> float:
    """The higher the rank, the better, all the way; trials differ by more than a doubling brings."""
    return rank(trial) + 0.3 - 0.3 / iteration


def trained(trial: int, iteration: int) -> float:
    """A doubling brings several times what trials differ by."""
    return 0.1 * rank(trial) + math.log2(iteration)


def sizes(world: TableWorld, trial: int) -> list[int]:
    return [len(start.placement.atoms) for _, start in world.starts if start.trial_id == trial]


def test_scouts_keep_their_atoms_where_they_are_the_field_that_is_right() -> None:
    """An iteration takes 2 s on one atom: one trial of R = 100 can be trained in 30 s, and four compete before."""
    hand = ByHand(deadline(), num_atoms=8, deadline_s=30.0)
    assert len(started(hand.submit(8))) == 4
    for iteration in (1, 2):  # eight seconds; the field is narrowed at 0.35 of 30
        for trial in range(4):
            assert preempted(hand.report(trial, iteration, trained(trial, iteration))) == []


def test_there_are_twice_as_many_scouts_as_each_has_atoms() -> None:
    for num_atoms, size in ((2, 1), (4, 1), (8, 2), (16, 2), (32, 4), (128, 8)):
        hand = ByHand(deadline(), num_atoms=num_atoms, deadline_s=1000.0)
        assert started(hand.submit(num_atoms)) == [(trial, size) for trial in range(num_atoms // size)]


def test_with_a_long_deadline_scouts_keep_their_size_until_the_growth_is_known() -> None:
    """Three of the four have shown a doubling, from 2 to 4 iterations."""
    hand = ByHand(deadline(), num_atoms=8, deadline_s=500.0)
    hand.submit(8)
    for iteration in (1, 2, 3, 4):
        for trial in range(4 if iteration < 4 else 3):
            assert preempted(hand.report(trial, iteration, trained(trial, iteration))) == []
    assert preempted(hand.report(3, 4, trained(3, 4))) == [(3, PreemptReason.RESIZE)]
    assert preempted(hand.report(0, 5, trained(0, 5))) == [(0, PreemptReason.RESIZE)]
    assert sorted(started(hand.leave(0))) == [(0, 1), (4, 1)]


def test_without_scouts_all_start_on_one_atom() -> None:
    hand = ByHand(deadline(DeadlineSettings(scouts=False)), num_atoms=4, deadline_s=1000.0)
    assert started(hand.submit(4)) == [(0, 1), (1, 1), (2, 1), (3, 1)]


# ---- where training outweighs choice


def test_a_short_deadline_ends_with_fewer_and_larger_trials() -> None:
    world = TableWorld(deadline(), trained, num_atoms=8, num_configs=8, deadline_s=30.0)
    scheduler = world.run()
    last = max(scheduler.trials, key=lambda trial: trial.training_iteration)
    assert sizes(world, last.trial_id)[-1] > 1
    assert last.training_iteration > 30, "more than one atom could have done"


def narrowed() -> ByHand:
    """Eight trials on one atom each; an iteration takes 8 s. At 36 s the field is narrowed to the two that can do 35."""
    options = DeadlineSettings(scouts=False, trained=0.35)
    hand = ByHand(deadline(options), num_atoms=8, deadline_s=104.0)
    hand.submit(8)
    for iteration in (1, 2, 3, 4):
        for trial in range(8):
            assert preempted(hand.report(trial, iteration, trained(trial, iteration), took_s=8.0)) == []
    return hand


def test_the_field_is_narrowed_when_all_contenders_have_ended_the_iteration_nearest_to_that_time() -> None:
    hand = narrowed()
    best = sorted(range(8), key=rank)[-2:]
    for trial in range(8):
        actions = hand.report(trial, 5, trained(trial, 5), took_s=8.0)
        assert preempted(actions) == [(trial, PreemptReason.PAUSE)], "each leaves at its own report"
        expected = [(best[-1], 4), (best[0], 4)] if trial == 7 else []
        assert started(actions) + started(hand.leave(trial)) == expected, "when the last one is judged"


def test_a_contender_that_ends_by_itself_is_waited_for_no_more() -> None:
    hand = narrowed()
    for trial in range(7):
        hand.report(trial, 5, trained(trial, 5), took_s=8.0)
        assert started(hand.leave(trial)) == []
    assert sorted(started(hand.leave(7, Outcome.COMPLETED))) == [(3, 4), (6, 4)]


def test_a_trial_that_improves_no_more_makes_room_for_a_newcomer() -> None:
    def flat(trial: int, iteration: int) -> float:
        return trained(trial, min(iteration, 20) if trial else iteration)

    for patience in (0.25, 0.0):
        world = TableWorld(
            deadline(DeadlineSettings(scouts=False, patience=patience)),
            flat,
            num_atoms=4,
            num_configs=8,
            deadline_s=300.0,
        )
        scheduler = world.run()
        new = {start.trial_id: at for at, start in world.starts if start.incarnation == 1}
        assert len(new) == 8
        assert (new[TrialId(4)] < 40.0) is (patience > 0)
        assert scheduler.trial(TrialId(0)).training_iteration == 100, "it still improves"


def test_nobody_grows_where_more_atoms_do_not_help() -> None:
    for score in (trained, chosen):
        world = TableWorld(
            deadline(scaling=ScalingSettings(assume="none")),
            score,
            num_atoms=8,
            num_configs=8,
            deadline_s=30.0,
        )
        world.run()
        assert {len(start.placement.atoms) for _, start in world.starts} == {1}


def test_a_long_deadline_trains_everybody_to_the_end_on_one_atom() -> None:
    world = TableWorld(
        deadline(DeadlineSettings(scouts=False)), trained, num_atoms=4, num_configs=4, deadline_s=500.0
    )
    scheduler = world.run()
    assert [trial.state for trial in scheduler.trials] == [TrialState.COMPLETED] * 4
    assert {len(start.placement.atoms) for _, start in world.starts} == {1}


def test_early_ranks_stop_nobody_where_a_doubling_brings_more_than_trials_differ_by() -> None:
    world = TableWorld(
        deadline(DeadlineSettings(narrow=False)), trained, num_atoms=4, num_configs=60, deadline_s=200.0
    )
    assert world.run().counts.paused == 0


# ---- where choice outweighs training


def turning(score: Any, **changed: Any) -> TableWorld:
    return TableWorld(
        deadline(grace_period=5, **changed), score, num_atoms=4, num_configs=60, deadline_s=200.0
    )


def test_most_trials_go_again_soon_and_the_best_one_is_trained_to_the_end() -> None:
    world = turning(chosen)
    scheduler = world.run()
    assert scheduler.counts.started > 12
    assert scheduler.counts.paused > 8
    best = scheduler.best
    assert best is not None
    assert rank(best.trial_id) == 1.0
    assert scheduler.trial(best.trial_id).training_iteration == 100


def test_without_turnover_ranks_are_not_believed() -> None:
    assert turning(chosen, policy=DeadlineSettings(turnover=False, narrow=False)).run().counts.paused == 0


def test_a_trial_grows_by_leaps_and_not_while_newcomers_can_use_the_atoms() -> None:
    world = turning(chosen)
    world.run()
    for trial in range(60):
        had = [size for size in sizes(world, trial) if trial]
        assert had == sorted(had), "never smaller"
        assert all(later in {1, 2, 4} for later in had)
    grown = [(at, start) for at, start in world.starts if len(start.placement.atoms) > 1 and start.trial_id]
    assert grown
    assert min(at for at, _ in grown) > 0.1 * 200.0


def test_paused_trials_come_back_only_when_there_are_no_newcomers() -> None:
    world = turning(chosen)
    world.run()
    new = [at for at, start in world.starts if start.incarnation == 1]
    promoted = [at for at, start in world.starts if "goes on" in start.because or "cutoff" in start.because]
    assert len(new) < 60 or not promoted or min(promoted) >= max(new)


def test_nobody_is_paused_for_newcomers_that_do_not_exist() -> None:
    world = TableWorld(
        deadline(num_trials=4, scaling=ScalingSettings(assume="none")),
        chosen,
        num_atoms=4,
        num_configs=4,
        deadline_s=90.0,
    )
    assert world.run().counts.paused == 0


# ---- always


def test_each_move_says_the_numbers_that_were_compared() -> None:
    for score in (trained, chosen):
        world = TableWorld(deadline(), score, num_atoms=8, num_configs=8, deadline_s=30.0)
        world.run()
        grown = [
            start for _, start in world.starts if len(start.placement.atoms) > 1 and start.incarnation > 1
        ]
        assert grown
        assert all(" atoms: " in start.because or "contenders go on" in start.because for start in grown)


def test_without_a_deadline_trials_run_to_their_end() -> None:
    world = TableWorld(deadline(), trained, num_atoms=2, num_configs=3, deadline_s=None)
    scheduler = world.run()
    assert [trial.state for trial in scheduler.trials] == [TrialState.COMPLETED] * 3


@pytest.mark.parametrize("score", [trained, chosen])
@pytest.mark.parametrize("num_atoms", [1, 3, 8])
def test_the_same_events_give_the_same_actions(num_atoms: int, score: Any) -> None:
    def actions() -> list[Any]:
        world = TableWorld(deadline(), score, num_atoms=num_atoms, num_configs=30, deadline_s=80.0)
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
