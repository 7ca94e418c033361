"""A suspended chain puts its job back into the queue, and only when that is nobody else's affair."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpcsched.errors import CommandError
from hpcsched.launch.requeue import requeue_job


class Slurm:
    """`jobs`: what squeue prints of id, name and state; no line where it forgot the job."""

    def __init__(self, *jobs: str, refuses: str = "") -> None:
        self.jobs = jobs
        self.refuses = refuses
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, argv: tuple[str, ...], *, timeout_s: float, env: Mapping[str, str]) -> str:
        self.calls.append(argv)
        if argv[0] == self.refuses:
            raise CommandError(argv, 1, "", "slurm_requeue error: Requested operation is presently disabled")
        return "".join(f"{job}\n" for job in self.jobs) if argv[0] == "squeue" else ""


def test_a_running_job_is_requeued() -> None:
    slurm = Slurm("7 7 RUNNING")
    assert "back in the queue" in requeue_job({"SLURM_JOB_ID": "7"}, slurm)
    assert slurm.calls[-1] == ("scontrol", "requeue", "7")


def test_of_a_job_array_only_its_own_task_is_requeued() -> None:
    """The last task has the array's id for its own, and by that id Slurm means all of them."""
    slurm = Slurm("5 7_0 COMPLETING", "6 7_1 RUNNING", "7 7_2 RUNNING")
    assert "back in the queue" in requeue_job({"SLURM_JOB_ID": "7"}, slurm)
    assert slurm.calls[-1] == ("scontrol", "requeue", "7_2")


@pytest.mark.parametrize(
    "jobs",
    [["7 7 COMPLETING"], ["7 7 CANCELLED"], ["7 7 TIMEOUT"], [], ["6 7_1 RUNNING", "7 7_2 COMPLETING"]],
)
def test_a_cancelled_or_ending_job_is_left_alone(jobs: list[str]) -> None:
    slurm = Slurm(*jobs)
    assert "not put back" in requeue_job({"SLURM_JOB_ID": "7"}, slurm)
    assert [call[0] for call in slurm.calls] == ["squeue"]


@pytest.mark.parametrize("command", ["squeue", "scontrol"])
def test_a_refusal_is_said_and_ends_nothing(command: str) -> None:
    assert "could not be put back" in requeue_job(
        {"SLURM_JOB_ID": "7"}, Slurm("7 7 RUNNING", refuses=command)
    )


def test_outside_of_a_job_nothing_is_asked() -> None:
    slurm = Slurm("7 7 RUNNING")
    assert "no Slurm job" in requeue_job({}, slurm)
    assert not slurm.calls
