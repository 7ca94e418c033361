"""s(atoms): how much faster a trial trains on so many atoms than on one.

Assumed by name, given as a table, taken from a profile, or measured while the search runs. Between the points of
a table it is interpolated linearly, beyond them it stays flat (algorithms.md 1.9, T18).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Protocol

from hpcsched.core.percentile import RunningPercentile
from hpcsched.core.settings import ScalingSettings

SQRT = {1: 1.0, 2: 1.4, 4: 2.0, 8: 2.8, 16: 4.0, 32: 5.7}
"""The table of the 2020 simulations (algorithms.md 2.2), not the square root itself."""


class Scaling(Protocol):
    def __call__(self, size: int) -> float: ...
    def observe(self, size: int, speedup: float) -> None:
        """A trial trained `speedup` times as fast at `size` atoms as itself at one."""
        ...


class LinearScaling:
    """s(a) = a."""

    def __call__(self, size: int) -> float:
        return float(size)

    def observe(self, size: int, speedup: float) -> None:
        """What was assumed stays assumed."""


class TableScaling:
    """Linear interpolation between the points of a table, flat beyond them."""

    __slots__ = ("_sizes", "_speedups")

    def __init__(self, table: Mapping[int, float]) -> None:
        assert table, "a scaling table has at least one point"
        self._sizes = sorted(table)
        self._speedups = [float(table[size]) for size in self._sizes]

    def __call__(self, size: int) -> float:
        right = bisect_left(self._sizes, size)
        if right == len(self._sizes):
            return self._speedups[-1]
        if right == 0 or self._sizes[right] == size:
            return self._speedups[right]
        low, high = self._sizes[right - 1], self._sizes[right]
        below, above = self._speedups[right - 1], self._speedups[right]
        return below + (above - below) * (size - low) / (high - low)

    def observe(self, size: int, speedup: float) -> None:
        """What was given stays given."""


class MeasuredScaling:
    """The median speed-up seen at each size; linear growth is hoped for beyond the largest size seen.

    Without that hope nothing would ever grow, and so nothing would ever be measured.
    """

    __slots__ = ("_medians",)

    def __init__(self) -> None:
        self._medians: dict[int, RunningPercentile] = {}

    def observe(self, size: int, speedup: float) -> None:
        if size not in self._medians:
            self._medians[size] = RunningPercentile(1, 2)
        self._medians[size].add(speedup)

    def __call__(self, size: int) -> float:
        table = {1: 1.0} | {at: median.value() or 1.0 for at, median in self._medians.items()}
        largest = max(table)
        if size > largest:
            return table[largest] * size / largest
        return TableScaling(table)(size)


def scaling_of(settings: ScalingSettings) -> Scaling:
    """The scaling that the settings describe; a profile goes before an assumption.

    Of a profile with several spans the best one at each size counts: a trial is placed as closely as it can be.
    """
    if settings.spans:
        best: dict[int, float] = {}
        for table in settings.spans.values():
            for size, speedup in table.items():
                best[size] = max(best.get(size, speedup), speedup)
        if best:
            return TableScaling(best)
    assume = settings.assume
    if isinstance(assume, dict):
        return TableScaling(assume)
    if assume == "linear":
        return LinearScaling()
    if assume == "sqrt":
        return TableScaling(SQRT)
    if assume == "none":
        return TableScaling({1: 1.0})
    return MeasuredScaling()
