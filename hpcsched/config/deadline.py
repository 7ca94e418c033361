"""Deadlines: a duration from the beginning, or a clock time.

A clock time without a date ("17:30") is the next one that comes; with a date ("2026-11-30T17:30", seconds and
offset optional) it is that very moment. Without an offset both are local time.
"""

from __future__ import annotations

import datetime as dt
import re

from hpcsched.config.duration import parse_duration

ALLOWED = 'a duration such as "2h30m", the next clock time such as "17:30", or a date and time such as "2026-11-30T17:30"'

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]", re.ASCII)


def parse_deadline(value: object) -> tuple[float | None, str | None]:
    """(seconds from the beginning, None) or (None, clock time as text). Raises ValueError with a reason."""
    if isinstance(value, dt.datetime):
        return None, value.isoformat()
    if isinstance(value, dt.time):
        return None, value.isoformat(timespec="seconds")
    if isinstance(value, dt.date):
        raise ValueError("a date without a time")
    if isinstance(value, str):
        text = value.strip()
        if _CLOCK.fullmatch(text):
            return None, text
        if _DATE.match(text):
            _moment(text)
            return None, text
        if ":" in text:
            raise ValueError("no such clock time")
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError("zero: nothing can be trained in no time")
    return seconds, None


def clock_time(text: str, now: float, timezone: dt.tzinfo | None = None) -> float:
    """UNIX seconds of the clock time `text`, given the moment `now` (UNIX s).

    `timezone` is that of texts without an offset; None: this computer's. "17:30" is the first one later than
    `now`, also across a change of daylight saving time. Raises ValueError when `text` is no clock time.
    """
    clock = _CLOCK.fullmatch(text.strip())
    if clock is None:
        moment = _moment(text.strip())
        return _unix(moment, timezone)
    today = (
        dt.datetime.fromtimestamp(now) if timezone is None else dt.datetime.fromtimestamp(now, timezone)
    ).date()
    time = dt.time(int(clock[1]), int(clock[2]), int(clock[3] or 0))
    for days in range(3):
        at = _unix(dt.datetime.combine(today + dt.timedelta(days=days), time), timezone)
        if at > now:
            return at
    raise AssertionError("one of three days has it")  # our own belief: days last at most 25 hours


def _moment(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"no such date and time ({error})") from error


def _unix(moment: dt.datetime, timezone: dt.tzinfo | None) -> float:
    if moment.tzinfo is None and timezone is not None:
        moment = moment.replace(tzinfo=timezone)
    try:
        return moment.timestamp()
    except (OverflowError, OSError, ValueError) as error:
        raise ValueError(f"a date out of range ({error})") from error
