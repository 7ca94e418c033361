"""s(atoms, span): how much faster a trial trains on so many atoms, so far apart, than on one.

Assumed by name, given as a table, taken from a profile, or measured while the search runs. Between the points of
a table it is interpolated linearly, beyond them it stays flat (algorithms.md 1.9, T18). What is assumed or given as a
table knows no distance. A profile and what is measured do: each span (`topology.span`) has a curve of its own, and one
without points takes that of the next nearer span, then of the next farther one (nothing is known against it).

What is measured is a ratio of iteration times of one and the same trial, so that configurations of different cost can be
put together: s(a, span) is the median of t(1) / t(a, span). Of a trial that never ran on one atom, t(1) is inferred from
where it ran first, once that place has been measured by others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from hpcsched.core.percentile import SampledPercentile
from hpcsched.core.settings import ScalingSettings
from hpcsched.topology.span import SPANS, Span, points_of

SQRT = {1: 1.0, 2: 1.4, 4: 2.0, 8: 2.8, 16: 4.0, 32: 5.7}
"""The table of the 2020 simulations (algorithms.md 2.2), not the square root itself."""
ENOUGH = 3
"""Reports after which what is measured replaces a point of a profile."""
HOPE = 2
"""Growth is hoped for up to so many times the largest size measured."""


class Scaling(Protocol):
    knows_distance: bool
    """Whether the span makes a difference."""

    def __call__(self, size: int, span: Span | None = None) -> float:
        """s(size, span); without a span, the best that so many atoms can give."""
        ...


class LinearScaling:
    """s(a) = a."""

    __slots__ = ()
    knows_distance = False

    def __call__(self, size: int, span: Span | None = None) -> float:  # noqa: ARG002 - one protocol for all
        return float(size)


class TableScaling:
    """Linear interpolation between the points of a table, flat beyond them."""

    __slots__ = ("_sizes", "_speedups")
    knows_distance = False

    def __init__(self, table: Mapping[int, float]) -> None:
        assert table, "a scaling table has at least one point"
        self._sizes = sorted(table)
        self._speedups = [float(table[size]) for size in self._sizes]

    @property
    def largest(self) -> int:
        return self._sizes[-1]

    def __call__(self, size: int, span: Span | None = None) -> float:  # noqa: ARG002 - one protocol for all
        right = bisect_left(self._sizes, size)
        if right == len(self._sizes):
            return self._speedups[-1]
        if right == 0 or self._sizes[right] == size:
            return self._speedups[right]
        low, high = self._sizes[right - 1], self._sizes[right]
        below, above = self._speedups[right - 1], self._speedups[right]
        return below + (above - below) * (size - low) / (high - low)


class Point(NamedTuple):
    """What has been measured at one size and span."""

    size: int
    span: Span
    speedup: float
    """Median."""
    num: int
    """Reports."""


class Measurements:
    """Speed-ups seen so far, by size and span."""

    __slots__ = ("_medians", "num")

    def __init__(self) -> None:
        self._medians: dict[tuple[int, Span], SampledPercentile] = {}
        self.num = 0
        """Observations: whoever keeps something made of them sees whether it is still up to date."""

    def observe(self, size: int, span: Span, speedup: float) -> None:
        """A trial trained `speedup` times as fast there as itself on one atom."""
        median = self._medians.get((size, span))
        if median is None:
            median = self._medians[size, span] = SampledPercentile(1, 2)
        median.add(speedup)
        self.num += 1

    def at(self, size: int, span: Span) -> float | None:
        """The median; None where nothing has been measured."""
        if size == 1:
            return 1.0
        median = self._medians.get((size, span))
        return None if median is None else median.value()

    def points(self) -> list[Point]:
        """All of them, by span and size."""
        found = [
            Point(size, span, median.value() or 1.0, median.num)
            for (size, span), median in self._medians.items()
        ]
        return sorted(found, key=lambda point: (SPANS.index(point.span), point.size))

    def tables(self, *, least: int = 1) -> dict[Span, dict[int, float]]:
        """By span, the points with at least so many reports."""
        tables: dict[Span, dict[int, float]] = {}
        for point in self.points():
            if point.num >= least:
                tables.setdefault(point.span, {})[point.size] = point.speedup
        return tables


class _Curves:
    """The curve of each span, and the best of all of them."""

    __slots__ = ("best", "of")

    def __init__(self, points: Mapping[Span, Mapping[int, float]]) -> None:
        self.of = {span: TableScaling(points_of(points, span) or {1: 1.0}) for span in SPANS}
        best: dict[int, float] = {}
        for table in points.values():
            for size, speedup in table.items():
                best[size] = max(best.get(size, speedup), speedup)
        self.best = TableScaling({1: 1.0, **best})

    def __getitem__(self, span: Span | None) -> TableScaling:
        return self.best if span is None else self.of[span]


class ProfiledScaling:
    """A profile, refined by what is measured: flat beyond its points."""

    __slots__ = ("_curves", "_measured", "_profile", "_until")
    knows_distance = True

    def __init__(self, profile: Mapping[Span, Mapping[int, float]], measured: Measurements) -> None:
        self._profile = profile
        self._measured = measured
        self._curves = _Curves(profile)
        self._until = measured.num

    def __call__(self, size: int, span: Span | None = None) -> float:
        if self._until != self._measured.num:
            self._until = self._measured.num
            points = {each: dict(table) for each, table in self._profile.items()}
            for each, table in self._measured.tables(least=ENOUGH).items():
                points.setdefault(each, {}).update(table)
            self._curves = _Curves(points)
        return self._curves[span](size)


class MeasuredScaling:
    """Nothing but what is measured. Linear growth is hoped for up to twice the largest size seen, flat beyond.

    Without that hope nothing would ever grow, and so nothing would ever be measured; without an end to it a size that nobody
    has tried would look best.
    """

    __slots__ = ("_curves", "_measured", "_until")
    knows_distance = True

    def __init__(self, measured: Measurements) -> None:
        self._measured = measured
        self._curves = _Curves(measured.tables())
        self._until = measured.num

    def __call__(self, size: int, span: Span | None = None) -> float:
        if self._until != self._measured.num:
            self._until = self._measured.num
            self._curves = _Curves(self._measured.tables())
        curve = self._curves[span]
        largest = curve.largest
        if size <= largest:
            return curve(size)
        return curve(largest) * min(size, HOPE * largest) / largest


def scaling_of(settings: ScalingSettings, measured: Measurements | None = None) -> Scaling:
    """The scaling that the settings describe; a profile goes before an assumption."""
    measured = Measurements() if measured is None else measured
    if settings.spans and any(settings.spans.values()):
        return ProfiledScaling({Span(span): table for span, table in settings.spans.items()}, measured)
    assume = settings.assume
    if isinstance(assume, dict):
        return TableScaling(assume)
    if assume == "linear":
        return LinearScaling()
    if assume == "sqrt":
        return TableScaling(SQRT)
    if assume == "none":
        return TableScaling({1: 1.0})
    return MeasuredScaling(measured)
