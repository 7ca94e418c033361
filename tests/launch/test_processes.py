"""Finding the processes of a run by what they cannot shake off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hpcsched.launch.processes import CLEANER_S, CleanersLast, Process, end_marked, marked
from tests.support.cluster import wait_until


def test_a_process_without_any_mark_is_found_by_the_rank_log_that_it_writes(tmp_path: Path) -> None:
    log = tmp_path / "trials" / "3" / "1" / "rank-0.log"
    log.parent.mkdir(parents=True)
    with log.open("ab") as output:
        writer = subprocess.Popen(["sleep", "600"], env={}, stdout=output, start_new_session=True)
    with log.open("rb") as given:
        reader = subprocess.Popen(["sleep", "600"], env={}, stdin=given, start_new_session=True)
    try:
        # Popen has returned from exec, but /proc may lag behind it.
        wait_until(lambda: Path(f"/proc/{reader.pid}/fd/0").exists(), "both run")
        nothing = {"HPCSCHED_RUN_DIR": "no such run"}
        assert [each.pid for each in marked(nothing, logs_under=tmp_path / "trials")] == [writer.pid]
        assert marked(nothing, logs_under=tmp_path / "trials" / "4") == []
        assert marked(nothing) == []
        found, gone = end_marked(nothing, limit_s=10.0, logs_under=tmp_path / "trials")
        assert [each.pid for each in found] == [writer.pid]
        assert gone
        assert reader.poll() is None, "who reads a log is left alone"
    finally:
        for process in (writer, reader):
            process.kill()
            process.wait()


SHARES = """
import os, sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=4096)
print(memory.name, flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_shares_is_deleted_by_its_tracker_before_that_is_killed_too() -> None:
    marks = {"HPCSCHED_RUN_DIR": f"a run that shares memory, {id(object())}"}
    sharing = subprocess.Popen([sys.executable, "-c", SHARES], env=marks, stdout=subprocess.PIPE, text=True)
    try:
        assert sharing.stdout is not None
        shared = Path("/dev/shm") / sharing.stdout.readline().strip()
        assert shared.is_file()
        found, gone = end_marked(marks, limit_s=10.0)
        assert len(found) == 2, "it and its tracker"
        assert gone
        assert not shared.exists()
    finally:
        sharing.kill()
        sharing.communicate()


def test_who_cleans_up_is_killed_last_and_in_any_case() -> None:
    rank, tracker = Process(5, 1, "S", 100), Process(6, 1, "S", 101)
    last = CleanersLast(lambda process: process is tracker)
    assert last.of([rank, tracker], 10.0) == [rank]
    assert last.of([tracker], 11.0) == ()
    assert last.of([rank, tracker], 11.5) == [rank], "another rank was found"
    assert last.of([tracker], 12.0) == ()
    assert last.of([tracker], 12.0 + CLEANER_S) == [tracker]
