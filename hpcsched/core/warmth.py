"""Whether the next start will be warm.

A start from a spare (warm) costs a fraction of a cold one: 0.6 s instead of 10 s. The first starts of a run are cold, for spares
import meanwhile; they say nothing about the next ones. Later a start is cold when the spares of a node are used up, as by
two resizes one after the other, and the next one may be, too. So from the first warm start on the next one is expected to be warm
as often as the last few were, and to cost as much more.
"""

from __future__ import annotations

from collections import deque

NUM_LAST = 8


class Warmth:
    """Take in each start with `observe`. 2020 knew no warm starts: without any, all is as there."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=NUM_LAST)
        """From the first warm one on."""

    def observe(self, *, warm: bool) -> None:
        if warm or self._last:
            self._last.append(warm)

    @property
    def has_been(self) -> bool:
        """There was a warm start."""
        return bool(self._last)

    def expected_s(self, *, warm_s: float | None, cold_s: float | None) -> float | None:
        """Seconds of the next start, from those of either kind; None where there was no start."""
        if warm_s is None or cold_s is None:
            return cold_s if warm_s is None else warm_s
        num_warm = sum(self._last)
        return (num_warm * warm_s + (len(self._last) - num_warm) * cold_s) / len(self._last)
