"""Explore for a fixed share of the time, then everything to the best."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.core.enums import Mode, Outcome, PreemptReason, TrialState
from hpcsched.core.settings import FixedSplitSettings, RetrySettings, Settings
from tests.support.byhand import ByHand, preempted, started
from tests.support.tableworld import SETUP_S, TableWorld
from tests.support.virtual import NO_TIMEOUTS

STOP = PreemptReason.STOP


def fixed_split(fraction: float = 0.3, num_trials: int | None = None, **changed: Any) -> Settings:
    values: dict[str, Any] = {
        "policy": FixedSplitSettings(fraction, num_trials),
        "max_iterations": 100,
        "multiple_of": 1,
        "timeouts": NO_TIMEOUTS,
        "retries": RetrySettings(fail_fast=0),
        "save_at_deadline": False,
    }
    return Settings(**(values | changed))


def test_the_best_at_the_split_gets_all_atoms_when_the_others_have_left() -> None:
    hand = ByHand(fixed_split(0.3), num_atoms=4, deadline_s=20.0)
    hand.submit(4)
    for trial, score in enumerate([0.1, 0.4, 0.3, 0.2]):
        assert preempted(hand.report(trial, 1, score)) == []
    assert preempted(hand.report(0, 2, 0.1)) == [], "5 s, the split is at 6 s"
    assert preempted(hand.report(2, 2, 0.3)) == [(0, STOP), (2, STOP), (3, STOP)]
    for trial in (0, 2):
        assert preempted(hand.leave(trial)) == []
    assert preempted(hand.leave(3)) == [(1, PreemptReason.RESIZE)]
    assert started(hand.leave(1)) == [(1, 4)]
    assert hand.scheduler.num_requested == 0, "nobody new"


def test_ties_at_the_split_go_to_the_earlier_trial_and_unscored_trials_are_last() -> None:
    hand = ByHand(fixed_split(0.1), num_atoms=3, deadline_s=30.0)
    hand.submit(3)
    hand.report(0, 1, None, "nan")
    hand.report(2, 1, 0.5)
    assert preempted(hand.report(1, 1, 0.5)) == [(0, STOP), (2, STOP)]


def test_nobody_is_chosen_before_somebody_has_a_score() -> None:
    hand = ByHand(fixed_split(0.01), num_atoms=2, deadline_s=100.0)
    hand.submit(2)
    assert preempted(hand.report(0, 1, None, "missing")) == []
    assert preempted(hand.report(1, 1, 0.0)) == [(0, STOP)]


def test_trials_take_turns_of_equal_length_when_there_are_more_than_atoms() -> None:
    """N = 2 atoms, n = 5 trials, f T = 30 s: three turns of 10 s, which hold 9 iterations of 1 s and the start."""
    world = TableWorld(
        fixed_split(0.3, 5), lambda trial, iteration: trial + iteration / 1000, num_atoms=2, deadline_s=100.0
    )
    scheduler = world.run()
    assert [trial.training_iteration for trial in scheduler.trials] == [9, 9, 9, 9, 100]
    assert [len(start.placement.atoms) for _, start in world.starts] == [1, 1, 1, 1, 1, 2]
    exploited_at = world.starts[-1][0]
    assert 3 * (SETUP_S + 9.0) <= exploited_at < 30.0, "everybody had its share: no waiting for f T"
    assert scheduler.why_ended == "trial 4, the best of the exploration, has ended: completed"


def test_a_paused_trial_can_be_the_best() -> None:
    world = TableWorld(
        fixed_split(0.3, 5), lambda trial, iteration: -trial + iteration / 1000, num_atoms=2, deadline_s=100.0
    )
    scheduler = world.run()
    assert scheduler.trials[0].training_iteration == 100
    assert world.starts[-1][1].trial_id == 0
    assert len(world.starts[-1][1].placement.atoms) == 2


def test_without_a_number_a_trial_that_ends_makes_room_for_the_next() -> None:
    """R = 5 iterations of 1 s, f T = 7 s, 2 atoms: trials 0 and 1 end, 2 and 3 are at iteration 2 at the split. That the
    best of all has ended does not matter: there is nothing to give it."""
    world = TableWorld(
        fixed_split(0.5, max_iterations=5),
        lambda trial, iteration: float(-trial),
        num_atoms=2,
        deadline_s=14.0,
    )
    scheduler = world.run()
    assert [trial.state for trial in scheduler.trials[:2]] == [TrialState.COMPLETED, TrialState.COMPLETED]
    assert [trial.state for trial in scheduler.trials[2:]] == [TrialState.COMPLETED, TrialState.STOPPED]
    assert [(start.trial_id, len(start.placement.atoms)) for _, start in world.starts[4:]] == [(2, 2)]


def test_when_the_best_crashes_it_comes_back_at_the_size_that_fits_and_when_it_fails_that_is_the_end() -> (
    None
):
    hand = ByHand(fixed_split(0.1), num_atoms=2, deadline_s=100.0)
    hand.submit(2)
    hand.report(0, 1, 0.5)
    hand.now = 10.0
    hand.report(1, 1, 0.1)
    hand.leave(1)
    assert started(hand.leave(0)) == [(0, 2)]
    assert started(hand.leave(0, Outcome.CRASHED)) == [(0, 2)]
    hand.leave(0, Outcome.CRASHED)
    assert hand.scheduler.why_ended == "trial 0, the best of the exploration, has ended: failed"


def test_without_a_deadline_everybody_runs_to_its_end() -> None:
    world = TableWorld(
        fixed_split(0.3, 5, max_iterations=4),
        lambda trial, iteration: float(trial),
        num_atoms=2,
        num_configs=5,
    )
    scheduler = world.run()
    assert [trial.training_iteration for trial in scheduler.trials] == [4] * 5


def test_a_metric_to_be_minimised_is_negated_before() -> None:
    hand = ByHand(fixed_split(0.2, mode=Mode.MIN), num_atoms=2, deadline_s=10.0)
    hand.submit(2)
    hand.report(0, 1, 0.5)
    assert preempted(hand.report(1, 1, 0.1)) == [(0, STOP)]


def test_when_nobody_has_a_score_and_all_had_their_share_the_earliest_goes_on() -> None:
    """f T = 8 s for 2 trials on 1 atom: 4 s each, three iterations of 1 s, all without the metric."""
    world = TableWorld(
        fixed_split(0.2, 2, max_iterations=9),
        lambda trial, iteration: "missing",
        num_atoms=1,
        deadline_s=40.0,
    )
    scheduler = world.run()
    assert [trial.training_iteration for trial in scheduler.trials] == [9, 3]


@settings(max_examples=80, deadline=None)
@given(
    fraction=st.sampled_from([0.05, 0.3, 0.7, 1.0]),
    num_trials=st.one_of(st.none(), st.integers(1, 12)),
    num_configs=st.integers(1, 14),
    num_atoms=st.integers(1, 8),
    multiple_of=st.sampled_from([1, 2]),
    seed=st.integers(0, 10**6),
    crashing=st.sampled_from([0.0, 0.4]),
    lingers=st.sampled_from([0, 1]),
)
def test_every_search_ends_and_after_the_split_there_is_one_trial(
    fraction: float,
    num_trials: int | None,
    num_configs: int,
    num_atoms: int,
    multiple_of: int,
    seed: int,
    crashing: float,
    lingers: int,
) -> None:
    """Before the split every start is on one atom; whatever starts on more is the same trial, when nobody else runs.

    Caught: the best one started while others still hold atoms; a split that forgets those that are just being paused (they
    wait until the end); a best one that is paused and never started (the world raises, or the engine ends the search
    with "nothing that is left can be started").
    """
    rng = random.Random(seed)
    durations = [rng.uniform(0.5, 4.0) for _ in range(num_configs)]
    crashes = {
        trial: sorted(rng.randint(1, 30) for _ in range(2))
        for trial in range(num_configs)
        if rng.random() < crashing
    }
    world = TableWorld(
        fixed_split(fraction, num_trials, multiple_of=multiple_of, max_iterations=30),
        lambda trial, iteration: random.Random(f"{seed} {trial} {iteration}").random(),
        num_atoms=num_atoms,
        num_configs=num_configs,
        deadline_s=60.0,
        duration_s=lambda trial: durations[trial],
        crashes=crashes,
        lingers=lingers,
    )
    scheduler = world.run()
    assert "nothing that is left" not in scheduler.why_ended
    if scheduler.why_ended.startswith("trial "):
        assert world.waiting == [], "the others are dropped at the split, not at the end"
    if num_trials is not None:
        assert scheduler.counts.started <= num_trials
    large = [(time, start) for time, start in world.starts if len(start.placement.atoms) > 1]
    assert len({start.trial_id for _, start in large}) <= 1
    if large:
        at, first = large[0]
        assert not [trial for time, trial, _ in world.results if time > at and trial != first.trial_id]
        assert not [start for time, start in world.starts if time > at and start.trial_id != first.trial_id]
        largest = scheduler.sizes.floor(num_atoms)
        assert all(len(start.placement.atoms) == largest for _, start in large)
