"""What was known of a trial at each of its iterations: a checkpoint is heard of later than the result that it belongs to."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

MOST_SNAPSHOTS = 128
"""A background save is at most so many iterations behind the reports; an older one has no known score."""


class Snapshot(NamedTuple):
    """What was known of a trial right after one result."""

    training_iteration: int
    score: float | None
    window: tuple[float, ...]
    training_s: float


ORIGIN = Snapshot(0, None, (), 0.0)


class Snapshots:
    """The latest 128 to 256 of one incarnation, in order of their iterations.

    In arrays: as objects they would be what a driver of a thousand trials mostly consists of.
    """

    __slots__ = ("_iterations", "_scores", "_training_s", "_windows")

    def __init__(self) -> None:
        self._iterations = array("q")
        self._scores = array("d")
        """NaN: none."""
        self._training_s = array("d")
        self._windows: dict[int, tuple[float, ...]] = {}
        """By iteration; empty ones are left out."""

    def __len__(self) -> int:
        return len(self._iterations)

    def add(
        self, training_iteration: int, score: float | None, window: tuple[float, ...], training_s: float
    ) -> None:
        """`training_iteration` is higher than all before; `score` is finite or None."""
        self._iterations.append(training_iteration)
        self._scores.append(math.nan if score is None else score)
        self._training_s.append(training_s)
        if window:
            self._windows[training_iteration] = window
        if len(self._iterations) > 2 * MOST_SNAPSHOTS:
            self._drop(MOST_SNAPSHOTS)

    def at(self, training_iteration: int) -> Snapshot | None:
        """None when it was not reported, or is forgotten."""
        place = bisect_left(self._iterations, training_iteration)
        if place == len(self._iterations) or self._iterations[place] != training_iteration:
            return None
        score = self._scores[place]
        return Snapshot(
            training_iteration,
            None if math.isnan(score) else score,
            self._windows.get(training_iteration, ()),
            self._training_s[place],
        )

    def forget_until(self, training_iteration: int) -> None:
        """That one and all before it."""
        self._drop(bisect_right(self._iterations, training_iteration))

    def _drop(self, num: int) -> None:
        for iteration in self._iterations[:num] if self._windows else ():
            self._windows.pop(iteration, None)
        del self._iterations[:num], self._scores[:num], self._training_s[:num]
