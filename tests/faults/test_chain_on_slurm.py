"""One experiment through several allocations of one batch job, and an end that is moved while it runs, on the real cluster."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import End, Header
from tests.support.cluster import Cluster
from tests.support.e2e import Run, light_job, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

LONG = {"step_s": 0.3}


@pytest.mark.long  # Slurm begins a requeued job two minutes later
def test_an_allocation_is_requeued_twice_in_one_experiment(tmp_path: Path, cluster: Cluster) -> None:
    """Warned by USR2 as before its end, it saves, is suspended and queues itself again; the third allocation ends it."""
    job = light_job(
        tmp_path, [LONG | {"height": 0.5 + 0.1 * number} for number in range(4)], num_atoms=None, deadline="5m",
        max_iterations=90, experiment='span = "chain"',
    )  # fmt: skip
    out, err = tmp_path / "driver-1.out", tmp_path / "driver-1.err"
    script = tmp_path / "job.sh"
    command = shlex.join(
        [sys.executable, "-m", "hpcsched", "run", str(job.file), "--run-dir", str(job.run_dir), "--requeue"]
    )
    resume = f"$(test -d {shlex.quote(str(job.run_dir / 'journal'))} && echo --resume)"
    script.write_text(f"#!/bin/bash\nexec {command} {resume}\n")
    job_id = cluster.sbatch(
        "-N1",
        "--gres=gpu:4",
        "-t10",
        "--requeue",
        "--open-mode=append",
        "-o",
        str(out),
        "-e",
        str(err),
        str(script),
    )
    run = Run(job, None, out, err)  # type: ignore[arg-type]  # the driver is not our child

    def lives() -> list[Header]:
        if not run.folder.segment(1).exists():
            return []
        return [record for record in read_journal(run.folder) if isinstance(record, Header)]

    asked_at = 0.0

    def begins(life: int) -> bool:
        """Slurm holds a requeued job back for two minutes; its owner may say "now", once it has ended completely."""
        nonlocal asked_at
        if time.monotonic() > asked_at + 2.0:
            asked_at = time.monotonic()
            cluster.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
        return len(lives()) == life

    try:
        wait_until(lambda: len(lives()) == 1, lambda: f"the first life begins\n{run.told()}")
        for life in (1, 2):
            num = len(run.steps())
            wait_until(
                lambda num=num: (
                    sum(isinstance(step.event, ev.ResultReported) for step in run.steps()[num:]) >= 8
                ),  # type: ignore[misc]
                lambda: f"trials report\n{run.told()}",
            )
            cluster.run(["scancel", "--batch", "--signal=USR2", job_id])
            wait_until(lambda life=life: run.err.count("is back in the queue") == life, run.told)
            wait_until(lambda life=life: begins(life + 1), lambda: f"the next life begins\n{run.told()}")  # type: ignore[misc]  # bound now
        wait_until(lambda: job_id not in cluster.jobs(), lambda: f"the job ends\n{run.told()}", limit_s=240.0)
    finally:
        cluster.run(["scancel", job_id])
    run.check()
    assert len(lives()) == 3
    ends = [record for record in read_journal(run.folder) if isinstance(record, End)]
    assert [end.exit_code for end in ends] == [75, 75, 0]
    assert run.status["trials"]["completed"] == 4
    for trial in range(4):
        starts = run.actions(act.StartTrial, trial_id=trial)
        assert len(starts) == 3
        assert all(start.checkpoint is not None for start in starts[1:])
    reported = [(event.trial_id, event.training_iteration) for event in run.events(ev.ResultReported)]
    assert len(reported) == len(set(reported)) == 4 * 90, (
        "everybody saved when warned: nothing was trained twice"
    )
    times = [step.event.time for step in run.steps()]
    assert times == sorted(times)


@pytest.mark.long
def test_a_chain_saves_before_its_job_ends_though_nobody_warns_it(tmp_path: Path, cluster: Cluster) -> None:
    """A job of a minute, of which half is kept in reserve; an iteration takes 4 s, a save 2 s."""
    slow = {"step_s": 4.0, "save_s": 2.0}
    job = light_job(
        tmp_path, [slow] * 2, num_atoms=None, deadline="10m", max_iterations=1000, experiment='span = "chain"',
        extra='[timeouts]\nreserve = "30s"\n',
    )  # fmt: skip
    with cluster.allocation("-N1", "--gres=gpu:2", "-t", "1") as allocation:
        run = job.start(inside=allocation)
        assert run.ends() == 75, run.told()
        assert cluster.job_state(allocation.job_id) == "RUNNING", "soon enough to be queued again"
        run.check()
    (warned,) = run.events(ev.AllocationEnding)
    assert run.status["state"] == "suspended"
    reported = dict.fromkeys(range(2), 0)
    saved = dict(reported)
    for step in run.steps():
        if isinstance(step.event, ev.ResultReported):
            reported[step.event.trial_id] = step.event.training_iteration
        elif isinstance(step.event, ev.CheckpointSaved):
            saved[step.event.trial_id] = step.event.training_iteration
            assert step.event.time <= warned.at
    assert saved == reported, "nothing that was trained is lost"


@pytest.mark.long  # Slurm's limits are whole minutes
def test_a_longer_time_limit_is_noticed_and_used(tmp_path: Path, cluster: Cluster) -> None:
    job = light_job(
        tmp_path, [LONG] * 4, num_atoms=None, deadline="150s", max_iterations=100_000,
        extra='[timeouts]\nreserve = "50s"\n',
    )  # fmt: skip
    with cluster.allocation("-N1", "--gres=gpu:4", "-t", "2") as allocation:
        run = job.start(inside=allocation)
        run.waits_for(act.PublishBest, 2)
        first = run.events(ev.ExperimentBegan)[0].deadline_s
        assert first < 75.0
        told = cluster.run(["scontrol", "update", f"JobId={allocation.job_id}", "TimeLimit=4"])
        assert told.returncode == 0, told.stderr
        event = run.waits_for(ev.DeadlineChanged)
        assert event.deadline_s == pytest.approx(150.0), "the file's own deadline is the earlier one now"
        told = cluster.run(["scontrol", "update", f"JobId={allocation.job_id}", "TimeLimit=2"])
        assert told.returncode == 0, told.stderr
        again = run.waits_for(ev.DeadlineChanged, 2)
        assert again.deadline_s < 75.0
        assert run.ends() == 0
        run.check()
    assert run.status["best"]["saved_s"] <= again.deadline_s
