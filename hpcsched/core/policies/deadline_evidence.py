"""What a search has shown so far: how good its trials are, and whether choice or training matters more.

Theory. Take the scores of all trials after k iterations, sigma(k) the spread of their better half, and the growth g of that half
from k to 2 k in units of sigma(2 k). It says which of two things decides how good the best model will be:

- g > 1: a doubling of the training moves a trial further than trials differ. Training outweighs choice; what is still to
  be grown reorders those who run, so their ranks foretell little. Tuned configurations look like this: 1.2 to 6.
- g < 1: trials differ by more than a doubling brings. Choice outweighs training, and ranks foretell much. The synthetic
  workloads of raw random configurations look like this: 0.1 to 0.7.

It is measured early, over the doublings that end at 8 iterations or before, which hardly any trial misses: those that are stopped
later do not bias it. Scores are the best each trial had until then; at the deadline its best checkpoint counts.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist, fmean, median

from hpcsched.core.ids import TrialId

NORMAL = NormalDist()
MOST_COMPARED = 64
"""Trials (the first ones) that growth is measured on."""
FEWEST_COMPARED = 3
RUNGS = (2, 3, 4, 6, 8)
"""Iterations at which scores are kept. Before the second hardly anything is learnt."""
DOUBLINGS = ((0, 2), (1, 3), (2, 4))
"""Of the rungs: from k to 2 k."""
WIDEST = 10.0
"""Growth counts as at most this, and at least its inverse."""


@lru_cache(maxsize=4096)
def deviate(place: int, num: int) -> float:
    """Expected z of the `place`-th best (from 1) of `num` normal deviates (Blom's approximation)."""
    return NORMAL.inv_cdf((num - place + 0.625) / (num + 0.25))


@lru_cache(maxsize=4096)
def top_mean(top: int, num: int) -> float:
    """Expected mean z of the best `top` of `num`."""
    return fmean(deviate(place, num) for place in range(1, top + 1))


@lru_cache(maxsize=4096)
def top_variance(top: int, num: int) -> float:
    """Variance of z among the best `top` of `num`: of their expected places, and of all of them when nobody is left out."""
    if top >= num:
        return 1.0
    middle = top_mean(top, num)
    return fmean((deviate(place, num) - middle) ** 2 for place in range(1, top + 1))


class Evidence:
    """Best scores of all trials, and the early ones of the first."""

    def __init__(self, *, growth: float, prior_weight: float) -> None:
        self._prior = growth
        self._prior_weight = prior_weight
        self._best: dict[TrialId, float] = {}
        self._early: dict[TrialId, list[float]] = {}
        """By trial, of the first MOST_COMPARED: best score until each of the RUNGS it has reached."""
        self._num_early = 0
        """Scores in there."""
        self._measured_on = 0
        self._measured = growth

    @property
    def num_seen(self) -> int:
        """Trials that have reported a score."""
        return len(self._best)

    def report(self, trial_id: TrialId, iteration: int, score: float | None) -> None:
        """Take a result in."""
        best = self._best.get(trial_id)
        if score is not None and (best is None or score > best):
            best = self._best[trial_id] = score
        early = self._early.get(trial_id)
        if early is None:
            if len(self._early) == MOST_COMPARED:
                return
            early = self._early[trial_id] = []
        while len(early) < len(RUNGS) and iteration >= RUNGS[len(early)]:
            early.append(-math.inf if best is None else best)
            self._num_early += 1

    def best(self, trial_id: TrialId) -> float:
        """Its best score; -inf before the first."""
        return self._best.get(trial_id, -math.inf)

    def growth(self) -> float:
        """g: geometric mean over the doublings that enough trials have seen, and the prior."""
        if self._num_early != self._measured_on:
            self._measured_on = self._num_early
            self._measured = self._measure()
        return self._measured

    def choice_outweighs_training(self) -> bool:
        return self.growth() < 1.0

    def _measure(self) -> float:
        total, weight = self._prior_weight * math.log(self._prior), self._prior_weight
        for before, after in DOUBLINGS:
            pairs = sorted(
                (
                    (early[after], early[before])
                    for early in self._early.values()
                    if len(early) > after and math.isfinite(early[before])
                ),
                reverse=True,
            )
            if len(pairs) < FEWEST_COMPARED:
                continue
            half = pairs[: (len(pairs) + 1) // 2]
            spread = spread_of([later for later, _ in pairs])
            grown = fmean(later - earlier for later, earlier in half)
            if spread > 0 and math.isfinite(grown):
                total += len(pairs) * math.log(min(WIDEST, max(1 / WIDEST, grown / spread)))
                weight += len(pairs)
        return math.exp(total / weight)


def spread_of(scores: list[float]) -> float:
    """Standard deviation of normal deviates, told by the better half: diverged trials do not count. `scores`: best first."""
    half = scores[: (len(scores) + 1) // 2]
    return (fmean(half) - median(scores)) / 0.8
