"""How fast steps may be created: a token bucket and a cap on those under way (srun is a slow, failing service).

Large sites see about a hundred srun at once at most, and some limit requests by a bucket of their own; so does this. Time comes in
as an argument.
"""

from __future__ import annotations

import math

import msgspec


class PaceLimits(msgspec.Struct, frozen=True):
    max_creating: int = 32
    """Steps that have been asked for and have not said hello."""
    burst: int = 40
    per_s: float = 10.0
    slow_per_s: float = 0.5
    """After a refusal for busy nodes, a rate limit or an absent controller."""
    slow_for_s: float = 20.0


class Pace:
    """Not thread-safe: its user holds a lock."""

    def __init__(self, limits: PaceLimits, now: float) -> None:
        self._limits = limits
        self._tokens = float(limits.burst)
        self._at = now
        self._slow_until = now
        self._creating = 0
        self._refusals = 0

    @property
    def num_creating(self) -> int:
        return self._creating

    def may_create(self, now: float) -> float:
        """0: go on (a token and a place are taken). Else seconds until it is worth asking again; inf: once `created` was called."""
        slow = now < self._slow_until
        rate = self._limits.slow_per_s if slow else self._limits.per_s
        self._tokens = min(float(self._limits.burst), self._tokens + (now - self._at) * rate)
        self._at = now
        if self._creating >= self._limits.max_creating:
            return math.inf
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / rate
        self._tokens -= 1.0
        self._creating += 1
        return 0.0

    def created(self) -> None:
        """A step said hello, ended, or has been waited for long enough: its place is free."""
        self._creating -= 1
        assert self._creating >= 0, "more creations ended than began"

    def worked(self) -> None:
        self._refusals = 0

    def refused(self, retry_after_s: float, now: float, *, slow_down: bool) -> float:
        """Note a refusal; after how many seconds to try again: doubled each time in a row, at most 120 s."""
        delay = min(retry_after_s * 2.0 ** min(self._refusals, 10), max(120.0, retry_after_s))
        self._refusals += 1
        if slow_down:
            self._slow_until = now + self._limits.slow_for_s
            self._tokens = min(self._tokens, 1.0)
        return delay
