"""The deadline: the earlier of the file's and the allocation's end less a reserve (span = "allocation").

With span = "chain" the file's deadline alone; the allocation's end is then an interruption (see `chain`).
All values are seconds since the experiment began; None is "no limit".
"""

from __future__ import annotations

import msgspec

from hpcsched.config.spec import ExperimentSpec


class Limits(msgspec.Struct, frozen=True):
    """What limits the time, and which of them decides."""

    deadline_s: float | None
    """The core's deadline."""
    why: str


def limits(
    *, file_deadline_s: float | None, allocation_ends_s: float | None, reserve_s: float, chain: bool
) -> Limits:
    """Pure; see the module."""
    if allocation_ends_s is None:
        why = "no deadline" if file_deadline_s is None else "the experiment file's deadline"
        return Limits(file_deadline_s, why)
    last = allocation_ends_s - reserve_s
    if chain:
        return Limits(file_deadline_s, "the experiment file's deadline, over a chain of allocations")
    if file_deadline_s is not None and file_deadline_s <= last:
        return Limits(file_deadline_s, "the experiment file's deadline")
    return Limits(last, f"the allocation's end less {reserve_s:.0f} s of reserve")


def reserve_s(spec: ExperimentSpec) -> float:
    """Before the allocation's end: what the driver itself needs to seal the log and leave."""
    return 10.0 if spec.timeouts.reserve is None else spec.timeouts.reserve
