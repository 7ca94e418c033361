"""What starting, iterating and saving have cost so far: the numbers behind "does the deadline still allow it"."""

from __future__ import annotations

from collections.abc import Mapping

from hpcsched.core.percentile import SampledPercentile
from hpcsched.core.warmth import Warmth

NUM_LAST_SAVES = 8
UNKNOWN_SAVE_SHARE = 0.02
"""Part of the deadline kept for the last checkpoint as long as no save has been measured, ..."""
MOST_UNKNOWN_SAVE_S = 10.0
"""... but no more than this, ..."""
MOST_UNSEEN_SAVE_SHARE = 0.25
"""... unless the size of what a trial will save says so: then up to this part of the deadline."""
UNSEEN_BYTES_PER_S = 2e8
"""Of one rank's writing, checksums included, before any save was seen: a shared file system on a bad day."""


class Costs:
    """Measured seconds, as running percentiles.

    Warm starts (from spares) and cold ones are kept apart (see `warmth`). `expected_s`: a profile's seconds of a start by size; at a size
    at which none was measured yet they say how much more or less it takes than where one was.
    """

    __slots__ = (
        "_cold_setups",
        "_expected_s",
        "_in_background",
        "_iterations",
        "_last_saves",
        "_saves",
        "_state_bytes",
        "_warm_setups",
        "_warmth",
    )

    def __init__(self, expected_s: Mapping[int, float] | None = None) -> None:
        self._expected_s = expected_s or {}
        self._warmth = Warmth()
        self._cold_setups: dict[int, SampledPercentile] = {}
        self._warm_setups: dict[int, SampledPercentile] = {}
        self._saves = SampledPercentile(9, 10)
        self._last_saves: list[float] = []
        self._in_background = False
        self._state_bytes = 0
        self._iterations = SampledPercentile(1, 2)

    def observe_setup(self, size: int, setup_time_s: float, *, warm: bool = False) -> None:
        self._warmth.observe(warm=warm)
        setups = self._warm_setups if warm else self._cold_setups
        if size not in setups:
            setups[size] = SampledPercentile(9, 10)
        setups[size].add(setup_time_s)

    def observe_state(self, num_bytes: int) -> bool:
        """What a rank of some trial will have to write of a checkpoint. True: it is the most so far, and no save was seen yet."""
        is_news = num_bytes > self._state_bytes
        self._state_bytes = max(self._state_bytes, num_bytes)
        return is_news and self._saves.value() is None

    def observe_save(self, save_time_s: float, *, in_background: bool = False) -> None:
        self._in_background |= in_background
        self._saves.add(save_time_s)
        self._last_saves.append(save_time_s)
        del self._last_saves[:-NUM_LAST_SAVES]

    def observe_iteration(self, one_atom_s: float) -> None:
        """Seconds of an iteration, times s(size): what it would take on one atom."""
        self._iterations.add(one_atom_s)

    def setup_s(self, size: int) -> float | None:
        """p90 at this size, else at the nearest size measured (the larger of two), in proportion to a profile's seconds at
        both where there is one; None before the first start (or a profile's at the nearest of its sizes)."""
        warm_s, cold_s = (self._nearest_s(setups, size) for setups in (self._warm_setups, self._cold_setups))
        seconds = self._warmth.expected_s(warm_s=warm_s, cold_s=cold_s)
        return self._expected(size) if seconds is None else seconds

    def _nearest_s(self, setups: Mapping[int, SampledPercentile], size: int) -> float | None:
        if not setups:
            return None
        nearest = _nearest(setups, size)
        measured = setups[nearest].value()
        here, there = self._expected(size), self._expected(nearest)
        if nearest == size or measured is None or not here or not there:
            return measured
        return measured * here / there

    def _expected(self, size: int) -> float | None:
        return self._expected_s[_nearest(self._expected_s, size)] if self._expected_s else None

    @property
    def are_warm(self) -> bool:
        """There was a warm start: `setups_by_size_s` are those of warm ones."""
        return self._warmth.has_been

    def setups_by_size_s(self) -> dict[int, float]:
        """p90 at each size measured; of warm starts, once there was one."""
        setups = self._warm_setups or self._cold_setups
        return {size: setups[size].value() or 0.0 for size in sorted(setups)}

    @property
    def save_s(self) -> float | None:
        """What the next save may take; None before the first.

        p90 of all, or the longest of the last few, or, where the last one took longer than the one before, as much more
        again: a file system that gets slower would be believed too late else.
        """
        usual = self._saves.value()
        if usual is None:
            return None
        *_, before, last = [self._last_saves[0], *self._last_saves]
        return max(usual, *self._last_saves, 2.0 * last - before)

    @property
    def last_save_s(self) -> float | None:
        """What a trial may need from now until its last checkpoint is complete; None before the first. Where some save in the
        background, one may have just begun that has to be waited for."""
        save_s = self.save_s
        return save_s if save_s is None or not self._in_background else 2.0 * save_s

    @property
    def unseen_save_s(self) -> float:
        """What a save may take as long as none was seen, by the size of the largest state; 0 where no size is known."""
        return self._state_bytes / UNSEEN_BYTES_PER_S

    def kept_for_saving_s(self, deadline_s: float) -> float:
        """Before a deadline, for one last checkpoint."""
        if (save_s := self.last_save_s) is not None:
            return save_s
        return max(
            min(MOST_UNKNOWN_SAVE_S, UNKNOWN_SAVE_SHARE * deadline_s),
            min(self.unseen_save_s, MOST_UNSEEN_SAVE_SHARE * deadline_s),
        )

    @property
    def one_atom_iteration_s(self) -> float | None:
        """Median; None before the first result."""
        return self._iterations.value()


def _nearest(sizes: Mapping[int, object], size: int) -> int:
    return min(sizes, key=lambda measured: (abs(measured - size), -measured))
