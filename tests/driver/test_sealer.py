"""The child that makes log.h5."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import h5py
import pytest

from hpcsched.driver.sealer import Sealer
from hpcsched.eventlog.hdf5 import LogMaker, is_up_to_date, seal
from hpcsched.runfolder import RunFolder
from tests.support.openfiles import many_open
from tests.support.runs import a_run


def contents(file: Path) -> dict[str, object]:
    """Rows of all tables in any order, and the attributes."""
    with h5py.File(file, "r") as log:
        tables = {name: sorted(repr(row) for row in log[name][()]) for name in log}
        return tables | {f"@{name}": repr(value) for name, value in log.attrs.items()}


def test_the_last_seal_makes_the_log_and_says_nothing(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    folder.log.unlink(missing_ok=True)
    assert Sealer(folder).finish(60.0) is None
    assert folder.log.exists()


def test_modules_of_the_folder_one_stands_in_do_not_get_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "string.py").write_text("raise SystemExit('this is the training script')")
    folder = a_run(tmp_path / "run")
    folder.log.unlink(missing_ok=True)
    monkeypatch.chdir(tmp_path)
    assert Sealer(folder).finish(60.0) is None


def test_a_seal_that_fails_says_why(tmp_path: Path) -> None:
    trouble = Sealer(RunFolder(tmp_path / "nothing")).finish(60.0)
    assert trouble is not None
    assert "journal" in trouble


def test_a_log_that_was_read_along_is_the_log_made_at_once(tmp_path: Path) -> None:
    """Cut anywhere: whatever is published in between is whole, and the end is the same."""
    folder = a_run(tmp_path / "run")
    whole = folder.segment(1).read_bytes()
    part = RunFolder(tmp_path / "part")
    part.journal.mkdir(parents=True)
    header = whole.index(b"\n") + 1
    part.segment(1).write_bytes(whole[:header])
    maker = LogMaker(part)
    for number, end in enumerate(
        (len(whole) // 3, len(whole) // 2, len(whole) // 2, len(whole) - 5, len(whole))
    ):
        part.segment(1).write_bytes(whole[:end])
        maker.poll()
        if number % 2:
            maker.publish()
            once = tmp_path / f"once-{number}.h5"
            seal(part, to=once)
            assert contents(part.log) == contents(once)
    maker.publish(last=True)
    maker.close()
    assert is_up_to_date(part)
    assert contents(part.log) == contents(seal(folder))
    assert [file.name for file in part.root.iterdir() if file.name.startswith(".")] == []


def test_a_child_that_reads_along_adds_the_rest_at_the_end(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    whole = folder.segment(1).read_bytes()
    folder.log.unlink(missing_ok=True)
    folder.segment(1).write_bytes(whole[: len(whole) // 2])
    sealer = Sealer(folder)
    sealer._first_at = sealer._publish_at = 0.0
    sealer.now_and_then()
    assert is_up_to_date(folder)
    child = sealer._follower
    assert child is not None
    os.kill(child.pid, signal.SIGTERM)  # as all processes of a job that is cancelled
    folder.segment(1).write_bytes(whole)
    sealer.now_and_then()
    assert not is_up_to_date(folder), "it has read on and not published: that would be too often"
    assert sealer.finish(60.0) is None
    assert is_up_to_date(folder)
    assert child.returncode is not None
    assert not list(folder.root.glob(".log.h5-*"))


def test_a_driver_with_a_thousand_open_files_has_its_log_brought_up_to_date(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    folder.log.unlink(missing_ok=True)
    sealer = Sealer(folder)
    sealer._first_at = sealer._publish_at = 0.0
    with many_open(1024):
        sealer.now_and_then()
        assert is_up_to_date(folder)
        sealer.close()


@pytest.mark.parametrize("when", ["idle", "before it is asked"])
def test_a_child_that_dies_is_replaced(tmp_path: Path, when: str) -> None:
    folder = a_run(tmp_path / "run")
    folder.log.unlink(missing_ok=True)
    sealer = Sealer(folder)
    sealer._first_at = 0.0
    sealer.now_and_then()
    child = sealer._follower
    assert child is not None
    child.kill()
    child.wait()
    if when == "idle":
        sealer.now_and_then()
        assert sealer._follower is None
    assert sealer.finish(60.0) is None
    assert is_up_to_date(folder)
    assert not list(folder.root.glob(".log.h5-*"))


def test_a_child_whose_driver_is_gone_ends_and_leaves_nothing(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    sealer = Sealer(folder)
    sealer._first_at = 0.0
    sealer.now_and_then()
    child = sealer._follower
    assert child is not None
    assert child.stdin is not None
    assert list(folder.root.glob(".log.h5-*"))
    child.stdin.close()
    child.wait(30.0)
    assert not list(folder.root.glob(".log.h5-*"))
    sealer.close()


def stuck_python(tmp_path: Path) -> str:
    """In place of the interpreter: says that it is there and sleeps for ever."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport pathlib, time\npathlib.Path({str(tmp_path / 'there')!r}).touch()\ntime.sleep(600)\n"
    )
    script.chmod(0o755)
    return str(script)


def test_a_seal_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    assert (
        Sealer(RunFolder(tmp_path), python=stuck_python(tmp_path)).finish(0.2) == "it took longer than 0.2 s"
    )


def test_the_last_seal_ends_one_that_is_under_way(tmp_path: Path) -> None:
    """Else the older log could be put in place after the newer one."""
    sealer = Sealer(RunFolder(tmp_path), python=stuck_python(tmp_path))
    sealer._first_at = 0.0
    thread = threading.Thread(target=sealer.now_and_then)
    thread.start()
    while not (tmp_path / "there").exists():
        pass
    assert sealer.finish(0.2) is not None
    thread.join(10.0)
    assert not thread.is_alive()


def test_a_last_seal_that_is_killed_is_tried_once_more(tmp_path: Path) -> None:
    """Found by half an hour of everything failing."""
    folder = a_run(tmp_path / "run")
    folder.log.unlink(missing_ok=True)
    script = tmp_path / "python"
    there = tmp_path / "there"
    script.write_text(
        f'#!/bin/sh\ntest -e {there} && exec {sys.executable} "$@"\ntouch {there}\nkill -9 $$\n'
    )
    script.chmod(0o755)
    assert Sealer(folder, python=str(script)).finish(60.0) is None
    assert is_up_to_date(folder)
