"""Whole runs inside real Slurm allocations: four hosts, steps by srun."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import Outcome, PreemptReason
from hpcsched.core.ids import Incarnation
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header
from tests.support.cluster import Cluster, slurmbox
from tests.support.e2e import Job, Run, clean_environ, light_job, wait_until

pytestmark = pytest.mark.slurm

LONG = {"step_s": 0.2}


def long(value: str) -> object:
    """A parameter of the full counts."""
    return pytest.param(value, marks=pytest.mark.long)


@pytest.fixture(params=["cluster", "confined_cluster"])
def any_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Steps unconfined, and confined to their devices and cores by cgroups."""
    yield request.getfixturevalue(request.param)


def on_slurm(folder: Path, configs: list[dict[str, Any]], **options: Any) -> Job:
    return light_job(folder, configs, **{"num_atoms": None, "deadline": "10m"} | options)


def nodes_of(run: Run, trial_id: int) -> list[set[str]]:
    """Hosts of each incarnation of a trial."""
    machine = run.events(ev.ExperimentBegan)[0].machine
    return [
        {machine.atoms[atom].node for atom in action.placement.atoms}
        for action in run.actions(act.StartTrial, trial_id=trial_id)
    ]


def test_misbehaving_trials_in_steps(tmp_path: Path, any_cluster: Cluster) -> None:
    expected = {
        "": ["completed"],
        "crash": ["crashed", "crashed"],
        "hang": ["killed", "killed"],
        "exit 0": ["crashed", "crashed"],
        "killed": ["crashed", "crashed"],
        "daemon": ["completed"],
        "child, then crash": ["crashed", "crashed"],
        "huge line": ["completed"],
        "out of memory": ["out_of_memory", "out_of_memory"],
        "exit 5 after leaving": ["completed"],
    }
    job = on_slurm(
        tmp_path, [{"do": name} for name in expected],
        extra='[timeouts]\nsilence = "4s"\npreempt_grace = "4s"\n[retries]\nfail_fast = 0\n',
    )  # fmt: skip
    with any_cluster.allocation() as allocation:
        run = job.start(inside=allocation)
        assert run.ends() == 0
        run.check()
    # Five of ten die on purpose: two that are left alone on a node may have it suspected, which costs one more try and no more.
    suspected = [
        event for event in run.events(ev.TrialExited) if "one trial after another dies on" in event.why
    ]
    assert all(event.outcome is Outcome.NODE_FAILED for event in suspected)
    outcomes = run.outcomes()
    for event in suspected:
        outcomes[event.trial_id].remove(event.outcome.value)
    assert outcomes == dict(enumerate(expected.values()))


@pytest.mark.parametrize("how", ["SIGKILL", long("SIGINT"), long("SIGTERM")])
def test_ends_leave_no_step_and_no_process(tmp_path: Path, any_cluster: Cluster, how: str) -> None:
    job = on_slurm(tmp_path, [LONG | {"do": "daemon"}] * 5, max_iterations=100_000)
    with any_cluster.allocation() as allocation:
        run = job.start(inside=allocation)
        run.waits_for(ev.ResultReported, 15)
        run.signal(signal.Signals[how])
        if how == "SIGKILL":
            run.kill()
            num = len(run.events(ev.ResultReported))
            run = job.start(inside=allocation, resume=True)
            run.waits_for(ev.ResultReported, num + 10)
            assert "ended what an earlier driver had left" in run.err
            run.signal(signal.SIGINT)
        assert run.ends() == 75
        run.check()


