from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcsched.report.text import clean, clean_line, duration


def test_escape_sequences_are_taken_out_and_the_text_stays() -> None:
    assert clean("\x1b[31mred\x1b[0m") == "red"
    assert clean("\x1b]0;a new title\x07text") == "text"
    assert clean("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "link"
    assert clean("\x1bPq#0\x1b\\after") == "after"
    assert clean("\x9b2Jgone") == "gone"
    assert clean("\x1b(0graphics") == "graphics"


def test_a_progress_bar_becomes_lines() -> None:
    assert clean("10 %\r20 %\r\ndone\n") == "10 %\n20 %\ndone\n"


def test_a_change_of_writing_direction_is_shown() -> None:
    assert clean("a\u202eb") == "a\N{REPLACEMENT CHARACTER}b"


@given(
    st.text(st.characters(), max_size=200)
    | st.text("\x1b[]0;m\x07\\\x9b\x9dPX^_ab\r\n\x00\x7f\u202e", max_size=60)
)
def test_nothing_that_does_not_print_is_left(text: str) -> None:
    for char in clean(text):
        assert char.isprintable() or char in "\n\t"


def test_one_line_stays_one_line() -> None:
    assert clean_line("a\nb\r\n\x1b[2Jc") == "a b c"
    assert clean_line("x" * 500, 10) == "x" * 9 + "…"


def test_durations_in_words() -> None:
    assert [duration(s) for s in (0.25, 59.94, 125, 7380, None, float("nan"))] == [
        "0.2 s", "59.9 s", "2 min 05 s", "2 h 03 min", "unknown", "unknown",
    ]  # fmt: skip
