"""Synchronous halving against its definition, and in the corners that the definition leaves open.

Each property names a deliberate fault in `hpcsched/core/halving.py` that it was seen to catch.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.core.enums import ExperimentState, Mode, Outcome, PreemptReason, TrialState
from hpcsched.core.policies.sha import sha_plan
from hpcsched.core.settings import RetrySettings, Settings, ShaSettings
from tests.support.byhand import ByHand, preempted, started
from tests.support.simple_sha import simple_sha
from tests.support.tableworld import TableWorld
from tests.support.virtual import NO_TIMEOUTS


def sha(num_trials: int, r: int, big_r: int, eta: int, **changed: Any) -> Settings:
    values: dict[str, Any] = {
        "policy": ShaSettings(num_trials),
        "grace_period": r,
        "max_iterations": big_r,
        "reduction_factor": eta,
        "timeouts": NO_TIMEOUTS,
        "retries": RetrySettings(fail_fast=0),
    }
    return Settings(**(values | changed))


def table(seed: int, *, levels: int = 1_000_000, bad: float = 0.0) -> Any:
    """A score for each (trial, iteration); few levels make ties; some results are missing or diverged."""

    def report(trial: int, iteration: int) -> float | str:
        rng = random.Random(f"{seed} {trial} {iteration}")
        if rng.random() < bad:
            return rng.choice(["missing", "nan"])
        return float(rng.randrange(levels))

    return report


def test_81_trials_from_1_to_81_by_3_are_81_27_9_3_1() -> None:
    """T23: SHA(81, 1, 81, 3) = 81 x 1, 27 x 3, 9 x 9, 3 x 27, 1 x 81: who ends at an iteration is n_i - n_(i+1)."""
    world = TableWorld(sha(81, 1, 81, 3), table(1), num_atoms=8)
    scheduler = world.run()
    ends = Counter(trial.training_iteration for trial in scheduler.trials)
    assert ends == {1: 54, 3: 18, 9: 6, 27: 2, 81: 1}
    assert scheduler.why_ended == "the last rung is done"
    assert sum(trial.training_iteration for trial in scheduler.trials) == 54 + 3 * 18 + 9 * 6 + 27 * 2 + 81


def test_where_r_is_no_power_the_best_of_the_last_rung_train_on_to_r() -> None:
    assert sha_plan(64, 1, 100, 4).milestones == (1, 4, 16, 64, 100)
    assert sha_plan(64, 1, 1000, 10).milestones == (1, 10, 100, 1000)
    scheduler = TableWorld(sha(64, 1, 100, 4), table(2), num_atoms=8).run()
    assert Counter(trial.training_iteration for trial in scheduler.trials) == {1: 48, 4: 12, 16: 3, 100: 1}


experiments: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "num_trials": st.integers(1, 40),
        "r": st.integers(1, 3),
        "big_r": st.integers(3, 40),
        "eta": st.integers(2, 4),
        "num_atoms": st.integers(1, 12),
        "seed": st.integers(0, 10**6),
        "levels": st.sampled_from([2, 5, 10**6]),
        "bad": st.sampled_from([0.0, 0.2]),
        "longest_stride": st.sampled_from([1, 1, 4]),
        "lingers": st.sampled_from([0, 0, 2]),
        "repeats": st.booleans(),
        "crashing": st.sampled_from([0.0, 0.3]),
        "mode": st.sampled_from(list(Mode)),
    }
)


def world_of(drawn: dict[str, Any]) -> tuple[TableWorld, dict[str, Any]]:
    """The world, and what the definition needs to know of it."""
    rng = random.Random(drawn["seed"])
    strides = [rng.randint(1, drawn["longest_stride"]) for _ in range(drawn["num_trials"])]
    durations = [rng.uniform(0.5, 3.0) for _ in range(drawn["num_trials"])]
    crashes: dict[int, list[int]] = {}
    for trial in range(drawn["num_trials"]):
        if rng.random() < drawn["crashing"]:
            # Once is retried; the second is for good (retries.crashed = 1).
            crashes[trial] = sorted(rng.randint(1, drawn["big_r"]) for _ in range(rng.randint(1, 2)))
    world = TableWorld(
        sha(drawn["num_trials"], drawn["r"], drawn["big_r"], drawn["eta"], mode=drawn["mode"]),
        table(drawn["seed"], levels=drawn["levels"], bad=drawn["bad"]),
        num_atoms=drawn["num_atoms"],
        duration_s=lambda trial: durations[trial],
        stride=lambda trial: strides[trial],
        repeats=drawn["repeats"],
        crashes=crashes,
        lingers=drawn["lingers"],
    )
    definition = {
        "num_trials": drawn["num_trials"],
        "milestones": sha_plan(drawn["num_trials"], drawn["r"], drawn["big_r"], drawn["eta"]).milestones,
        "eta": drawn["eta"],
        "stride": lambda trial: strides[trial],
        "fails_at": {trial: at[1] for trial, at in crashes.items() if len(at) > 1},
    }
    return world, definition


@settings(max_examples=150, deadline=None)
@given(experiments.filter(lambda drawn: drawn["lingers"] == 0 and drawn["longest_stride"] == 1))
def test_every_trial_trains_exactly_as_far_as_the_definition_says(drawn: dict[str, Any]) -> None:
    """With ties, missing and diverged results, crashes that are retried and crashes that are not.

    Caught: ties to the later trial; a missing score ranked as 0; rounding n eta^-i up; a diverged trial that goes on;
    nobody going on where floor(n eta^-i) is 0.
    """
    world, definition = world_of(drawn)
    scheduler = world.run()
    rungs, reached = simple_sha(world.report, **definition)
    seen = dict.fromkeys(range(drawn["num_trials"]), 0)
    for _, trial, iteration in world.results:
        seen[trial] = max(seen[trial], iteration)
    assert seen == reached
    assert len(scheduler.trials) == drawn["num_trials"]
    for rung, members in enumerate(rungs):
        assert len(members) <= max(1, drawn["num_trials"] // drawn["eta"] ** rung)


@settings(max_examples=80, deadline=None)
@given(experiments.filter(lambda drawn: drawn["longest_stride"] > 1 and drawn["lingers"] == 0))
def test_reports_that_step_over_milestones_count_for_all_of_them(drawn: dict[str, Any]) -> None:
    """A trial that reports every s iterations is compared at its first report at or after each milestone, and takes no
    atom for a milestone that it has passed.

    Caught: a trial that has passed the milestone of its new rung is started for it all the same.
    """
    world, definition = world_of(drawn)
    world.run()
    _, reached = simple_sha(world.report, **definition)
    seen = dict.fromkeys(range(drawn["num_trials"]), 0)
    for _, trial, iteration in world.results:
        seen[trial] = max(seen[trial], iteration)
    assert seen == reached


@settings(max_examples=80, deadline=None)
@given(experiments)
def test_a_rung_starts_only_when_the_one_below_is_done_and_every_search_ends(drawn: dict[str, Any]) -> None:
    """Nobody reports anything above milestone i before the last trial has reached milestone i or has failed, but for
    iterations that a report steps over or that a trial does on its way out. With crashes, late exits and repeated
    reports the search ends by itself (the world raises when nothing happens any more), and nobody is left over.

    Caught: `_advance` with one trial of the rung outstanding (order); a failed trial that does not count as done (the
    search ends with "nothing that is left can be started"); losers that are not dropped (they wait until the end).
    """
    world, definition = world_of(drawn)
    scheduler = world.run()
    assert scheduler.why_ended == "the last rung is done"
    assert all(
        trial.state in {TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED}
        for trial in scheduler.trials
    )
    if (
        drawn["longest_stride"] == 1 and not drawn["lingers"]
    ):  # else a trial that skips to R may decide all rungs at once
        assert world.waiting == [], "everybody who is out is told so at once, not at the end"
    milestones = definition["milestones"]
    slack = drawn["lingers"] * drawn["longest_stride"] + drawn["longest_stride"] - 1
    for i, milestone in enumerate(milestones[:-1]):
        first_there: dict[int, float] = {}
        for time, trial, iteration in world.results:
            if iteration >= milestone:
                first_there.setdefault(trial, time)
        above = [time for time, _, iteration in world.results if iteration > milestone + slack]
        size = max(1, drawn["num_trials"] // drawn["eta"] ** i)
        if above and len(first_there) == size:  # nobody has failed: all of the rung were there
            assert min(above) > max(first_there.values())


def test_the_last_to_arrive_goes_on_without_a_restart() -> None:
    hand = ByHand(sha(2, 1, 4, 2), num_atoms=2)
    hand.submit(2)
    assert preempted(hand.report(0, 1, 0.1)) == [(0, PreemptReason.PAUSE)]
    hand.leave(0)
    assert preempted(hand.report(1, 1, 0.9)) == []
    assert hand.scheduler.trials[1].state is TrialState.RUNNING
    assert hand.scheduler.trials[0].state is TrialState.STOPPED


def test_the_last_to_arrive_is_stopped_when_it_is_not_among_the_best() -> None:
    hand = ByHand(sha(2, 1, 4, 2), num_atoms=2)
    hand.submit(2)
    hand.report(0, 1, 0.9)
    hand.leave(0)
    actions = hand.report(1, 1, 0.1)
    assert preempted(actions) == [(1, PreemptReason.STOP)]
    assert started(actions) == [(0, 1)]
    because = next(action.because for action in actions if preempted([action]))
    assert because == "rung 0: it is not among the best 1 of 2 at iteration 1"


def test_equal_scores_go_to_the_earlier_trial() -> None:
    hand = ByHand(sha(3, 1, 3, 3), num_atoms=3)
    hand.submit(3)
    for trial in (2, 0, 1):
        hand.report(trial, 1, 0.5)
    assert [preempted([action]) for action in hand.actions if preempted([action])] == [
        [(1, PreemptReason.STOP)]
    ]
    assert started(hand.leave(0)) == [(0, 1)]


def test_a_diverged_trial_never_goes_on_but_a_missing_metric_only_ranks_last() -> None:
    """Of four trials two go on. One has diverged, two say nothing, one is bad: the bad one and the first silent one."""
    hand = ByHand(sha(4, 1, 4, 2), num_atoms=4)
    hand.submit(4)
    assert preempted(hand.report(0, 1, None, "inf")) == [(0, PreemptReason.STOP)]
    hand.leave(0)
    for trial, metric in ((1, None), (2, None), (3, 1e-9)):
        hand.report(trial, 1, metric, None if metric else "missing")
    assert hand.scheduler.trials[3].state is TrialState.RUNNING
    assert started(hand.leave(2)) == []
    assert started(hand.leave(1)) == [(1, 1)]
    assert hand.scheduler.trials[2].state is TrialState.STOPPED


def test_a_crash_with_retries_left_keeps_the_rung_waiting_and_a_final_one_does_not() -> None:
    hand = ByHand(sha(2, 1, 4, 2), num_atoms=2)
    hand.submit(2)
    hand.report(0, 1, 0.1)
    hand.leave(0)
    hand.leave(1, Outcome.CRASHED)
    assert started(hand.actions) == [(1, 1)], "the retry"
    assert hand.scheduler.trials[0].state is TrialState.PAUSED
    hand.leave(1, Outcome.CRASHED)
    assert hand.scheduler.trials[1].state is TrialState.FAILED
    assert started(hand.actions) == [(0, 1)], "the failed one is done, and last"


def test_a_trial_that_its_user_stops_counts_as_done() -> None:
    hand = ByHand(sha(2, 1, 4, 2), num_atoms=1)
    hand.submit(2)
    hand.report(0, 1, 0.1)
    hand.leave(0)
    hand.stop(1)
    assert hand.scheduler.trials[0].state is TrialState.PAUSED
    assert started(hand.leave(1)) == [(0, 1)]


def test_a_waiting_trial_that_its_user_stops_counts_as_done() -> None:
    hand = ByHand(sha(2, 1, 4, 2), num_atoms=1)
    hand.submit(2)
    hand.stop(1)
    assert preempted(hand.report(0, 1, 0.1)) == []
    assert hand.scheduler.trials[0].state is TrialState.RUNNING


def test_fewer_configurations_than_n_are_halved_from_what_came() -> None:
    """n = 81 was wanted, 10 came: 10, 3, 1, and then one goes on to R."""
    world = TableWorld(sha(81, 1, 81, 3), table(3), num_atoms=4, num_configs=10)
    scheduler = world.run()
    assert Counter(trial.training_iteration for trial in scheduler.trials) == {1: 7, 3: 2, 81: 1}


def test_when_everybody_fails_the_search_ends() -> None:
    world = TableWorld(sha(9, 1, 9, 3), table(4), crashes={trial: [1, 1] for trial in range(9)})
    scheduler = world.run()
    assert scheduler.state is ExperimentState.FAILED
    assert all(trial.state is TrialState.FAILED for trial in scheduler.trials)


def test_a_trial_whose_script_ends_early_takes_a_place_without_an_atom() -> None:
    """It is the best of rung 0 and of rung 1, though it has ended at iteration 1: rung 1 trains one trial, not two."""
    hand = ByHand(sha(4, 2, 8, 2), num_atoms=4)
    hand.submit(4)
    hand.report(0, 1, 0.9)
    hand.leave(0, Outcome.COMPLETED)
    for trial in (1, 2, 3):
        hand.report(trial, 1, 0.1)
        hand.report(trial, 2, trial / 10)
    assert hand.scheduler.trials[3].state is TrialState.RUNNING
    for trial in (1, 2):
        assert started(hand.leave(trial)) == []
    assert hand.scheduler.trials[1].state is hand.scheduler.trials[2].state is TrialState.STOPPED
    assert preempted(hand.report(3, 4, 0.95)) == [], "0.95 is better than 0.9: it goes on to the last rung"


def test_more_atoms_than_trials_stay_idle() -> None:
    world = TableWorld(sha(3, 1, 9, 3), table(5), num_atoms=12)
    scheduler = world.run()
    assert scheduler.counts.started == 3
    assert all(len(start.placement.atoms) == 1 for _, start in world.starts)
