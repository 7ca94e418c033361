"""Durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.config.duration import LONGEST_S, format_duration, parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90.0),
        ("2h30m", 9000.0),
        ("1d", 86400.0),
        ("1d12h", 129600.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("1m30s", 90.0),
        ("1m 30s", 90.0),
        ("0s", 0.0),
        ("42", 42.0),
        (42, 42.0),
        (0.5, 0.5),
        (" 5m ", 300.0),
    ],
)
def test_a_duration_is_read_in_seconds(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "empty"),
        ("-5s", "negative"),
        (-5, "negative"),
        ("30m2h", "large to small"),
        ("1h1h", "large to small"),
        ("5 parsecs", "not a duration"),
        ("h", "not a duration"),
        ("1e3s", "not a duration"),
        ("٣s", "not a duration"),
        (True, "not a duration"),
        (None, "not a duration"),
        ([1], "not a duration"),
        (float("nan"), "not finite"),
        (float("inf"), "not finite"),
        ("9999999d", "ten years"),
        (10**400, "ten years"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_reason(written: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_duration(written)


@given(st.integers(0, int(LONGEST_S * 1000)))
def test_a_formatted_duration_reads_back_to_the_same_milliseconds(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@given(st.text(alphabet="0123456789dhms. -", max_size=20) | st.text(max_size=20))
def test_any_text_is_a_duration_within_bounds_or_a_value_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds <= LONGEST_S
