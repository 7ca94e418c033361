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
from statistics import fmean, median

from hpcsched.core.ids import TrialId

MOST_COMPARED = 64
"""Trials (the first ones) that growth is measured on."""
FEWEST_COMPARED = 3
DOUBLINGS = ((2, 4), (3, 6), (4, 8))
"""Iterations, from k to 2 k. Before the second hardly anything is learnt."""
LAST_COMPARED = DOUBLINGS[-1][1]
WIDEST = 10.0
"""Growth counts as at most this, and at least its inverse."""


class Evidence:
    """Best scores of all trials, and the early ones of the first."""

    def __init__(self, *, growth: float, prior_weight: float) -> None:
        self._prior = growth
        self._prior_weight = prior_weight
        self._best: dict[TrialId, float] = {}
        self._best_at: dict[TrialId, int] = {}
        self._early: dict[TrialId, list[float]] = {}
        """By trial, of the first MOST_COMPARED: best score until each of the iterations that growth is measured on."""
        self._num_early = 0
        """Scores in there."""
        self._measured_on = 0
        self._measured = growth

    def report(self, trial_id: TrialId, iteration: int, score: float | None) -> None:
        """Take a result in."""
        best = self._best.get(trial_id)
        if score is not None and (best is None or score > best):
            best = self._best[trial_id] = score
            self._best_at[trial_id] = iteration
        early = self._early.get(trial_id)
        if early is None:
            if len(self._early) == MOST_COMPARED:
                return
            early = self._early[trial_id] = []
        missing = min(iteration, LAST_COMPARED) - len(early)
        if missing > 0:
            early.extend([-math.inf if best is None else best] * missing)
            self._num_early += missing

    def best(self, trial_id: TrialId) -> float:
        """Its best score; -inf before the first."""
        return self._best.get(trial_id, -math.inf)

    def best_at(self, trial_id: TrialId) -> int:
        """Iteration of its best score; 0 before the first."""
        return self._best_at.get(trial_id, 0)

    def growth(self) -> float:
        """g: geometric mean over the doublings that enough trials have seen, and the prior."""
        if self._num_early != self._measured_on:
            self._measured_on = self._num_early
            self._measured = self._measure()
        return self._measured

    def is_growth_known(self) -> bool:
        """Enough trials have shown a doubling."""
        _, after = DOUBLINGS[0]
        return sum(len(early) >= after for early in self._early.values()) >= FEWEST_COMPARED

    def choice_outweighs_training(self) -> bool:
        return self.growth() < 1.0

    def _measure(self) -> float:
        total, weight = self._prior_weight * math.log(self._prior), self._prior_weight
        for before, after in DOUBLINGS:
            pairs = sorted(
                (
                    (early[after - 1], early[before - 1])
                    for early in self._early.values()
                    if len(early) >= after and math.isfinite(early[before - 1])
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
