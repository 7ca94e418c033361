"""A run's recorded curves with futures: what might have come of a trial that was cut before its end.

A trial that another policy trains further than the run did has no record there. One draw (a seed) gives it one future:

- borrowed, as far as any record goes: of the `NUM_NEAREST` longer trials whose metric at the last common iteration is nearest to
  its own, one is drawn, and the trial changes from there as that one did; where that one ends, the next is drawn in the
  same way (hot-deck imputation; Andridge and Little 2010);
- beyond the longest record each doubling of the iterations brings f times the change of the doubling before, f drawn from 0
  (it stays as it is) to 1 (every doubling brings the same).

Changes are counted on the scale on which learning curves are straightest (power laws): differences of the logarithm of a
loss, where less is better and all values are above 0; of 1 - metric, where more is better and all lie in 0 to 1; else of the
metric itself. Iterations take the mean of those recorded. Different draws show how much hangs on it. It leans to the
good side, for those that were trained further were the promising ones.

A search that asks for more configurations than the run tried is given tried ones again, drawn with replacement, with
futures of their own (unless the search space was exhausted): nobody finds a better configuration than the run saw.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from statistics import median
from typing import NamedTuple

import numpy as np

from hpcsched.core.enums import Mode
from hpcsched.core.events import Config
from hpcsched.sim.table import Record

NUM_NEAREST = 5
_LEAST = 1e-12


class Scale(Enum):
    """On which changes are counted."""

    PLAIN = "plain"
    LOSS = "loss"
    SHARE = "share"

    def of(self, metric: float) -> float:
        if self is Scale.LOSS:
            return math.log(max(_LEAST, metric))
        return -math.log(max(_LEAST, 1.0 - metric)) if self is Scale.SHARE else metric

    def back(self, value: float) -> float:
        if self is Scale.LOSS:
            return math.exp(min(value, 700.0))
        return 1.0 - math.exp(-max(value, -700.0)) if self is Scale.SHARE else value


def scale_of(metrics: Sequence[float], mode: Mode) -> Scale:
    """From all finite metrics of a run."""
    if not metrics:
        return Scale.PLAIN
    low, high = min(metrics), max(metrics)
    if mode is Mode.MIN and low > 0.0:
        return Scale.LOSS
    return Scale.SHARE if mode is Mode.MAX and low >= 0.0 and high < 1.0 else Scale.PLAIN


class Trend(NamedTuple):
    """How it goes on beyond all records."""

    gain: float
    """Of the last doubling, on the scale; 0 where it got worse."""
    fading: float
    """f."""
    scale: Scale

    def value(self, last: float, doublings: float) -> float:
        if self.gain == 0.0:
            return last
        f = self.fading
        more = doublings if f >= 1.0 else f * (1.0 - f**doublings) / (1.0 - f)
        return self.scale.back(self.scale.of(last) + self.gain * more)


FLAT = Trend(0.0, 0.0, Scale.PLAIN)


class BorrowedCurve:
    """A record, and one future of it."""

    __slots__ = ("_durations", "_mean_s", "_metrics", "_trend", "length", "recorded", "step_s")

    def __init__(self, record: Record, future: Sequence[float] = (), trend: Trend = FLAT) -> None:
        self._metrics = [*record.metrics, *future]
        self._trend = trend
        self._durations = record.durations_s
        self._mean_s = record.mean_s
        self.step_s: float | None = None
        self.length: int | None = None
        self.recorded: int | None = len(record.metrics)

    def metric(self, iteration: int) -> float:
        metrics = self._metrics
        if iteration <= len(metrics):
            return metrics[iteration - 1]
        return self._trend.value(metrics[-1], math.log2(iteration / len(metrics)))

    def duration_s(self, iteration: int) -> float:
        durations = self._durations
        return durations[iteration - 1] if iteration <= len(durations) else self._mean_s


class Donors:
    """All records, ready to be asked who is longer and near."""

    def __init__(self, records: Sequence[Record], *, mode: Mode) -> None:
        self.records = records
        self._sign = 1.0 if mode is Mode.MAX else -1.0
        self._by_length = sorted(range(len(records)), key=lambda k: len(records[k].metrics))
        self._lengths = [len(records[k].metrics) for k in self._by_length]
        self.scale = scale_of(
            [value for record in records for value in record.metrics if math.isfinite(value)], mode
        )

    def future(self, record: Record, rng: np.random.Generator) -> list[float]:
        """Values after the record's last, up to the end of the longest."""
        scale = self.scale
        at, value = len(record.metrics), record.metrics[-1]
        future: list[float] = []
        while math.isfinite(value):
            donor = self._donor(at, value, rng)
            if donor is None:
                break
            base = scale.of(value) - scale.of(donor.metrics[at - 1])
            for found in donor.metrics[at:]:
                if math.isfinite(found):
                    future.append(scale.back(base + scale.of(found)))
                else:
                    future.append(future[-1] if future else value)
            at, value = len(donor.metrics), future[-1]
        return future

    def trend(self, metrics: Sequence[float], rng: np.random.Generator) -> Trend:
        """From the last eighth of the values and the eighth before half the iterations."""
        fading = float(rng.random())
        half = len(metrics) // 2
        width = max(1, len(metrics) // 8)
        late = [value for value in metrics[-width:] if math.isfinite(value)]
        early = [value for value in metrics[max(0, half - width) : half] if math.isfinite(value)]
        if not late or not early:
            return FLAT
        better = self._sign * (median(late) - median(early)) > 0
        gain = self.scale.of(median(late)) - self.scale.of(median(early))
        return Trend(gain if better else 0.0, fading, self.scale)

    def _donor(self, at: int, value: float, rng: np.random.Generator) -> Record | None:
        longer = self._by_length[bisect_left(self._lengths, at + 1) :]
        able = [
            self.records[k]
            for k in longer
            if math.isfinite(self.records[k].metrics[at - 1]) and math.isfinite(self.records[k].metrics[-1])
        ]
        if not able:
            return None
        near = sorted(able, key=lambda record: abs(record.metrics[at - 1] - value))[:NUM_NEAREST]
        return near[int(rng.integers(len(near)))]


class BorrowedWorkload:
    """The trials of a run in their order, then (unless `exhausted`) redrawn ones; one draw of futures a seed."""

    def __init__(
        self, configs: Sequence[Config], donors: Donors, seed: int, *, exhausted: bool, hold: bool = False
    ) -> None:
        """`hold`: no futures at all, every curve is held at its last recorded value."""
        self._configs = configs
        self._donors = donors
        self._seed = seed
        self._exhausted = exhausted
        self._hold = hold

    def config(self, trial_id: int) -> Config | None:
        index = self._index(trial_id)
        return None if index is None else self._configs[index]

    def curve(self, trial_id: int, config: Config) -> BorrowedCurve:  # noqa: ARG002  # the protocol: the number says it
        index = self._index(trial_id)
        assert index is not None, "it was given a configuration"
        record = self._donors.records[index]
        if self._hold:
            return BorrowedCurve(record)
        rng = self._rng(4, trial_id)
        future = self._donors.future(record, rng)
        return BorrowedCurve(record, future, self._donors.trend([*record.metrics, *future], rng))

    def _index(self, trial_id: int) -> int | None:
        if trial_id < len(self._configs):
            return trial_id
        return None if self._exhausted else int(self._rng(5, trial_id).integers(len(self._configs)))

    def _rng(self, purpose: int, trial_id: int) -> np.random.Generator:
        return np.random.default_rng([self._seed & 0xFFFFFFFF, purpose, trial_id])
