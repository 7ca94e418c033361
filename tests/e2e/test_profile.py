"""`hpcsched profile` as a user calls it, and its file in a search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcsched.config.load import load_experiment
from hpcsched.core import events as ev
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Step
from hpcsched.runfolder import RunFolder
from tests.support.cluster import Allocation, Cluster
from tests.support.e2e import LIMIT_S, Job, clean_environ, light_job


def profiled(job: Job, *args: str, inside: Allocation | None = None) -> tuple[dict[str, Any], str]:
    """The document, and what was printed."""
    env = clean_environ() if inside is None else inside.env
    done = subprocess.run(
        [sys.executable, "-m", "hpcsched", "profile", str(job.file), "--out", "profile.json", *args],
        env=env, cwd=job.folder, capture_output=True, text=True, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((job.folder / "profile.json").read_text()), done.stdout


def test_a_profile_on_this_machine_is_used_by_the_search_after_it(tmp_path: Path) -> None:
    """Two ranks of the light trial are twice as fast as one, four four times."""
    job = light_job(tmp_path, [{"step_s": 0.4}, {"step_s": 0.4}], policy="hypersched", max_iterations=81)
    document, told = profiled(job, "--iterations", "2")
    assert document["spans"] == {"island": {"1": 1.0, "2": 2.0, "4": 4.0}}
    assert set(document["restart_s"]) == {"1", "2", "4"}
    assert "a start" in told
    assert not list((tmp_path / "runs").iterdir())
    job.file.write_text(job.file.read_text() + '[scaling]\nprofile = "profile.json"\n')
    assert load_experiment(job.file).scaling.spans == {"island": {1: 1.0, 2: 2.0, 4: 4.0}}
    run = job.start("--deadline", "12s")
    assert run.ends() == 0
    run.check()
    assert "assumed: a profile" in run.out


def test_what_cannot_be_measured_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{"do": "crash", "at": 0}], num_atoms=2)
    done = subprocess.run(
        [sys.executable, "-m", "hpcsched", "profile", str(job.file), "--out", "profile.json"],
        env=clean_environ(), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nothing was measured" in done.stdout
    assert "run folder" in done.stdout
    assert not (tmp_path / "profile.json").exists()


@pytest.mark.slurm
def test_in_an_allocation_every_span_is_visited(tmp_path: Path, cluster: Cluster) -> None:
    """Four hosts under two leaf switches, two GPUs on each."""
    job = light_job(tmp_path, [{"step_s": 0.4}], num_atoms=None, max_iterations=81)
    with cluster.allocation("-N4", "--gres=gpu:2", "--no-kill") as allocation:
        document, _ = profiled(
            job, "--sizes", "2", "--iterations", "2", "--run-dir", str(job.run_dir), inside=allocation
        )
    assert document["spans"] == {span: {"1": 1.0, "2": 2.0} for span in ("island", "switch", "beyond")}
    steps = [record for record in read_journal(RunFolder(job.run_dir)) if isinstance(record, Step)]
    assert sum(isinstance(step.event, ev.TrialStarted) for step in steps) == 4
