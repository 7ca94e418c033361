from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hpcsched.report.gantt import Span, gantt, picture_of
from tests.support.runs import Script, a_machine, a_run, go_on


def test_a_picture_in_characters() -> None:
    spans = [Span("n1:0", 0, 0.0, 4.0), Span("n1:0", 12, 4.0, 10.0), Span("n1:1", 1, 0.0, 5.0)]
    assert gantt(["n1:0", "n1:1"], spans, end_s=10.0, deadline_s=8.0, width=45, ascii_only=True) == [
        "n1:0 0===============12======================",
        "n1:1 1===================....................",
        "     0               deadline 8.0 s ^  10.0 s",
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a:0", "b:0", "long-name-of-a-node:0,1,2,3,4,5,6,7", "c\x1b[31m:0"]), st.integers(0, 20000),
                  st.floats(0, 100), st.floats(0, 100)),
        max_size=30,
    ),
    st.floats(0, 100),
    st.none() | st.floats(0, 200),
    st.integers(0, 200),
    st.booleans(),
)  # fmt: skip
def test_no_line_is_wider_than_asked_and_no_control_character_gets_through(
    raw: list[tuple[str, int, float, float]],
    end_s: float,
    deadline_s: float | None,
    width: int,
    ascii_only: bool,
) -> None:
    spans = [Span(row, trial, min(a, b), max(a, b)) for row, trial, a, b in raw]
    rows = ["a:0", "b:0", "long-name-of-a-node:0,1,2,3,4,5,6,7", "c\x1b[31m:0"]
    lines = gantt(rows, spans, end_s=end_s, deadline_s=deadline_s, width=width, ascii_only=ascii_only)
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert len(line) <= max(40, width)
        assert line.isprintable()


def test_many_rows_are_cut_and_it_says_so() -> None:
    rows = [f"n{k}:0" for k in range(100)]
    lines = gantt(rows, [], end_s=1.0, most_rows=10)
    assert len(lines) == 12
    assert "90 more rows" in lines[-2]


def test_the_picture_of_a_run_has_a_line_for_each_atom_and_every_trial_that_held_one_long(
    tmp_path: Path,
) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    go_on(folder, at=8.0)
    lines = picture_of(folder, width=120).splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["n1:0", "n1:1", "n2:0", "n2:1"]
    assert "━" in lines[0]
    ascii_lines = picture_of(folder, width=120, ascii_only=True)
    assert ascii_lines.isascii()


def test_a_larger_machine_has_a_row_for_each_atom(tmp_path: Path) -> None:
    folder = a_run(tmp_path, machine=a_machine(3, 4))
    assert len(picture_of(folder).splitlines()) == 13
