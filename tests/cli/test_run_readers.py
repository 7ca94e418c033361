"""status, explain, logs, replay and report as a user calls them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hpcsched.core.actions import PreemptTrial
from hpcsched.core.enums import ExperimentState
from hpcsched.core.events import TrialSubmitted
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import End, Step
from hpcsched.runfolder import RunFolder
from tests.support.journals import rewrite
from tests.support.runs import Script, a_run

HPCSCHED = (sys.executable, "-c", "from hpcsched.cli.main import main; main()")


def call(*words: object, expect: int = 0) -> str:
    """stdout of the command, or stderr when it is to fail."""
    done = subprocess.run(
        [*HPCSCHED, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80"},
    )
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if expect else done.stdout


def read_journal_trials(folder: RunFolder) -> Iterator[int]:
    for record in read_journal(folder):
        if isinstance(record, Step) and isinstance(record.event, TrialSubmitted):
            yield record.event.trial_id


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return a_run(tmp_path_factory.mktemp("run") / "a b ü", script=Script(crash=(1,), hang=(2,)))


def test_status_prints_one_json_object(folder: RunFolder) -> None:
    status = json.loads(call("status", folder.root, "--json"))
    assert status["state"] == "finished"
    assert status["best"]["checkpoint"] == str(folder.best / "checkpoint")


def test_status_in_words(folder: RunFolder) -> None:
    text = call("status", folder.root)
    assert "by script (hypersched): finished" in text
    assert "best       accuracy = " in text
    assert "atom-seconds: training" in text


def test_status_of_a_failed_run_says_why(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    at, end = next((k, one) for k, one in enumerate(read_journal(folder)) if isinstance(one, End))
    failed = msgspec.structs.replace(end, state=ExperimentState.FAILED, why="all of them\nfailed")
    rewrite(folder, 1, {at: failed})
    status = call("status", folder.root)
    assert ": failed, " in status
    assert "because    all of them failed\n" in status


def test_explain_tells_a_story(folder: RunFolder) -> None:
    assert "because" in call("explain", folder.root, 2)


def test_replay_counts_what_is_equal_or_shows_the_first_difference(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    assert call("replay", folder.root).startswith("equal: ")
    at, step, preempt = next(
        (k, record, action)
        for k, record in enumerate(read_journal(folder))
        if isinstance(record, Step)
        for action in record.actions
        if isinstance(action, PreemptTrial)
    )
    other = msgspec.structs.replace(preempt, because="no reason")
    actions = tuple(other if action is preempt else action for action in step.actions)
    rewrite(folder, 1, {at: msgspec.structs.replace(step, actions=actions)})
    complaint = call("replay", folder.root, expect=1)
    assert f"event {step.n} " in complaint
    assert "no reason" in complaint


def test_report_writes_a_page(folder: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert call("report", folder.root, "--out", out) == f"{out}\n"
    assert out.read_text().startswith("<!doctype html>")


def test_logs_show_what_ranks_wrote_and_cannot_steer_the_terminal(folder: RunFolder) -> None:
    place = folder.incarnation(0, 1)
    (place / "rank-0.log").write_bytes(b"one\n\x1b[2Jtwo\rthree\n\xff half")
    (place / "rank-1.log").write_text("other\n")
    (place / "supervisor-n1.log").write_text("started\n")
    first = ("logs", folder.root, 0, "--incarnation", 1)
    assert call(*first) == "0: one\n0: two\n0: three\n1: other\n0: \N{REPLACEMENT CHARACTER} half\n"
    assert call(*first, "--rank", 1) == "other\n"
    assert call(*first, "--supervisor") == "started\n"
    assert "no rank 7" in call(*first, "--rank", 7, expect=2)
    assert "no incarnation 9" in call("logs", folder.root, 0, "--incarnation", 9, expect=2)


def test_a_trial_that_does_not_exist_is_told_alike_everywhere(folder: RunFolder, tmp_path: Path) -> None:
    num = len(list(read_journal_trials(folder)))
    wanted = f"hpcsched: {folder.root}: there is no trial 99; there are 0 to {num - 1}\n"
    for command in ("explain", "logs"):
        assert call(command, folder.root, 99, expect=2) == wanted


def test_a_trial_that_was_never_launched_has_no_logs(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    shutil.rmtree(folder.trials / "0", ignore_errors=True)
    assert "trial 0: was never launched" in call("logs", folder.root, 0, expect=2)


def test_logs_that_are_empty_say_so_and_which_launch_wrote(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.journal.mkdir()
    for incarnation, text in ((1, "SyntaxError\n"), (2, "")):
        folder.incarnation(0, incarnation).mkdir(parents=True)
        (folder.incarnation(0, incarnation) / "rank-0.log").write_text(text)
    done = subprocess.run(
        [*HPCSCHED, "logs", str(tmp_path), "0"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "incarnation 2: nothing was written (yet); --incarnation 1 did write" in done.stderr


def test_logs_follow_a_growing_file(folder: RunFolder) -> None:
    log = folder.rank_log(3, 1, 0)
    for file in log.parent.glob("rank-*.log"):
        file.unlink()
    log.write_text("first\nsec")
    process = subprocess.Popen(
        [*HPCSCHED, "logs", str(folder.root), "3", "--incarnation", "1", "-f"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "first\n"
        with log.open("a") as stream:
            stream.write("ond\n")
        assert process.stdout.readline() == "second\n"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", ["status", "replay", "report", "explain", "logs"])
def test_a_folder_that_is_no_run_is_an_input_error_without_a_traceback(tmp_path: Path, command: str) -> None:
    more = (0,) if command in ("explain", "logs") else ()
    assert str(tmp_path) in call(command, tmp_path, *more, expect=2)
