"""Experiment time: seconds since the experiment began, monotonic within a driver life.

With span = "allocation" it is wall time, so a resumed run finds the deadline where it was. With span = "chain"
and a relative deadline only allocated time counts: a new life goes on where the last one's log ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """`offset_s`: experiment time at the moment of construction."""

    def __init__(self, offset_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._zero = monotonic() - offset_s

    def now(self) -> float:
        return self._monotonic() - self._zero

    def of(self, monotonic_s: float) -> float:
        """Experiment time of a monotonic time stamp."""
        return monotonic_s - self._zero
