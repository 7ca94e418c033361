"""Durations as people write them: "90s", "2h30m", "1d12h", "1.5h", "250ms", or a bare number of seconds."""

from __future__ import annotations

import math
import re

UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""Seconds a unit, largest first: the order in which they must be written."""

LONGEST_S = 10 * 365 * 86400.0
"""Ten years: longer is a slip of the pen."""

ALLOWED = 'a duration such as "90s", "2h30m", "1d" or a number of seconds'

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|d|h|m|s)\s*", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds, finite, 0 .. ten years. Raises ValueError (with a reason) for anything else.

    Units go from large to small and each at most once ("2h30m", not "30m2h"); a bare number is seconds.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("not a duration")
    if isinstance(value, str):
        return _checked(_parse_text(value))
    try:
        return _checked(float(value))
    except OverflowError:
        raise ValueError("longer than ten years") from None


def _parse_text(text: str) -> float:
    text = text.strip()
    if len(text) > 100:
        raise ValueError("not a duration")
    if text.startswith("-"):
        raise ValueError("negative")
    if _NUMBER.fullmatch(text):
        return float(text)
    seconds = 0.0
    position = 0
    order = list(UNITS_S)
    last = -1
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            raise ValueError("not a duration")
        unit = order.index(part[2])
        if unit <= last:
            raise ValueError("units must go from large to small, each once")
        last = unit
        seconds += float(part[1]) * UNITS_S[part[2]]
        position = part.end()
    if last < 0:
        raise ValueError("empty")
    return seconds


def _checked(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError("not finite")
    if seconds < 0:
        raise ValueError("negative")
    if seconds > LONGEST_S:
        raise ValueError("longer than ten years")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back to the same whole milliseconds: 9000 -> "2h30m"."""
    rest = round(seconds * 1000)
    if rest <= 0:
        return "0s"
    parts = []
    for unit, milliseconds in (("d", 86400000), ("h", 3600000), ("m", 60000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, milliseconds)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
