"""Finding the processes of a run by what they cannot shake off."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hpcsched.launch.processes import end_marked, marked
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
