"""The frames of `hpcsched watch`."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hpcsched.core.enums import ExperimentState
from hpcsched.eventlog.state import RunFollower, RunState
from hpcsched.screen.frame import Seen, Ui, frame, ordered
from hpcsched.screen.parts import BLOCKS, deadline_line, sparkline
from hpcsched.screen.watching import Watcher, once
from tests.support.runs import Script, a_run

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunState:
    return RunFollower(a_run(tmp_path_factory.mktemp("run"), deadline_s=40.0)).look()


def seen(run: RunState) -> Seen:
    return Seen(run=run, state=ExperimentState.RUNNING, now_s=run.now, driver="driver on n1, job 7")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10), (20, 3)])
def test_a_frame_has_the_size_of_the_terminal(run: RunState, width: int, height: int) -> None:
    lines = frame(seen(run), Ui(), width, height).plain.split("\n")
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_a_frame_of_80_by_24_says_what_matters(run: RunState) -> None:
    text = frame(seen(run), Ui(), 80, 24).plain
    best = run.best
    assert best is not None
    assert "by script (hypersched) running" in text or "by script (asha) running" in text
    assert f"{best.metric:.6g} trial {best.checkpoint.trial_id}" in text
    assert "trial state      rung" in text
    assert "e explain" in text
    assert "n1 " in text and "n2 " in text


def test_the_chosen_row_stays_in_the_picture(run: RunState) -> None:
    trials = ordered(run)
    for chosen in range(len(trials)):
        text = frame(seen(run), Ui(chosen=chosen), 80, 16).plain
        assert re.search(rf"^> +{trials[chosen].trial_id} ", text, re.MULTILINE), (chosen, text)


def test_choosing_beyond_the_ends_stays_within(run: RunState) -> None:
    for chosen in (-5, 10**6):
        ui = Ui(chosen=chosen)
        frame(seen(run), ui, 80, 24)
        assert 0 <= ui.chosen < len(run.scheduler.trials)


def test_a_pane_scrolls_and_wraps(run: RunState) -> None:
    ui = Ui(pane="\n".join(f"line {number} " + "x" * 100 for number in range(50)), pane_top=10**6)
    text = frame(seen(run), ui, 80, 24).plain
    assert "line 49 " in text and "line 0 " not in text
    ui.pane_top = -1
    assert "line 0 " in frame(seen(run), ui, 80, 24).plain


def test_a_better_report_that_no_checkpoint_holds_is_named_beside_the_best(run: RunState) -> None:
    best = run.best
    assert best is not None
    assert "has reported" not in frame(seen(run), Ui(), 200, 24).plain
    before = dict(run.best_metric)
    run.best_metric[run.scheduler.trials[3].trial_id] = best.metric + 0.01
    try:
        assert (
            f"(saved; trial 3 has reported {best.metric + 0.01:.6g})" in frame(seen(run), Ui(), 200, 24).plain
        )
    finally:
        run.best_metric.clear()
        run.best_metric.update(before)


def test_nothing_foreign_steers_the_terminal(tmp_path: Path) -> None:
    run = RunFollower(a_run(tmp_path, deadline_s=40.0, script=Script(crash=(0,)))).look()
    run.because[run.scheduler.trials[0].trial_id] = "\x1b]0;owned\x07\x1b[2J"
    pane = frame(seen(run), Ui(pane="\x1b[31mred\x1b[2J\x07"), 80, 24).plain
    assert "\x1b" not in pane + frame(seen(run), Ui(), 80, 24).plain
    assert "\x07" not in pane


def test_without_utf_8_only_ascii_is_drawn(run: RunState) -> None:
    head = frame(seen(run), Ui(), 80, 24, ascii_only=True).plain.split("\n")[:3]
    assert "".join(head).isascii()


def test_no_color_leaves_no_colour(run: RunState, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> str:
        stream = io.StringIO()
        Console(file=stream, force_terminal=True, width=80, color_system="256").print(
            frame(seen(run), Ui(), 80, 24)
        )
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    colours = re.compile(r"\x1b\[(?:\d+;)*3\d")
    assert colours.search(drawn())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours.search(drawn())


def test_into_a_file_one_whole_picture_is_printed(tmp_path: Path) -> None:
    folder = a_run(tmp_path, deadline_s=40.0)
    stream = io.StringIO()
    once(folder, Console(file=stream, width=100))
    text = stream.getvalue()
    run = RunFollower(folder).look()
    assert "\x1b" not in text
    assert "finished" in text.split("\n", 1)[0]
    assert sum(bool(re.match(r" {2,}\d+ [a-z]+ ", line)) for line in text.split("\n")) == len(
        run.scheduler.trials
    )


def test_a_long_journal_is_shown_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcsched.screen.watching.SLICE", 5)
    folder = a_run(tmp_path, deadline_s=40.0)
    watcher = Watcher(folder, clock=iter(range(10**6)).__next__)
    first = watcher.look(limit_s=0.5)
    assert first.is_reading and "reading the journal" in frame(first, Ui(), 80, 24).plain
    while not watcher.at_end:
        last = watcher.look(limit_s=0.5)
    assert last.state is ExperimentState.FINISHED
    assert last.run.num_events == RunFollower(folder).look().num_events


def test_the_bar_is_empty_at_the_beginning_and_full_at_the_deadline() -> None:
    assert "━" not in deadline_line(0.0, 100.0, 60).plain
    assert "─" not in deadline_line(100.0, 100.0, 60).plain
    assert "10.0 s ago" in deadline_line(110.0, 100.0, 60).plain
    assert "no deadline" in deadline_line(5.0, None, 60).plain


@settings(deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), min_size=1, max_size=30).map(sorted),
    columns=st.integers(1, 80),
)
def test_a_sparkline_has_one_sign_a_column_and_ends_at_the_last_value(
    points: list[tuple[float, float]], columns: int
) -> None:
    line = sparkline(points, 100.0, columns)
    assert len(line) == columns
    assert set(line) <= set(BLOCKS + " ")
    if points[-1][1] == max(value for _, value in points):
        assert line[-1] == BLOCKS[-1]
