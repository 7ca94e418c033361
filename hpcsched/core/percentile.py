"""A percentile of a growing collection, kept up to date in O(log n) a value.

The percentile at the fraction q = a / b of n sorted values x[0] <= ... <= x[n-1] is taken at the position
(n - 1) q, linearly interpolated between its neighbours (what NumPy and Ray Tune call "linear"). The position is
(n - 1) a / b exactly, in integers: its whole part is a rank and its remainder decides whether anything is
interpolated at all. In floating point the position 6 becomes 6.000...1 for q = 1 - 1/3, and a trial whose score
*is* the cutoff is paused.

When n grows by one the rank grows by 0 or 1 (q < 1), so two heaps are enough: the rank + 1 smallest values
(largest on top) and all others (smallest on top).

What is measured at every report (seconds of an iteration, speed-ups) would grow with the run: 2,000 reports a second are five gigabytes a day.
There every value counts until 8,192 are kept, then every second of them and every second one that comes, and so on.
"""

from __future__ import annotations

from array import array
from heapq import heappush, heappushpop

MOST_KEPT = 8192
"""A sample is thinned when it has so many values: the median of half of them is within one rank in a hundred."""


class RunningPercentile:
    """The percentile at `numerator / denominator` (0 <= q < 1) of all values added so far."""

    __slots__ = ("_above", "_below", "_denominator", "_known", "_numerator", "num")

    def __init__(self, numerator: int, denominator: int) -> None:
        assert 0 <= numerator < denominator, "the fraction must lie in [0, 1)"
        self._numerator = numerator
        self._denominator = denominator
        self._below: list[float] = []
        """Negated: a heap of Python has its smallest item on top."""
        self._above: list[float] = []
        self._known: float | None = None
        """The value, as long as nothing has been added since it was asked for."""
        self.num = 0

    def add(self, value: float) -> None:
        """Take one more value in: finite, never NaN."""
        target = self.num * self._numerator // self._denominator + 1
        self.num += 1
        self._known = None
        below, above = self._below, self._above
        if below and value < -below[0]:
            if len(below) < target:
                heappush(below, -value)
            else:
                heappush(above, -heappushpop(below, -value))
        elif len(below) < target:
            heappush(below, -heappushpop(above, value))
        else:
            heappush(above, value)

    def value(self) -> float | None:
        """The percentile now; None before the first value."""
        if self._known is None and self.num:
            self._known = self._compute()
        return self._known

    def _compute(self) -> float:
        low = -self._below[0]
        part = (self.num - 1) * self._numerator % self._denominator
        if not part or not self._above:
            return low
        high = self._above[0]
        if high == low:
            return low  # equal scores must compare equal to their cutoff, whatever rounding does
        weight = part / self._denominator
        return low * (1.0 - weight) + high * weight


class SampledPercentile:
    """As `RunningPercentile`, of evenly spaced values out of all that were added, in bounded memory; exact for the first 8,191."""

    __slots__ = ("_exact", "_fraction", "_kept", "_most", "_stride", "num")

    def __init__(self, numerator: int, denominator: int, *, most: int = MOST_KEPT) -> None:
        self._fraction = (numerator, denominator)
        self._exact = RunningPercentile(numerator, denominator)
        self._most = most
        self._kept = array("d")
        """In the order in which they came."""
        self._stride = 1
        """Every so many-th value is kept."""
        self.num = 0
        """Values added, kept or not."""

    def add(self, value: float) -> None:
        """Take one more value in: finite, never NaN."""
        if self.num % self._stride == 0:
            self._kept.append(value)
            self._exact.add(value)
            if len(self._kept) == self._most:
                self._thin()
        self.num += 1

    def value(self) -> float | None:
        """The percentile now; None before the first value."""
        return self._exact.value()

    def _thin(self) -> None:
        self._kept = self._kept[::2]
        self._stride *= 2
        self._exact = RunningPercentile(*self._fraction)
        for value in self._kept:
            self._exact.add(value)
