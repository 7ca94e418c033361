"""When a save after a report pays: pure arithmetic on measured seconds."""

from __future__ import annotations

import msgspec

BYTES_PER_S = 200e6
OVERHEAD_S = 0.1
"""What a save is assumed to cost before one was measured: an overhead, and a slow disk."""
WRITING = 5.0
"""A save in the background may be writing for so many times the share that training may wait (25 % of the time by default):
its disk and its cores are shared with the training."""


class SaveOutcome(msgspec.Struct, frozen=True):
    """How a save has ended. `problem`: why there is no such checkpoint; "" when there is."""

    training_iteration: int
    save_s: float = 0.0
    """From its begin until it was complete."""
    num_bytes: int = 0
    blocked_s: float | None = None
    """How long training waited for it; None: all of `save_s`."""
    problem: str = ""


class SaveBudget(msgspec.Struct):
    """A save is due when training is expected to wait for it less than `share` of the time since the last one began."""

    share: float
    trained_s: float = 0.0
    """Since the last save began (or the start)."""
    last_save_s: float | None = None
    last_blocked_s: float | None = None
    """None: training waited for all of the last save."""

    def expected_s(self, num_bytes: int) -> float:
        return OVERHEAD_S + num_bytes / BYTES_PER_S if self.last_save_s is None else self.last_save_s

    def is_due(self, num_bytes: int) -> bool:
        allowed_s = self.share * self.trained_s
        if self.last_blocked_s is None:
            return self.expected_s(num_bytes) < allowed_s
        return self.last_blocked_s < allowed_s and self.expected_s(num_bytes) < WRITING * allowed_s

    def began(self) -> None:
        self.trained_s = 0.0

    def saved(self, save_s: float, blocked_s: float | None = None) -> None:
        self.last_save_s = save_s
        self.last_blocked_s = blocked_s


def verdict_wait_s(last_iteration_s: float, *, least_s: float, most_s: float) -> float:
    """How long `report()` waits for the driver's reply: 2 % of the last iteration, within limits."""
    return min(max(0.02 * last_iteration_s, least_s), most_s)
