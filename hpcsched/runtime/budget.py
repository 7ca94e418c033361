"""When a save after a report pays: pure arithmetic on measured seconds."""

from __future__ import annotations

import msgspec

BYTES_PER_S = 200e6
OVERHEAD_S = 0.1
"""What a save is assumed to cost before one was measured: an overhead, and a slow disk."""


class SaveBudget(msgspec.Struct):
    """A save is due when it is expected to cost less than `share` of the training since the last one."""

    share: float
    trained_s: float = 0.0
    """Since the last save (or the start)."""
    last_save_s: float | None = None

    def expected_s(self, num_bytes: int) -> float:
        return OVERHEAD_S + num_bytes / BYTES_PER_S if self.last_save_s is None else self.last_save_s

    def is_due(self, num_bytes: int) -> bool:
        return self.expected_s(num_bytes) < self.share * self.trained_s

    def saved(self, save_s: float) -> None:
        self.last_save_s = save_s
        self.trained_s = 0.0


def verdict_wait_s(last_iteration_s: float, *, least_s: float, most_s: float) -> float:
    """How long `report()` waits for the driver's reply: 2 % of the last iteration, within limits."""
    return min(max(0.02 * last_iteration_s, least_s), most_s)
