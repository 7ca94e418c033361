"""Nodes, links, slurmd, srun and steps fail on the real cluster: how long until the trials hit train again elsewhere.

One run (a "night") lives through all of it, so that each fault also meets what the ones before have left. The limits are 8 s in the
median and 15 s at worst. A restart starts some six processes one after another (srun, its child, slurmstepd, supervisor, rank, torch's or
numpy's import), so on a machine that is too busy to run an empty step in 0.2 s the limits are longer by six times what it takes more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.driver.suspects import NUM_LOSSES
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header
from tests.support.cluster import Allocation, Cluster
from tests.support.e2e import Job, Run, light_job, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.alone, pytest.mark.timeout(600)]

MEDIAN_S, WORST_S = 8.0, 15.0
NUM_PROCESSES, QUIET_STEP_S = 6, 0.2
ROUNDS = 3
"""So often each fault comes with --long."""


def on_slurm(folder: Path, configs: Sequence[dict[str, Any]], **options: Any) -> Job:
    return light_job(
        folder, configs, **{"num_atoms": None, "deadline": "30m", "max_iterations": 1_000_000} | options
    )


@dataclass
class Night:
    """A run on four hosts of three GPUs each with eight trials, and what is measured."""

    cluster: Cluster
    allocation: Allocation
    run: Run
    times_s: dict[str, list[float]] = field(default_factory=dict)

    @property
    def began_at(self) -> float:
        return next(record for record in read_journal(self.run.folder) if isinstance(record, Header)).began_at

    def now(self) -> float:
        """On the run's clock."""
        return time.time() - self.began_at

    def where(self) -> dict[int, set[str]]:
        """Hosts of each trial's latest incarnation."""
        machine = self.run.events(ev.ExperimentBegan)[0].machine
        return {
            action.trial_id: {machine.atoms[atom].node for atom in action.placement.atoms}
            for action in self.run.actions(act.StartTrial)
        }

    def incarnations(self) -> dict[int, int]:
        return {action.trial_id: action.incarnation for action in self.run.actions(act.StartTrial)}

    def crowded(self) -> str:
        """The host with most trials, one that has not been lost twice if there is any: a third time, and it is not used again."""
        lost = [event.node for event in self.run.events(ev.NodeDown)]
        hosts = [host for hosts in self.where().values() for host in hosts]
        return max(
            sorted(set(hosts)), key=lambda host: (lost.count(host) < NUM_LOSSES - 1, hosts.count(host))
        )

    def on(self, node: str) -> list[int]:
        return sorted(trial for trial, hosts in self.where().items() if node in hosts)

    def all_train(self) -> None:
        """Every trial has reported in its latest incarnation."""

        def there() -> bool:
            latest = self.incarnations()
            seen = {(event.trial_id, event.incarnation) for event in self.run.events(ev.ResultReported)}
            return all(item in seen for item in latest.items())

        wait_until(there, lambda: f"all trials train\n{self.run.told()}")

    def step_s(self) -> float:
        """How long an empty step takes on this machine now."""
        began = time.monotonic()
        done = self.allocation.srun("--overlap", "-N1", "-n1", "--gres=none", "true")
        assert done.returncode == 0, done.stderr
        return time.monotonic() - began

    def recovers(
        self, name: str, hit: Sequence[int], before: dict[int, int], fault_s: float, busy_s: float
    ) -> None:
        """The trials that were hit train again; all others are untouched."""
        for trial in hit:
            event = self.run.waits_for(
                ev.TrialStarted, trial_id=trial, incarnation=before[trial] + 1, limit_s=90.0
            )
            self.times_s.setdefault(name, []).append(round(event.time - fault_s, 2))
            self.run.waits_for(ev.ResultReported, trial_id=trial, incarnation=before[trial] + 1)
            start = self.run.actions(act.StartTrial, trial_id=trial, incarnation=before[trial] + 1)[0]
            assert start.checkpoint is not None, "it begins anew though it had a checkpoint"
        after = self.incarnations()
        touched = {trial for trial in after if after[trial] != before[trial]}
        assert touched == set(hit), f"{name}: {touched} were touched, {hit} were hit\n{self.run.told()}"
        times = self.times_s[name]
        more_s = NUM_PROCESSES * max(0.0, busy_s - QUIET_STEP_S)
        print(f"{name}: {times} s (an empty step takes {busy_s:.2f} s)")
        assert median(times) <= MEDIAN_S + more_s, times
        assert max(times) <= WORST_S + more_s, times