def test_scancel_of_the_job_leaves_a_complete_log_and_nothing_else(
    tmp_path: Path, confined_cluster: Cluster
) -> None:
    job = on_slurm(tmp_path, [LONG | {"do": "daemon"}] * 5, max_iterations=100_000)
    out, err = tmp_path / "driver-1.out", tmp_path / "driver-1.err"
    script = tmp_path / "job.sh"
    command = [sys.executable, "-m", "hpcsched", "run", str(job.file), "--run-dir", str(job.run_dir)]
    script.write_text(f"#!/bin/bash\nexec {shlex.join(command)}\n")
    job_id = confined_cluster.sbatch(
        "-N4", "--gres=gpu:4", "--exclusive", "--no-kill", "-o", str(out), "-e", str(err), str(script)
    )
    run = Run(job, None, out, err)  # type: ignore[arg-type]  # the driver is not our child
    try:
        wait_until(lambda: len(run.events(ev.ResultReported)) >= 15, lambda: f"trials report\n{run.told()}")
    finally:
        confined_cluster.run(["scancel", job_id])
    wait_until(lambda: job_id not in confined_cluster.jobs(), "the job is gone")
    run.check()
    assert run.status["state"] == "suspended"


def test_a_driver_outside_of_a_job_that_is_cancelled_suspends_the_run(
    tmp_path: Path, cluster: Cluster
) -> None:
    """Nobody signals it, as on a login node where salloc has started it: it went on to its deadline, all launches being refused."""
    job = on_slurm(tmp_path, [LONG] * 3, max_iterations=100_000)
    with cluster.allocation("-N2", "--gres=gpu:2") as allocation:
        run = job.start(inside=allocation)
        run.waits_for(ev.ResultReported, 9)
        cluster.run(["scancel", allocation.job_id])
        assert run.ends() == 75
    run.check()
    assert run.status["state"] == "suspended"
    assert f"the Slurm job {allocation.job_id} is over: it is CANCELLED" in run.told()
    assert all(event.outcome is not Outcome.LAUNCH_FAILED for event in run.events(ev.TrialExited))


def test_a_trial_grows_over_two_hosts(tmp_path: Path, cluster: Cluster) -> None:
    """One GPU on each of four hosts: whoever holds two spans two."""
    job = on_slurm(
        tmp_path, [{"height": 0.3 + 0.1 * number} for number in range(4)], policy="hypersched", deadline="30s",
        max_iterations=2187, scheduler='entrance = "reversible"\nkeep_paused = true\n', extra='[scaling]\nassume = "linear"\n',
    )  # fmt: skip
    with cluster.allocation("-N4", "--gres=gpu:1", "--no-kill") as allocation:
        run = job.start(inside=allocation)
        run.waits_for_size(2)
        run.signal(signal.SIGINT)
        assert run.ends() == 75
        run.check()
    assert run.status["num_atoms"] == 4
    assert run.status["counts"]["resized_up"] >= 1
    assert run.status["counts"]["failed"] == 0
    widest = max((hosts for trial in run.outcomes() for hosts in nodes_of(run, trial)), key=len)
    assert len(widest) >= 2


def test_hosts_of_unequal_gpu_count(tmp_path: Path) -> None:
    """Three GPUs on n1, one on n2, two on n3. In a job whose first host holds one, Slurm shows no step more than one on the
    others (22.05.8): then these are used, nothing is refused, and it is told."""
    with slurmbox(NODES="3", GPUS="3 1 2") as uneven:
        for hosts, num_gpus in (("n1,n2", [3, 1]), ("n2,n3", [1, 1])):
            job = on_slurm(
                tmp_path / hosts, [{"height": 0.3 + 0.1 * number} for number in range(3)], policy="hypersched",
                deadline="30s", max_iterations=2187, scheduler='entrance = "reversible"\nkeep_paused = true\n',
                extra='[scaling]\nassume = "linear"\n',
            )  # fmt: skip
            with uneven.allocation("-N2", "-w", hosts, "--exclusive", "--no-kill") as allocation:
                run = job.start(inside=allocation)
                run.waits_for_size(2)
                run.signal(signal.SIGINT)
                assert run.ends() == 75
                run.check()
            machine = run.events(ev.ExperimentBegan)[0].machine
            assert [len(node.gpus) for node in machine.nodes] == num_gpus
            assert ("a step is shown 1" in run.err) == (hosts == "n2,n3"), run.err
            assert run.status["counts"]["failed"] == 0
            assert not run.events(ev.LaunchRefused), run.told()


