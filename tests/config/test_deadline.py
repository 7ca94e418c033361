"""Deadlines: durations and clock times."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.config.deadline import clock_time, parse_deadline

UTC = dt.UTC
BERLIN = ZoneInfo("Europe/Berlin")


def unix(text: str, zone: dt.tzinfo = UTC) -> float:
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def test_a_deadline_is_a_duration_or_a_clock_time() -> None:
    assert parse_deadline("2h30m") == (9000.0, None)
    assert parse_deadline(90) == (90.0, None)
    assert parse_deadline("17:30") == (None, "17:30")
    assert parse_deadline("2026-11-30T17:30") == (None, "2026-11-30T17:30")


def test_toml_times_and_dates_with_times_are_deadlines_too() -> None:
    assert parse_deadline(dt.time(17, 30)) == (None, "17:30:00")
    assert parse_deadline(dt.datetime(2026, 11, 30, 17, 30)) == (None, "2026-11-30T17:30:00")


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("0s", "zero"),
        (0, "zero"),
        ("-1h", "negative"),
        ("25:00", "no such clock time"),
        ("17:60", "no such clock time"),
        ("2026-02-30T10:00", "no such date"),
        (dt.date(2026, 11, 30), "without a time"),
        ("soon", "not a duration"),
    ],
)
def test_what_is_no_deadline_is_refused_with_the_reason(written: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_deadline(written)


def test_a_clock_time_is_the_next_one() -> None:
    now = unix("2026-11-30T12:00")
    assert clock_time("17:30", now, UTC) == unix("2026-11-30T17:30")
    assert clock_time("11:59", now, UTC) == unix("2026-12-01T11:59")
    assert clock_time("12:00", now, UTC) == unix("2026-12-01T12:00")  # not this very moment
    assert clock_time("12:00:01", now, UTC) == now + 1


def test_a_clock_time_is_local_also_across_a_change_of_daylight_saving_time() -> None:
    # On 2026-10-25 at 03:00 CEST clocks go back to 02:00 CET: the night is an hour longer.
    now = unix("2026-10-24T18:00", BERLIN)
    assert clock_time("06:00", now, BERLIN) - now == 13 * 3600


def test_a_date_and_time_with_an_offset_is_that_moment_in_any_zone() -> None:
    assert clock_time("2026-11-30T17:30+01:00", 0.0, UTC) == unix("2026-11-30T16:30")
    assert clock_time("2026-11-30T17:30", 0.0, BERLIN) == unix("2026-11-30T16:30")


def test_without_a_zone_clock_times_are_this_computers() -> None:
    now = 1_800_000_000.0
    at = clock_time("17:30", now)
    assert dt.datetime.fromtimestamp(at).strftime("%H:%M:%S") == "17:30:00"
    assert 0 < at - now <= 25 * 3600


@given(st.integers(0, 4 * 10**9), st.times(), st.sampled_from([UTC, BERLIN, ZoneInfo("America/New_York")]))
def test_the_next_clock_time_lies_ahead_within_a_day_and_an_hour_or_two(
    now: int, time: dt.time, zone: dt.tzinfo
) -> None:
    at = clock_time(time.strftime("%H:%M"), now, zone)
    assert 0 < at - now <= 26 * 3600
