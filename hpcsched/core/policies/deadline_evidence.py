"""What a search has shown so far: how its trials rank, how well early ranks foretell later ones, how fast all grow.

Theory. The score of trial i after k iterations, among all trials that could be there, is taken as a normal deviate
z_i(k) in units of the spread sigma(k) of the better half. Two numbers describe how that goes on:

- rho, the correlation of z(k) with z(2 k). Over several doublings it is taken as a Markov chain: z(k) and z(K) correlate
  with rho^log2(K / k). Raw random configurations show 0.9 and more, tuned ones 0.6 to 0.8.
- g, the growth of everybody from k to 2 k in units of sigma(2 k).

Both are measured on this very search, at rungs half a doubling apart, by trials that have reached both ends; until there
are enough of them a prior stands in. A trial's score at a rung is the best it had until then: at the deadline its best
checkpoint counts. Recording a rung costs O(log trials) comparisons; everything else is computed when it is asked for, on
at most `MOST_COMPARED` trials.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from functools import lru_cache
from operator import itemgetter
from statistics import NormalDist, fmean, median

from hpcsched.core.ids import TrialId

NORMAL = NormalDist()
MOST_COMPARED = 64
"""Trials (the latest ones) that a correlation is computed on."""
FEWEST_COMPARED = 3
FEWEST_FORETOLD = 5
WARM_UP = 4
"""Iterations whose growth says nothing about the later ones."""
RISING_RUNGS = 2
"""The latest rungs, all of which must show it."""
FALLING = 0.7
"""Growth of a doubling over that of the one before from which scores do not count as rising at all."""
DOUBLING = 2
"""Rungs a doubling."""


def rungs_until(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 11, 16, ...: iterations at which trials are compared, half a doubling apart."""
    rungs: list[int] = []
    step = 0
    while (at := math.floor(2 ** (step / DOUBLING) + 0.5)) <= most:
        if not rungs or at > rungs[-1]:
            rungs.append(at)
        step += 1
    return rungs


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
    """Scores of all trials at the rungs."""

    def __init__(self, max_iterations: int, *, rho: float, growth: float, prior_weight: float) -> None:
        self.rungs = rungs_until(max_iterations)
        self._rho = rho
        self._growth = growth
        self._prior_weight = prior_weight
        self._best: dict[TrialId, float] = {}
        self._at: dict[TrialId, list[float]] = {}
        """By trial: best score until each rung it has reached."""
        self._sorted: list[list[float]] = [[] for _ in self.rungs]
        """By rung, ascending."""
        self._order: list[list[TrialId]] = [[] for _ in self.rungs]
        """By rung, in order of arrival."""
        self._left: list[int] = [0] * (len(self.rungs) + 1)
        """Trials that do not run any more, by the number of rungs they reached."""
        self._is_out: set[TrialId] = set()
        self._rhos = [rho] * len(self.rungs)
        self.num_seen = 0
        """Trials that have reached a rung."""

    # ---- what happens

    def report(self, trial_id: TrialId, iteration: int, score: float | None) -> int | None:
        """Take a result in. The number of the rung it has just reached, or None."""
        best = self._best.get(trial_id)
        if score is not None and (best is None or score > best):
            best = self._best[trial_id] = score
        at = self._at.get(trial_id)
        if at is None:
            at = self._at[trial_id] = []
        num = len(at)
        rungs = self.rungs
        if num == len(rungs) or iteration < rungs[num]:
            return None
        value = -math.inf if best is None else best
        while num < len(rungs) and iteration >= rungs[num]:
            if not num:
                self.num_seen += 1
            at.append(value)
            insort(self._sorted[num], value)
            self._order[num].append(trial_id)
            num += 1
        return num - 1

    def left(self, trial_id: TrialId) -> None:
        """It does not run any more."""
        if trial_id not in self._is_out and trial_id in self._at:
            self._is_out.add(trial_id)
            self._left[len(self._at[trial_id])] += 1

    def came_back(self, trial_id: TrialId) -> None:
        if trial_id in self._is_out:
            self._is_out.remove(trial_id)
            self._left[len(self._at[trial_id])] -= 1

    # ---- how trials rank

    def best(self, trial_id: TrialId) -> float:
        return self._best.get(trial_id, -math.inf)

    def num_rungs(self, trial_id: TrialId) -> int:
        """Rungs that the trial has reached."""
        return len(self._at.get(trial_id, ()))

    def standing(self, trial_id: TrialId, rung: int) -> tuple[int, int]:
        """(place from 1, of how many) at a rung; those who ended before it count as behind, as far as
        the ranks at which they ended foretell those here."""
        value = self._at[trial_id][rung]
        scores = self._sorted[rung]
        better = len(scores) - bisect_right(scores, value)
        equal = bisect_right(scores, value) - bisect_left(scores, value)
        behind = 0.0
        for reached in range(1, rung + 1):
            num = self._left[reached]
            if num:
                doublings = math.log2(self.rungs[rung] / self.rungs[reached - 1])
                behind += num * math.pow(self._rhos[reached - 1], doublings)
        return better + (equal + 1) // 2, len(scores) + round(behind)

    def z(self, trial_id: TrialId) -> tuple[float, int]:
        """(z, iterations at which it was seen), at the highest rung that enough trials have reached; (0, 0) at first."""
        rung = self.num_rungs(trial_id) - 1
        while rung >= 0:
            place, num = self.standing(trial_id, rung)
            if len(self._order[rung]) >= FEWEST_COMPARED or (num > 1 and rung == 0):
                return deviate(place, num), self.rungs[rung]
            rung -= 1
        return 0.0, 0

    def behind(self, trial_id: TrialId, iterations: int) -> float:
        """Share of the trials that reached the rung of so many iterations which are better there."""
        rung = bisect_left(self.rungs, iterations)
        scores = self._sorted[rung]
        value = self._at[trial_id][rung]
        return (len(scores) - bisect_right(scores, value)) / len(scores)

    # ---- how scores go on

    def rho(self) -> tuple[float, ...]:
        """By rung: the correlation a doubling that the ranks there have shown with those as far on as can be seen.

        Not with the next rung: where curves cross late, neighbours agree all the way and foretell nothing."""
        far = len(self.rungs) - 1
        fewest = max(FEWEST_FORETOLD, min(MOST_COMPARED, self.num_seen) // 4)
        while far > 0 and len(self._order[far]) < fewest:
            far -= 1
        num = len(self._order[far][-MOST_COMPARED:])
        rhos = []
        for rung, at in enumerate(self.rungs):
            rho = self._rho
            if rung < far and self.rungs[far] >= 2 * at:
                doublings = math.log2(self.rungs[far] / at)
                seen = math.pow(max(0.01, _spearman(self._pairs(rung, far))), 1 / doublings)
                rho = (rho * self._prior_weight + seen * num) / (self._prior_weight + num)
            rhos.append(min(0.99, rho))
        self._rhos = rhos
        return tuple(rhos)

    def growth(self) -> tuple[float, float]:
        """(growth of the better half over the latest doubling that enough trials have seen, in spreads; at which iteration)."""
        for rung in range(len(self.rungs) - DOUBLING - 1, -1, -1):
            pairs = sorted(self._pairs(rung, rung + DOUBLING), key=lambda pair: pair[1], reverse=True)
            if len(pairs) >= FEWEST_COMPARED:
                half = pairs[: (len(pairs) + 1) // 2]
                grown = fmean(after - before for before, after in half)
                spread = spread_of([after for _, after in pairs])
                if spread > 0 and math.isfinite(grown):
                    seen = min(4.0, grown / spread)
                    weight = len(pairs)
                    prior = self._prior_weight / 2
                    middle = math.sqrt(self.rungs[rung] * self.rungs[rung + DOUBLING])
                    return (seen * weight + self._growth * prior) / (weight + prior), middle
        return self._growth, 1.0

    def rising(self) -> float:
        """Do the scores of the better half still grow faster with every doubling? 1: yes; 0: each doubling brings clearly
        less than the one before, as late in a training; 0 also when nothing is known. In the score's own units."""
        lowest: float | None = None
        left = RISING_RUNGS
        for rung in range(len(self.rungs) - DOUBLING - 1, DOUBLING - 1, -1):
            if self.rungs[rung - DOUBLING] < WARM_UP or len(self._order[rung + DOUBLING]) < FEWEST_COMPARED:
                continue
            ratio = self._acceleration(rung)
            lowest = ratio if lowest is None else min(lowest, ratio)
            left -= 1
            if not left:
                break
        if lowest is None:
            return 0.0
        return min(1.0, max(0.0, (lowest - FALLING) / (1 - FALLING)))

    def _acceleration(self, rung: int) -> float:
        """Growth of the better half in the doubling after a rung over that in the one before."""
        triples = sorted(
            (
                self._at[trial_id][rung - DOUBLING : rung + DOUBLING + 1 : DOUBLING]
                for trial_id in self._order[rung + DOUBLING][-MOST_COMPARED:]
            ),
            key=itemgetter(2),
            reverse=True,
        )
        half = [triple for triple in triples[: (len(triples) + 1) // 2] if math.isfinite(triple[0])]
        before = sum(triple[1] - triple[0] for triple in half)
        after = sum(triple[2] - triple[1] for triple in half)
        if before <= 0:
            return 0.0
        first, middle, last = self.rungs[rung - DOUBLING], self.rungs[rung], self.rungs[rung + DOUBLING]
        return after / before * math.log2(middle / first) / math.log2(last / middle)

    def _pairs(self, rung: int, later: int) -> list[tuple[float, float]]:
        """Scores at two rungs, of the latest trials that reached both."""
        at = self._at
        pairs = [
            (at[trial_id][rung], at[trial_id][later]) for trial_id in self._order[later][-MOST_COMPARED:]
        ]
        return [pair for pair in pairs if math.isfinite(pair[0])]


def spread_of(scores: list[float]) -> float:
    """Standard deviation of normal deviates, told by the better half: diverged trials do not count."""
    ranked = sorted(scores, reverse=True)
    half = ranked[: (len(ranked) + 1) // 2]
    return (fmean(half) - median(ranked)) / 0.8


def _spearman(pairs: list[tuple[float, float]]) -> float:
    before, after = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    middle = (len(pairs) - 1) / 2
    product = sum((a - middle) * (b - middle) for a, b in zip(before, after, strict=True))
    size = math.sqrt(sum((a - middle) ** 2 for a in before) * sum((b - middle) ** 2 for b in after))
    return product / size if size else 0.0


def _ranks(values: list[float]) -> list[float]:
    """Ranks from 0; equal values share the mean of theirs."""
    ranked = sorted(values)
    return [(bisect_left(ranked, value) + bisect_right(ranked, value) - 1) / 2 for value in values]
