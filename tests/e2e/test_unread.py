"""Nobody reads what a run prints, and its stderr goes to a full disk: the run does not notice."""

from __future__ import annotations

import os
from pathlib import Path

from hpcsched.eventlog.lease import read_lease
from tests.support.e2e import light_job, wait_until
from tests.support.unread import drained, full_pipe


def test_a_run_whose_output_nobody_reads_ends_in_order_and_tells_its_end_to_the_next_reader(
    tmp_path: Path,
) -> None:
    reader, writer = full_pipe()
    job = light_job(tmp_path, [{"step_s": 0.02}], max_iterations=2)
    with Path("/dev/full").open("w") as full:
        run = job.start(stdout=writer, stderr=full.fileno())
    os.close(writer)
    wait_until(
        lambda: run.folder.lease.exists() and read_lease(run.folder).released,
        "the run is over although nobody has read a line",
    )
    assert run.folder.log.exists(), "it is sealed before the last words"
    said = drained(reader, "look at it")
    assert "best trial    0" in said
    assert run.ends() == 0
    os.close(reader)
    run.check()
