"""`span = "chain"`: the end of the job is an interruption, before which everybody is to have saved.

Announced as late as what was measured allows: until then the job's end may still move (`scontrol update TimeLimit`), and who has left
stays away until the next job of the chain. The reserve is the driver's own, to seal its log and to queue the job again.
"""

from __future__ import annotations

from hpcsched.core.events import AllocationEnding
from hpcsched.core.scheduler import Scheduler

LOOK_S = 0.25
"""What leaving takes is asked at most so often: it costs a look at each trial."""


class Link:
    """One job of the chain. All times are seconds since the experiment began."""

    def __init__(self, reserve_s: float) -> None:
        self._reserve_s = reserve_s
        self._announced_at: float | None = None
        """The end that the core was told of."""
        self._next_look_at = 0.0

    def ending(self, now: float, ends_s: float | None, scheduler: Scheduler) -> AllocationEnding | None:
        """The event, once whoever trains has just the time left for its iteration and a last checkpoint.

        ends_s: the end of the job as known now; None: it has none, or Slurm has not told. When it moves after it was announced, said
        again: everybody leaves all the same, and has more or less time for it. None where the experiment's own deadline comes first.
        """
        if ends_s is None or now < self._next_look_at:
            return None
        self._next_look_at = now + LOOK_S
        at = ends_s - self._reserve_s
        if scheduler.deadline_s is not None and scheduler.deadline_s <= at:
            return None
        leaving_s = 0.0
        if self._announced_at is None:
            leaving_s = scheduler.leaving_s
            if now < at - leaving_s:
                return None
        elif at == self._announced_at:
            return None
        has_moved, self._announced_at = self._announced_at is not None, at
        why = "it has moved" if has_moved else f"an iteration and a last checkpoint take {leaving_s:.6g} s"
        return AllocationEnding(
            time=now, at=at, why=f"that is its end less {self._reserve_s:.6g} s of reserve, and {why}"
        )