@pytest.fixture(scope="module")
def night(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    retries = "[retries]\nnode_failed = 100\ncrashed = 100\n"  # all the faults of a night hit the same eight
    job = on_slurm(tmp_path_factory.mktemp("night"), [{"step_s": 0.4}] * 8, extra=retries)
    with cluster.allocation("-N4", "--gres=gpu:4", "--exclusive", "--no-kill") as allocation:
        run = job.start(inside=allocation)
        made = Night(cluster, allocation, run)
        try:
            for trial in range(8):
                run.waits_for(ev.CheckpointSaved, 2, trial_id=trial)
            yield made
            run.signal(signal.SIGINT)
            assert run.ends() == 75, run.told()
            run.check(ghosts=True)
            assert run.status["counts"]["failed"] == 0
            print(f"from failure to training again: {made.times_s}")
        finally:
            if run.process.poll() is None:
                run.kill()


@pytest.mark.parametrize("how", ["kill-node", pytest.param("drop-link", marks=pytest.mark.long)])
def test_trials_of_a_lost_node_train_elsewhere_within_seconds(night: Night, how: str, long_run: bool) -> None:
    for _ in range(ROUNDS if long_run else 1):
        night.all_train()
        victim = night.crowded()
        hit = night.on(victim)
        assert hit
        busy_s = night.step_s()
        before, fault_s = night.incarnations(), night.now()
        if how == "kill-node":
            night.cluster.kill_node(victim)
        else:
            night.cluster.drop_link(victim)
        try:
            night.recovers(how, hit, before, fault_s, busy_s)
            assert not any(victim in night.where()[trial] for trial in hit)
        finally:
            night.cluster.restore_node(victim)
        night.run.waits_for(ev.NodeUp, len(night.run.events(ev.NodeDown, node=victim)), node=victim)


@pytest.mark.long
def test_slurmd_killed_alone_touches_nobody(night: Night) -> None:
    """Its steps live on, and their supervisors say so."""
    night.all_train()
    victim = night.crowded()
    before = night.incarnations()
    night.cluster.kill_slurmd(victim)
    try:
        num = {trial: len(night.run.events(ev.ResultReported, trial_id=trial)) for trial in before}
        for trial in before:  # longer than the silence after which a node is given up
            night.run.waits_for(ev.ResultReported, num[trial] + 20, trial_id=trial)
        assert night.incarnations() == before
    finally:
        night.cluster.restore_node(victim)


def sruns_of(night: Night, trial: int, incarnation: int) -> list[psutil.Process]:
    """Both processes of the srun of an incarnation."""
    mark = f"/trials/{trial}/{incarnation}/launch.json"
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["name"] == "srun" and any(word.endswith(mark) for word in words) and any(
            str(night.run.job.run_dir) in word for word in words
        ):  # fmt: skip
            found.append(process)
    return found


def test_both_processes_of_an_srun_are_killed_and_its_ranks_live_on(night: Night, long_run: bool) -> None:
    """Its trial restarts elsewhere once its old ranks are proven gone, and not before: no GPU has two."""
    for _ in range(ROUNDS if long_run else 1):
        night.all_train()
        before = night.incarnations()
        trial = min(before)
        busy_s = night.step_s()
        sruns = sruns_of(night, trial, before[trial])
        assert sruns
        fault_s = night.now()
        for process in sruns:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        night.recovers("srun killed", [trial], before, fault_s, busy_s)


def test_a_step_that_stays_in_completing_holds_nobody_up(night: Night) -> None:
    """Its slurmstepd is stopped, so that the step cannot end; its rank dies. The supervisor's word is proof enough."""
    night.all_train()
    before = night.incarnations()
    trial = max(before)
    busy_s = night.step_s()
    mark = f"/trials/{trial}/{before[trial]}/launch.json"
    supervisors = [
        process
        for process in psutil.process_iter(["cmdline", "name"])
        if process.info["name"] != "srun"
        and any(
            word.endswith(mark) and str(night.run.job.run_dir) in word
            for word in process.info["cmdline"] or []
        )
    ]
    assert supervisors
    stepds = {
        parent.pid for process in supervisors for parent in process.parents() if parent.name() == "slurmstepd"
    }
    assert stepds
    ranks = [
        child for process in supervisors for child in process.children(recursive=True)
        if any("light_trial" in word for word in child.cmdline())
    ]  # fmt: skip
    assert ranks
    for pid in stepds:
        os.kill(pid, signal.SIGSTOP)
    try:
        fault_s = night.now()
        ranks[0].kill()
        night.recovers("completing", [trial], before, fault_s, busy_s)
    finally:
        for pid in stepds:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_the_controller_is_away_while_a_node_fails(night: Night, long_run: bool) -> None:
    """Trials run on; one dies and is killed through its supervisor; nothing is blamed on a trial; all go on when it is back."""
    night.all_train()
    before = night.incarnations()
    failures = len(night.run.events(ev.TrialExited))
    away_s = 60.0 if long_run else 12.0
    night.cluster.stop_controller()
    try:
        began = time.monotonic()
        told = night.run.command("stop", str(night.run.job.run_dir), "3")  # ends through its supervisor
        assert told.returncode == 0, told.stderr
        exited = night.run.waits_for(ev.TrialExited, trial_id=3, incarnation=before[3])
        assert exited.outcome.value == "preempted"
        num = {
            trial: len(night.run.events(ev.ResultReported, trial_id=trial)) for trial in before if trial != 3
        }
        wait_until(
            lambda: time.monotonic() - began > away_s, "the controller has been away", limit_s=away_s + 5
        )
        for trial, reports in num.items():
            night.run.waits_for(ev.ResultReported, reports + 3, trial_id=trial)
    finally:
        night.cluster.start_controller()
    ended = night.run.events(ev.TrialExited)[failures:]
    assert [event.trial_id for event in ended] == [3], ended
    night.all_train()
