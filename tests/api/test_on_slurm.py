"""`hpcsched.start` from an interpreter inside `salloc`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpcsched
from tests.support.cluster import Cluster, cluster  # noqa: F401
from tests.support.e2e import light_job


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_an_interpreter_inside_salloc_uses_the_whole_allocation(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    job = light_job(tmp_path, [{"height": 0.5}, {"height": 0.9}], num_atoms=None, deadline="90s")
    script = f"""
import hpcsched
run = hpcsched.start({str(job.file)!r}, run_dir={str(job.run_dir)!r})
print(run.wait())
print(run.best.trial_id, run.trials.column("state") if hasattr(run.trials, "column") else list(run.trials["state"]))
"""
    with cluster.allocation("--nodes", "2", "--gres=gpu:1", "--exclusive", "--no-kill") as allocation:
        done = subprocess.run(
            [sys.executable, "-c", script], env=allocation.env, capture_output=True, text=True, timeout=240, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "finished"
    assert done.stdout.splitlines()[1].startswith("1 ")
    machine = hpcsched.open_run(job.run_dir).status
    assert machine.num_atoms == 8, "--exclusive holds all four GPUs of both nodes"
    assert '"n2"' in (job.run_dir / "machine.json").read_text()