def test_a_dead_node_costs_its_trials_one_incarnation_and_comes_back(
    tmp_path: Path, cluster: Cluster
) -> None:
    job = on_slurm(tmp_path, [LONG] * 8, max_iterations=100_000)
    with cluster.allocation("-N4", "--gres=gpu:3", "--no-kill") as allocation:
        run = job.start(inside=allocation)
        for trial_id in range(8):
            run.waits_for(ev.CheckpointSaved, 3, trial_id=trial_id)
        began = {trial_id: nodes_of(run, trial_id)[0] for trial_id in range(8)}
        victim = sorted(began[0])[0]
        hit = {trial_id for trial_id, hosts in began.items() if victim in hosts}
        cluster.kill_node(victim)
        try:
            for trial_id in hit:
                again = run.waits_for(act.StartTrial, trial_id=trial_id, incarnation=2)
                assert again.checkpoint.training_iteration >= 3
                run.waits_for(ev.ResultReported, trial_id=trial_id, incarnation=2)
        finally:
            cluster.restore_node(victim)
        run.waits_for(ev.NodeUp, node=victim)
        run.signal(signal.SIGINT)
        assert run.ends() == 75
        # Slurm shows the dead node's steps until the job ends (22.05), though nothing of them runs.
        run.check(ghosts=True)
    assert run.events(ev.NodeDown, node=victim)
    for trial_id in range(8):
        launches = nodes_of(run, trial_id)
        assert len(launches) == (2 if trial_id in hit else 1), f"trial {trial_id}: {launches}"
        if trial_id in hit:
            assert victim not in launches[1]
            assert run.outcomes()[trial_id][0] == "node_failed"


def test_the_allocation_s_end_less_the_reserve_is_the_deadline(tmp_path: Path, cluster: Cluster) -> None:
    job = on_slurm(
        tmp_path, [LONG] * 4, max_iterations=100_000, extra='[timeouts]\nreserve = "106s"\n', deadline="1h"
    )
    with cluster.allocation("-N1", "--gres=gpu:4", "-t", "2") as allocation:
        run = job.start(inside=allocation)
        assert run.ends() == 0
        run.check()
    status = run.status
    assert 2 < status["deadline_s"] < 14.5
    assert status["best"]["saved_s"] <= status["deadline_s"]


def test_a_shortened_allocation_is_noticed(tmp_path: Path, cluster: Cluster) -> None:
    """And the best checkpoint stands before its new end less the reserve."""
    job = on_slurm(
        tmp_path, [LONG] * 4, max_iterations=100_000, extra='[timeouts]\nreserve = "90s"\n', deadline=None
    )
    with cluster.allocation("-N1", "--gres=gpu:4", "-t", "30") as allocation:
        run = job.start(inside=allocation)
        run.waits_for(act.PublishBest, 2)
        told = cluster.run(["scontrol", "update", f"JobId={allocation.job_id}", "TimeLimit=2"])
        assert told.returncode == 0, told.stderr
        event = run.waits_for(ev.DeadlineChanged)
        assert run.ends() == 0
        run.check()
    assert event.deadline_s < 35
    assert run.status["best"]["saved_s"] <= event.deadline_s


