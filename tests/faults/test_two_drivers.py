"""Two drivers on one run folder, on one host and on two (a second host name by a UTS namespace)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.eventlog.lease import STALE_S
from tests.support.e2e import Job, Run, clean_environ, light_job, wait_until

LONG = {"step_s": 0.3}


def elsewhere(job: Job) -> Run:
    """`hpcsched run --resume` on a host of another name."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a second host name needs root and unshare")
    number = len(list(job.folder.glob("driver-*.out"))) + 1
    out, err = job.folder / f"driver-{number}.out", job.folder / f"driver-{number}.err"
    command = [sys.executable, "-m", "hpcsched", "run", str(job.run_dir), "--resume"]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh", *command], env=clean_environ(),
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True, cwd=job.folder,
        )  # fmt: skip
    return Run(job, process, out, err)


def test_a_second_driver_on_another_host_is_refused_while_the_lease_is_fresh(tmp_path: Path) -> None:
    job = light_job(tmp_path, [LONG] * 2, deadline="10m", max_iterations=100_000)
    first = job.start()
    first.waits_for(ev.ResultReported, 2)
    second = elsewhere(job)
    assert second.ends() == 2, second.told()
    assert "in use by another driver" in second.err
    assert not first.folder.segment(2).exists()
    first.signal(signal.SIGTERM)
    assert first.ends() == 75
    first.check()


@pytest.mark.timeout(300)
def test_a_driver_that_slept_through_a_takeover_writes_nothing_more(tmp_path: Path, long_run: bool) -> None:
    """Stopped for longer than its lease lasts; another host takes over; it wakes and finds that it is over.

    Ages are differences of two times of the file system, so that a lease can be made old without waiting; with --long it grows old.
    """
    job = light_job(tmp_path, [LONG] * 2, deadline="10m", max_iterations=100_000)
    first = job.start()
    first.waits_for(act.PublishBest)
    first.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    if not long_run:
        renewed_at = first.folder.lease.stat().st_mtime
        os.utime(first.folder.lease, (renewed_at, renewed_at - STALE_S - 2.0))
        stopped -= STALE_S + 3.0
    try:
        wait_until(
            lambda: time.monotonic() - stopped > STALE_S + 2.0, "the lease is old", limit_s=STALE_S + 10.0
        )
        second = elsewhere(job)
        num = len(first.events(ev.ResultReported))
        second.waits_for(ev.ResultReported, num + 3)
        before = first.folder.segment(1).read_bytes()
        lease = first.folder.lease.read_bytes()
    finally:
        first.signal(signal.SIGCONT)
    assert first.ends() not in (0, 75)
    assert "taken over" in first.err
    assert first.folder.segment(1).read_bytes() == before, "it wrote into the journal after the takeover"
    assert b"elsewhere" in first.folder.lease.read_bytes(), "it took the lease back"
    assert b"elsewhere" in lease
    num = len(second.events(ev.ResultReported))
    second.waits_for(ev.ResultReported, num + 3)
    second.signal(signal.SIGTERM)
    assert second.ends() == 75
    second.check()
