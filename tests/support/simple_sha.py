"""SHA and Hyperband once more, written from their definitions and for nothing but to be read: lists, sorts, no clock.

SHA (Jamieson and Talwalkar 2016): n_i = floor(n eta^-i) trials train to r eta^i; when all of them are there the best
floor(n_i / eta) go on. Hyperband (Li et al. 2018): for s = s_max .. 0 SHA with n = ceil((s_max + 1) / (s + 1) eta^s)
trials and the least resource R eta^-s.

Who goes on does not depend on the order in which trials run, so there is no order here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor

Report = Callable[[int, int], "float | str"]
"""(trial, iteration) -> score, higher is better; or "missing", or "nan"."""


def simple_sha(
    report: Report,
    *,
    num_trials: int,
    milestones: Sequence[int],
    eta: int,
    stride: Callable[[int], int] = lambda _: 1,
    fails_at: Mapping[int, int] | None = None,
) -> tuple[list[list[int]], dict[int, int]]:
    """(the members of each rung, the last iteration that each trial reports).

    A trial reports every `stride` iterations and once at the last milestone; it dies before it reports an iteration at or
    after `fails_at`.
    """
    fails = fails_at or {}
    last = milestones[-1]
    reached = dict.fromkeys(range(num_trials), 0)
    rungs = []
    alive = list(range(num_trials))
    for i, milestone in enumerate(milestones):
        if not alive:
            break
        rungs.append(sorted(alive))
        ranking = []
        for trial in alive:
            while reached[trial] < milestone:
                goes_to = min(last, reached[trial] + stride(trial))
                if trial in fails and goes_to >= fails[trial]:
                    break
                reached[trial] = goes_to
            else:
                shown = report(trial, reached[trial])
                if shown == "nan":
                    continue  # it has diverged
                ranking.append((shown == "missing", -shown if isinstance(shown, float) else 0.0, trial))
        keep = max(1, floor(Fraction(num_trials, eta ** (i + 1))))
        alive = [trial for _, _, trial in sorted(ranking)[:keep]]
    return rungs, reached


def simple_hyperband(big_r: int, eta: int, r: int = 1) -> list[tuple[int, list[int], list[int]]]:
    """(n, n_i, r_i) of each bracket of one round, s_max first."""
    s_max = 0
    while Fraction(big_r, eta ** (s_max + 1)) >= r:
        s_max += 1
    brackets = []
    for s in reversed(range(s_max + 1)):
        n = ceil(Fraction(s_max + 1, s + 1) * eta**s)
        sizes = [floor(Fraction(n, eta**i)) for i in range(s + 1)]
        resources = [floor(Fraction(big_r, eta**s) * eta**i) for i in range(s + 1)]
        brackets.append((n, sizes, resources))
    return brackets
