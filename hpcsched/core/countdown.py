"""When everything ends: the deadline, the allocation's end where that is announced, and the moment from which trials save for the last time."""

from __future__ import annotations

EARLIER_S = 0.05
LATER_S = 0.05
LATER_SHARE = 0.1
"""The drain is planned anew when it has to begin more than EARLIER_S earlier, or may begin more than LATER_S and this share of the reserve
later: a little less reserve is not worth a new timer, a little more may be what is missing."""


class Countdown:
    """Seconds since the experiment began."""

    __slots__ = ("deadline_s", "drain_at", "ends_at", "is_draining")

    def __init__(self) -> None:
        self.deadline_s: float | None = None
        self.ends_at: float | None = None
        """The allocation's end, once it was announced."""
        self.drain_at: float | None = None
        self.is_draining = False
        """Everybody has been asked for a last checkpoint."""

    @property
    def limit_s(self) -> float | None:
        """Whichever comes first; None: neither does."""
        if self.deadline_s is None or self.ends_at is None:
            return self.ends_at if self.deadline_s is None else self.deadline_s
        return min(self.deadline_s, self.ends_at)

    def move(self, deadline_s: float | None) -> None:
        """The deadline is another one; a drain that had begun is over, and one that was planned is to be planned anew."""
        self.deadline_s = deadline_s
        self.is_draining = False
        self.drain_at = None

    def plan_drain(self, now: float, reserve_s: float) -> float | None:
        """When to begin it, with so much time for the last checkpoints; None: as planned, or there is nothing to plan."""
        if self.deadline_s is None or self.is_draining:
            return None
        at = max(now, self.deadline_s - reserve_s)
        planned = self.drain_at
        if planned is not None:
            later_s = LATER_S + LATER_SHARE * (self.deadline_s - planned)
            if -EARLIER_S <= at - planned <= later_s:
                return None
        self.drain_at = at
        return at
