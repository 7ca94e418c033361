"""ASHA and SHA once more, written from their definitions and for nothing but to be read: lists, sorts, one worker loop.

ASHA (Li et al. 2020, algorithm 2, in the variant that goes on without a pause when the arrival itself is in the top):

* rungs r, r eta, r eta^2, ... below R; a trial's score at a rung is its result there;
* on arrival at a rung of n results (its own among them) a trial goes on when it is among the best floor(n / eta), else it
  waits there;
* a free worker takes, from the highest rung down, the best waiting trial that is among the best floor(n / eta) of its
  rung; else a new trial; else nothing;
* at R a trial is done.

SHA (Jamieson and Talwalkar 2016): n_i = floor(n eta^-i) trials train to r eta^i; when all of them are there the best
floor(n_i / eta) go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Score = Callable[[int, int], float]
"""(trial, iteration) -> score, higher is better, all different."""


class Result(NamedTuple):
    time: float
    trial: int
    iteration: int


def rungs_of(r: int, big_r: int, eta: int) -> list[int]:
    """r, r eta, ... up to R (R itself included when it is one)."""
    rungs = [r]
    while rungs[-1] * eta <= big_r:
        rungs.append(rungs[-1] * eta)
    return rungs


def simple_asha(
    score: Score,
    *,
    num_trials: int,
    num_workers: int,
    r: int,
    big_r: int,
    eta: int,
    step_s: Callable[[int], float],
    start_s: float,
    deadline_s: float,
) -> list[Result]:
    """All results by the deadline, in order."""
    rungs = [milestone for milestone in rungs_of(r, big_r, eta) if milestone < big_r]
    recorded: dict[int, dict[int, float]] = {milestone: {} for milestone in rungs}
    waiting: dict[int, int] = {}  # trial -> the rung it waits at
    reached: dict[int, int] = {}  # trial -> iterations done
    busy: list[tuple[float, int, int]] = []  # (when its next result comes, order, trial)
    results: list[Result] = []
    order = 0
    next_new = 0
    now = 0.0

    def best_of(milestone: int) -> list[int]:
        entries = sorted(recorded[milestone], key=lambda trial: -recorded[milestone][trial])
        return entries[: len(entries) // eta]

    def choose() -> int | None:
        nonlocal next_new
        for milestone in reversed(rungs):
            for trial in best_of(milestone):
                if waiting.get(trial) == milestone:
                    del waiting[trial]
                    return trial
        if next_new < num_trials:
            next_new += 1
            return next_new - 1
        return None

    while True:
        while len(busy) < num_workers:
            trial = choose()
            if trial is None:
                break
            order += 1
            busy.append(((now + start_s) + step_s(trial), order, trial))
        if not busy:
            return results
        busy.sort()
        now, _, trial = busy.pop(0)
        if now > deadline_s:
            return results
        iteration = reached[trial] = reached.get(trial, 0) + 1
        results.append(Result(now, trial, iteration))
        if iteration >= big_r:
            continue
        goes_on = True
        if iteration in recorded:
            recorded[iteration][trial] = score(trial, iteration)
            goes_on = trial in best_of(iteration)
        if goes_on:
            order += 1
            busy.append((now + step_s(trial), order, trial))
        else:
            waiting[trial] = iteration


def simple_sha(score: Score, *, num_trials: int, r: int, big_r: int, eta: int) -> dict[int, int]:
    """Iterations that each trial reaches; no clock, for who goes on does not depend on it."""
    alive = list(range(num_trials))
    reached: dict[int, int] = {}
    for milestone in rungs_of(r, big_r, eta):
        for trial in alive:
            reached[trial] = milestone
        alive = sorted(alive, key=lambda trial: -score(trial, milestone))[: len(alive) // eta]
        if not alive:
            break
    else:
        # Whoever is through the last rung trains on to R.
        for trial in alive:
            reached[trial] = big_r
    return reached
