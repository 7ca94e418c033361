"""The launcher for one computer, without a supervisor: its interpreter is another program."""

from __future__ import annotations

import queue
from pathlib import Path

from hpcsched.launch.launcher import StepEnded
from hpcsched.launch.local import LocalLauncher
from hpcsched.launchspec import Channel, SpareSpec
from hpcsched.runfolder import RunFolder


def launcher_of(folder: Path, script: str) -> tuple[LocalLauncher, queue.SimpleQueue[object]]:
    """Its interpreter does this instead; with what it notifies of."""
    notices: queue.SimpleQueue[object] = queue.SimpleQueue()
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return LocalLauncher(
        RunFolder(folder), notify=notices.put, python=str(program), kill_grace_s=0.01
    ), notices


def test_what_is_forgotten_and_over_is_kept_no_more(tmp_path: Path) -> None:
    launcher, notices = launcher_of(tmp_path, "exit 0")
    for number in range(2):
        launcher.start_spare(SpareSpec(number, "here", Channel((), "", ""), str(tmp_path), ()))
        ended = notices.get(timeout=20.0)
        assert isinstance(ended, StepEnded)
        assert ended.trial_id == number
    assert set(launcher._launches) == {(0, 0), (1, 0)}, "the loop may still ask for them"
    launcher.forget(0, 0)
    launcher.kill(1, 0)
    assert isinstance(notices.get(timeout=20.0), StepEnded)
    launcher.forget(1, 0)
    assert not launcher._launches


def test_what_is_forgotten_while_it_runs_is_kept_until_it_has_ended(tmp_path: Path) -> None:
    launcher, notices = launcher_of(tmp_path, "exec sleep 600")
    launcher.start_spare(SpareSpec(0, "here", Channel((), "", ""), str(tmp_path), ()))
    launcher.forget(0, 0)
    assert set(launcher._launches) == {(0, 0)}
    launcher.close()
    assert isinstance(notices.get(timeout=20.0), StepEnded)
    assert not launcher._launches
