from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcsched
from hpcsched.errors import InputError, JournalDamagedError, LogError, RunFolderError
from hpcsched.eventlog.hdf5 import seal
from hpcsched.eventlog.lease import acquire
from tests.support.runs import EXPERIMENT, Script, a_run, go_on


def test_a_run_is_loaded_as_arrays_with_text_as_text(tmp_path: Path) -> None:
    log = hpcsched.load(a_run(tmp_path).root)
    assert (log.metric, log.mode, log.deadline_s, log.experiment) == ("accuracy", "max", 30.0, EXPERIMENT)
    assert isinstance(log.placements["node"][0], str)
    assert isinstance(log.actions["because"][0], str)
    assert log.best is not None
    assert log.config(log.best["trial_id"])["momentum"] == 0.9
    for wrong in (len(log.trials), -1):
        with pytest.raises(
            InputError, match=rf"there is no trial {wrong}; there are 0 to {len(log.trials) - 1}"
        ):
            log.config(wrong)
    own = log.results[log.results["trial_id"] == log.best["trial_id"]]
    assert np.nanmax(own["metric"]) == log.best["metric"]
    assert log.best_curve["metric"][-1] == log.best["metric"]
    assert sum(log.atom_seconds.values()) == pytest.approx(4 * log.end_s)


def test_an_old_log_is_made_anew_and_one_that_is_up_to_date_is_left(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    assert hpcsched.load(str(folder.root)).state == "running"
    first = folder.log.stat().st_ino
    hpcsched.load(folder.root)
    assert folder.log.stat().st_ino == first
    go_on(folder, at=8.0)
    assert hpcsched.load(folder.root).state == "finished"
    assert folder.log.stat().st_ino != first


def test_of_a_large_run_that_is_driven_the_drivers_own_log_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    before = hpcsched.load(folder.root).last_s
    inode = folder.log.stat().st_ino
    go_on(folder, at=8.0)
    monkeypatch.setattr("hpcsched.report.load.LARGE_BYTES", 1)
    lease = acquire(folder)
    assert hpcsched.load(folder.root).last_s == before
    assert folder.log.stat().st_ino == inode
    lease.release()
    assert hpcsched.load(folder.root).last_s > before


def test_a_log_alone_can_be_read(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    seal(folder)
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    shutil.copy(folder.log, alone / "log.h5")
    assert len(hpcsched.load(alone).trials) == len(hpcsched.load(alone / "log.h5").trials) == 12


def test_a_run_folder_that_cannot_be_written_is_read_all_the_same(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    drop = "os.setegid(65534); os.seteuid(65534); " if os.geteuid() == 0 else ""
    code = (
        f"import os, sys; from hpcsched.report.load import load; {drop}print(len(load(sys.argv[1]).trials))"
    )
    closed = [parent for parent in tmp_path.parents if parent.stat().st_mode & 0o005 != 0o005]
    readable = [tmp_path, *closed, *folder.root.rglob("*"), folder.root]
    before = {path: path.stat().st_mode for path in readable}
    for path in readable:
        path.chmod(0o755 if path.is_dir() else 0o644)
    folder.root.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder.root)], capture_output=True, text=True, check=False
        )
    finally:
        for path, mode in before.items():
            path.chmod(mode)
    assert done.stdout == "12\n", done.stderr
    assert not folder.log.exists()


def test_what_is_no_log_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="neither a run folder"):
        hpcsched.load(tmp_path)
    (tmp_path / "x.h5").write_text("no")
    with pytest.raises(LogError, match="not a log of hpcsched"):
        hpcsched.load(tmp_path / "x.h5")


def test_a_damaged_journal_is_not_hidden_by_an_old_log(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    seal(folder)
    go_on(folder, at=8.0)
    data = bytearray(folder.segment(2).read_bytes())
    data[300] ^= 4
    folder.segment(2).write_bytes(bytes(data))
    with pytest.raises(JournalDamagedError):
        hpcsched.load(folder.root)


def test_frames_where_pandas_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="no pandas here: frames are not tried")
    log = hpcsched.load(a_run(tmp_path).root)
    frame = log.frame("results")
    assert len(frame) == len(log.results)
    assert list(frame.columns) == list(log.results.dtype.names)
    trials = hpcsched.open_run(log.file.parent).trials
    assert list(trials.columns[:3]) == ["state", "rung", "iteration"]


def test_without_pandas_a_frame_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(LogError, match="pip install pandas"):
        hpcsched.load(a_run(tmp_path).root).frame("results")
