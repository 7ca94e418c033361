"""Does a resize pay for its restart? (algorithms.md 1.9, T17)

Left alone, a trial does s(now) * T_left of work until the deadline; after a restart that costs T_o it does
s(new) * (T_left - T_o). It pays when the second is more than `margin` times the first (2020: 1.1; the paper: 1).
"""

from __future__ import annotations

import msgspec


class Gain(msgspec.Struct, frozen=True):
    """Work until the deadline in seconds of one atom, with and without the resize."""

    after: float
    before: float
    pays: bool


def gain_of(
    *,
    speedup_now: float,
    speedup_new: float,
    time_left_s: float | None,
    restart_s: float,
    margin: float,
) -> Gain:
    """The comparison for one trial. Without a deadline the restart costs nothing in the long run."""
    if time_left_s is None:
        return Gain(speedup_new, speedup_now, speedup_new > margin * speedup_now)
    after = speedup_new * (time_left_s - restart_s)
    before = speedup_now * time_left_s
    return Gain(after, before, time_left_s >= 0 and after > margin * before)
