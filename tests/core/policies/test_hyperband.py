"""Hyperband's brackets: their sizes, their order, and that each of them ends."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcsched.core.actions import StartTrial
from hpcsched.core.enums import Outcome, TrialState
from hpcsched.core.halving import size_of_rung
from hpcsched.core.policies.hyperband import hyperband_plans
from hpcsched.core.settings import HyperbandSettings, RetrySettings, Settings
from tests.support.byhand import ByHand, started
from tests.support.simple_sha import simple_hyperband, simple_sha
from tests.support.tableworld import TableWorld
from tests.support.virtual import NO_TIMEOUTS


def hyperband(big_r: int, eta: int, **changed: Any) -> Settings:
    values: dict[str, Any] = {
        "policy": HyperbandSettings(),
        "max_iterations": big_r,
        "reduction_factor": eta,
        "timeouts": NO_TIMEOUTS,
        "retries": RetrySettings(fail_fast=0),
        "save_at_deadline": False,
    }
    return Settings(**(values | changed))


def table(seed: int) -> Any:
    return lambda trial, iteration: random.Random(f"{seed} {trial} {iteration}").random()


@pytest.mark.parametrize(
    ("big_r", "eta", "sizes"),
    [
        (81, 3, [[81, 27, 9, 3, 1], [34, 11, 3, 1], [15, 5, 1], [8, 2], [5]]),
        (27, 3, [[27, 9, 3, 1], [12, 4, 1], [6, 2], [4]]),
        (64, 4, [[64, 16, 4, 1], [22, 5, 1], [8, 2], [4]]),
        (1, 3, [[1]]),
    ],
)
def test_the_brackets_of_the_paper(big_r: int, eta: int, sizes: list[list[int]]) -> None:
    """T23: n = ceil((s_max + 1) eta^s / (s + 1)), n_i = floor(n eta^-i); for (81, 3) n = 81, 34, 15, 8, 5."""
    plans = hyperband_plans(1, big_r, eta)
    found = [
        [size_of_rung(rung, plan.num_trials, eta) for rung in range(len(plan.milestones))] for plan in plans
    ]
    assert found == sizes
    assert all(plan.milestones[-1] == big_r for plan in plans)


@given(
    r=st.integers(1, 5),
    eta=st.integers(2, 10),
    power=st.integers(0, 12),
    plus=st.sampled_from([-1, 0, 0, 1, 7]),
)
def test_brackets_are_those_of_the_definition_in_exact_fractions(
    r: int, eta: int, power: int, plus: int
) -> None:
    """At and beside powers of eta, where floating point goes wrong.

    Caught: n as `ceil((s_max + 1) / (s + 1) * eta**s)` in floating point, s_max by logarithms (it loses s = 5 for
    R = 243), milestones rounded up.
    """
    big_r = r * eta**power + plus
    assume(r <= big_r)
    expected = simple_hyperband(big_r, eta, r)
    plans = hyperband_plans(r, big_r, eta)
    assert [plan.num_trials for plan in plans] == [n for n, _, _ in expected]
    assert [list(plan.milestones) for plan in plans] == [resources for _, _, resources in expected]
    for plan, (_, sizes, _) in zip(plans, expected, strict=True):
        rungs = range(len(plan.milestones))
        assert [size_of_rung(rung, plan.num_trials, eta) for rung in rungs] == sizes
        assert plan.milestones[0] >= r


def bracket_of_each(big_r: int, eta: int) -> list[int]:
    return [
        number for number, plan in enumerate(hyperband_plans(1, big_r, eta)) for _ in range(plan.num_trials)
    ]


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(9, 3), (27, 3), (16, 4), (16, 2), (20, 3)]),
    num_atoms=st.integers(1, 20),
    seed=st.integers(0, 10**6),
    crashing=st.sampled_from([0.0, 0.3]),
)
def test_each_bracket_is_a_sha_of_its_own_and_ends(
    shape: tuple[int, int], num_atoms: int, seed: int, crashing: float
) -> None:
    """Without a deadline all brackets run once. Whatever the atoms and whoever crashes, in each bracket every trial
    trains as far as SHA of this bracket alone says.

    Caught: the next bracket's trials entered into the one before; brackets that share their ranking.
    """
    big_r, eta = shape
    rng = random.Random(seed)
    brackets = bracket_of_each(big_r, eta)
    durations = [rng.uniform(0.5, 2.0) for _ in brackets]
    crashes = {
        trial: sorted(rng.randint(1, big_r) for _ in range(rng.randint(1, 2)))
        for trial in range(len(brackets))
        if rng.random() < crashing
    }
    world = TableWorld(
        hyperband(big_r, eta),
        table(seed),
        num_atoms=num_atoms,
        crashes=crashes,
        duration_s=lambda t: durations[t],
    )
    scheduler = world.run()
    assert scheduler.why_ended == "the last bracket is done"
    assert world.waiting == []
    seen: dict[int, int] = defaultdict(int)
    for _, trial, iteration in world.results:
        seen[trial] = max(seen[trial], iteration)
    for number, plan in enumerate(hyperband_plans(1, big_r, eta)):
        members = [trial for trial, bracket in enumerate(brackets) if bracket == number]
        _, reached = simple_sha(
            lambda trial, iteration, members=members: world.report(members[trial], iteration),  # type: ignore[misc]
            num_trials=plan.num_trials,
            milestones=plan.milestones,
            eta=eta,
            fails_at={
                members.index(trial): at[1]
                for trial, at in crashes.items()
                if trial in members and len(at) > 1
            },
        )
        assert {trial: seen[trial] for trial in members} == {members[i]: at for i, at in reached.items()}


def test_atoms_that_a_bracket_cannot_use_go_to_the_next_one() -> None:
    """R = 9, eta = 3: 9 trials of bracket s = 2 on 8 atoms. When 8 are done the ninth runs alone: 7 atoms begin s = 1."""
    hand = ByHand(hyperband(9, 3), num_atoms=8)
    assert hand.scheduler.num_requested == 8
    hand.submit(8)
    for trial in range(8):
        hand.report(trial, 1, trial / 10)
        hand.leave(trial)
        if trial == 0:
            hand.submit(1)
    assert hand.scheduler.trials[8].state is TrialState.RUNNING
    assert hand.scheduler.num_requested == 1
    hand.submit(5)
    assert len(hand.scheduler.live()) == 6
    best_of_the_older = [(7, 1), (6, 1)]
    assert started(hand.report(8, 1, 0.95)) == best_of_the_older, "trial 8 is the third and just goes on"


def test_the_sentence_for_explain_names_bracket_and_rung() -> None:
    world = TableWorld(hyperband(9, 3), table(1), num_atoms=4)
    world.run()
    first: dict[int, str] = {}
    for action in world.actions:
        if isinstance(action, StartTrial):
            first.setdefault(action.trial_id, action.because)
    assert first[0] == "bracket s = 2, rung 0: it trains to iteration 1"
    assert first[9] == "bracket s = 1, rung 0: it trains to iteration 3"
    assert first[14] == "bracket s = 0, rung 0: it trains to iteration 9"


def test_with_a_deadline_the_brackets_start_again_until_it_comes() -> None:
    """One round of (9, 3) has 9 + 5 + 3 trials."""
    world = TableWorld(hyperband(9, 3), table(2), num_atoms=4, deadline_s=100.0)
    scheduler = world.run()
    assert scheduler.why_ended == "the deadline of 100 s has passed"
    starts: dict[int, str] = {start.trial_id: start.because for _, start in reversed(world.starts)}
    assert starts[17] == "round 2, bracket s = 2, rung 0: it trains to iteration 1"
    assert starts[17 + 9] == "round 2, bracket s = 1, rung 0: it trains to iteration 3"


def test_an_exhausted_search_closes_the_bracket_that_is_being_filled() -> None:
    """12 configurations: all 9 of s = 2, and 3 of the 5 of s = 1: 3 at iteration 3, 1 at 9."""
    world = TableWorld(hyperband(9, 3), table(3), num_atoms=4, deadline_s=1000.0, num_configs=12)
    scheduler = world.run()
    assert scheduler.why_ended == "the last bracket is done"
    assert Counter(trial.training_iteration for trial in scheduler.trials[:9]) == {1: 6, 3: 2, 9: 1}
    assert Counter(trial.training_iteration for trial in scheduler.trials[9:]) == {3: 2, 9: 1}


def test_a_limit_on_configurations_does_the_same() -> None:
    world = TableWorld(hyperband(9, 3, num_trials=12), table(3), num_atoms=4, deadline_s=1000.0)
    scheduler = world.run()
    assert len(scheduler.trials) == 12
    assert Counter(trial.training_iteration for trial in scheduler.trials[9:]) == {3: 2, 9: 1}


def test_a_trial_of_an_older_bracket_that_crashed_starts_before_new_ones() -> None:
    hand = ByHand(hyperband(9, 3), num_atoms=2)
    hand.submit(2)
    hand.submit(4)
    assert started(hand.leave(0, Outcome.CRASHED)) == [(0, 1)]
