"""Nobody reads what a run prints, and its stderr goes to a full disk: the run does not notice."""

from __future__ import annotations

import os
from pathlib import Path

from hpcsched.eventlog.lease import read_lease
from hpcsched.launch.openfiles import MOST
from tests.support.e2e import environs_of_ranks, light_job, wait_until
from tests.support.openfiles import limit_of, soft_limit
from tests.support.unread import drained, full_pipe


def test_a_run_whose_output_nobody_reads_ends_in_order_and_tells_its_end_to_the_next_reader(
    tmp_path: Path,
) -> None:
    reader, writer = full_pipe()
    job = light_job(tmp_path, [{"step_s": 0.2}], max_iterations=2)
    with Path("/dev/full").open("w") as full, soft_limit(200) as hard:
        run = job.start(stdout=writer, stderr=full.fileno())
    os.close(writer)
    limits: set[int] = set()
    wait_until(
        lambda: limits.update(limit_of(pid) for pid, _ in environs_of_ranks(job.run_dir)) or limits,
        "there is a rank",
    )
    assert limits == {200}, "the user's"
    wait_until(
        lambda: run.folder.lease.exists() and read_lease(run.folder).released,
        "the run is over although nobody has read a line",
    )
    assert limit_of(run.process.pid) == (min(hard, MOST) if hard >= 0 else MOST)
    assert run.folder.log.exists(), "it is sealed before the last words"
    said = drained(reader, "look at it")
    assert "best trial    0" in said
    assert run.ends() == 0
    os.close(reader)
    run.check()