def test_the_driver_in_a_batch_job_is_warned_before_the_end(tmp_path: Path, cluster: Cluster) -> None:
    """`--signal=B:USR2@...` reaches the driver, which saves everything; a chain is suspended."""
    job = on_slurm(
        tmp_path, [LONG | {"save": "leave"}] * 4, max_iterations=100_000, experiment='span = "chain"'
    )
    out, err = tmp_path / "driver-1.out", tmp_path / "driver-1.err"
    script = tmp_path / "job.sh"
    command = [sys.executable, "-m", "hpcsched", "run", str(job.file), "--run-dir", str(job.run_dir)]
    script.write_text(f"#!/bin/bash\nexec {shlex.join(command)}\n")
    job_id = cluster.sbatch("-N1", "--gres=gpu:4", "-t2", "-o", str(out), "-e", str(err), str(script))
    run = Run(job, None, out, err)  # type: ignore[arg-type]  # the driver is not our child
    try:
        wait_until(lambda: len(run.events(ev.ResultReported)) >= 8, lambda: f"trials report\n{run.told()}")
        cluster.run(["scancel", "--batch", "--signal=USR2", job_id])
        wait_until(lambda: job_id not in cluster.jobs(), lambda: f"the job is gone\n{run.told()}")
    finally:
        cluster.run(["scancel", job_id])
    run.check()
    assert run.status["state"] == "suspended"
    assert {event.trial_id for event in run.events(ev.CheckpointSaved)} == {0, 1, 2, 3}


def test_more_gpus_an_atom_than_a_node_has_is_told_before_anything_starts(
    tmp_path: Path, cluster: Cluster
) -> None:
    job = on_slurm(tmp_path, [{}])
    job.file.write_text(job.file.read_text().replace("[atoms]", "[atoms]\ngpus_per_atom = 5"))
    with cluster.allocation("-N2", "--gres=gpu:4") as allocation:
        run = job.start(inside=allocation)
        assert run.ends() == 2, run.told()
        assert "gpus_per_atom" in run.err
        assert "5" in run.err
        assert "4" in run.err
        assert run.leftovers() == []


def test_sigterm_to_the_driver_leaves_no_step_of_two_hosts(tmp_path: Path, cluster: Cluster) -> None:
    """A trial of two ranks on two hosts, ended at once. It grows when the other one has failed."""
    job = on_slurm(
        tmp_path, [LONG | {"height": 0.3, "do": "crash"}, LONG | {"height": 0.4}], policy="hypersched", deadline="60s",
        max_iterations=2187, extra='[scaling]\nassume = "linear"\n',
    )  # fmt: skip
    with cluster.allocation("-N2", "--gres=gpu:1", "--no-kill") as allocation:
        run = job.start(inside=allocation)
        grown = run.waits_for(act.PreemptTrial, reason=PreemptReason.RESIZE)
        run.waits_for(
            ev.ResultReported, trial_id=grown.trial_id, incarnation=Incarnation(grown.incarnation + 1)
        )
        run.signal(signal.SIGTERM)
        assert run.ends() == 75
        run.check()
    assert len(nodes_of(run, grown.trial_id)[-1]) == 2


def test_two_lives_in_two_allocations_are_one_experiment(tmp_path: Path, cluster: Cluster) -> None:
    """The second allocation has other hosts: the machine is read anew, and checkpoints go on there."""
    job = on_slurm(tmp_path, [LONG] * 3, max_iterations=40)
    with cluster.allocation("-N1", "-w", "n1", "--gres=gpu:4") as allocation:
        run = job.start(inside=allocation)
        run.waits_for(ev.ResultReported, 15)
        run.signal(signal.SIGINT)
        assert run.ends() == 75
        run.check()
    with cluster.allocation("-N2", "-w", "n2,n3", "--gres=gpu:2") as allocation:
        run = job.start(inside=allocation, resume=True)
        assert run.ends() == 0
        run.check()
    machines = [event.machine for event in run.events(ev.ExperimentResumed)]
    assert {node.name for node in machines[0].nodes} == {"n2", "n3"}
    assert run.status["trials"]["completed"] == 3
    for trial_id in range(3):
        assert run.actions(act.StartTrial, trial_id=trial_id)[1].checkpoint is not None
    began = next(record for record in read_journal(run.folder) if isinstance(record, Header)).began_at
    assert time.time() > began
    assert json.loads(run.folder.lease.read_text())["released"]
    assert clean_environ().get("SLURM_JOB_ID") is None
