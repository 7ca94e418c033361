"""Whether a step lives, by what Slurm prints of it: never "gone" while it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.launch import slurmsteps
from hpcsched.launch.allocation import read_allocation
from hpcsched.launch.command import run_command
from hpcsched.launch.slurmsteps import Presence, presence_of
from tests.support.cluster import Cluster, cluster, wait_until  # noqa: F401
from tests.support.slurmsays import SlurmSays

NAME = "hpcsched-0000002a.3.1.0"


def shown(step_id: str, name: str = NAME) -> str:
    return (
        f"StepId={step_id} UserId=1000 StartTime=2026-11-30T06:11:48 TimeLimit=UNLIMITED\n"
        "   State=RUNNING Partition=gpu NodeList=n[1-2]\n"
        f"   Nodes=2 CPUs=4 Tasks=2 Name={name} Network=(null)\n"
        "   SrunHost:Pid=vm:4711\n\n"
    )


@pytest.mark.parametrize("step_id", ["1235.0", None], ids=["known", "not known yet"])
@pytest.mark.parametrize(
    ("printed", "cancelled"),
    [(["1235.0"], "1235.0"), (["1234_1.0"], "1234_1.0"), (["1235.0+0", "1235.0+1"], "1235.0")],
    ids=["a job", "a task of an array", "a step of parts"],
)
def test_a_step_that_lives_is_found_however_slurm_prints_its_id(
    monkeypatch: pytest.MonkeyPatch, step_id: str | None, printed: list[str], cancelled: str
) -> None:
    slurm = SlurmSays({"scontrol show step": "".join(map(shown, printed))})
    monkeypatch.setattr(slurmsteps, "run_command", slurm)
    assert presence_of(step_id, NAME, "1235", {}) == (Presence.ALIVE, cancelled)
    assert slurm.asked[0][0][-1] == (step_id or "1235")


def test_steps_of_the_other_tasks_of_its_array_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for the id of the array, which the last task has for its own, Slurm shows the steps of all tasks."""
    others = shown("1234_0.0", "hpcsched-00000001.3.1.0") + shown("1234_1.0", "hpcsched-00000002.3.1.0")
    monkeypatch.setattr(slurmsteps, "run_command", SlurmSays({"scontrol show step": others}))
    assert presence_of(None, NAME, "1234", {}) == (Presence.GONE, None)
    monkeypatch.setattr(
        slurmsteps, "run_command", SlurmSays({"scontrol show step": others + shown("1234_2.0")})
    )
    assert presence_of(None, NAME, "1234", {}) == (Presence.ALIVE, "1234_2.0")


@pytest.mark.slurm
def test_steps_of_a_real_job_array_are_told_apart(cluster: Cluster, tmp_path: Path) -> None:  # noqa: F811
    script = tmp_path / "job.sh"
    step = f"srun --overlap -n1 --job-name={NAME}$SLURM_ARRAY_TASK_ID sleep 1000"
    script.write_text(f"#!/bin/bash\necho $SLURM_JOB_ID >$SLURM_ARRAY_TASK_ID\nexec {step}\n")
    array = cluster.sbatch(
        "--array=0-1", "-N1", "-n1", "--mem=100", "-t10", "-D", str(tmp_path), "-o", "out-%a", str(script)
    )

    def presence(task: int, *, by_id: bool = True) -> tuple[Presence, str | None]:
        job_id = (tmp_path / str(task)).read_text().strip()
        return presence_of(f"{job_id}.0" if by_id else None, f"{NAME}{task}", job_id, cluster.env)

    try:
        for task in range(2):
            wait_until((tmp_path / str(task)).exists, f"task {task} begins")
            wait_until(lambda task=task: presence(task)[0] is Presence.ALIVE, "its step begins")  # type: ignore[misc]  # bound now
            assert presence(task) == presence(task, by_id=False) == (Presence.ALIVE, f"{array}_{task}.0")
            job_id = (tmp_path / str(task)).read_text().strip()
            found = read_allocation(cluster.env | {"SLURM_JOB_ID": job_id}, run_command)
            assert found is not None and found.ends_at is not None
            assert not any("end of job" in warning for warning in found.warnings)
        cluster.run(["scancel", f"{array}_0.0"])
        wait_until(lambda: presence(0)[0] is Presence.GONE, "the cancelled one is gone")
        assert presence(1)[0] is Presence.ALIVE
    finally:
        cluster.run(["scancel", array])
