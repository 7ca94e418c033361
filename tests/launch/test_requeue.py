"""A suspended chain puts its job back into the queue, and only when that is nobody else's affair."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpcsched.errors import CommandError
from hpcsched.launch.requeue import requeue_job


class Slurm:
    def __init__(self, state: str, *, refuses: str = "") -> None:
        self.state = state
        self.refuses = refuses
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, argv: tuple[str, ...], *, timeout_s: float, env: Mapping[str, str]) -> str:
        self.calls.append(argv)
        if argv[0] == self.refuses:
            raise CommandError(argv, 1, "", "slurm_requeue error: Requested operation is presently disabled")
        return self.state + "\n" if argv[0] == "squeue" else ""


def test_a_running_job_is_requeued() -> None:
    slurm = Slurm("RUNNING")
    assert "back in the queue" in requeue_job({"SLURM_JOB_ID": "7"}, slurm)
    assert slurm.calls[-1] == ("scontrol", "requeue", "7")


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "TIMEOUT", ""])
def test_a_cancelled_or_ending_job_is_left_alone(state: str) -> None:
    slurm = Slurm(state)
    assert "not put back" in requeue_job({"SLURM_JOB_ID": "7"}, slurm)
    assert [call[0] for call in slurm.calls] == ["squeue"]


@pytest.mark.parametrize("command", ["squeue", "scontrol"])
def test_a_refusal_is_said_and_ends_nothing(command: str) -> None:
    assert "could not be put back" in requeue_job({"SLURM_JOB_ID": "7"}, Slurm("RUNNING", refuses=command))


def test_outside_of_a_job_nothing_is_asked() -> None:
    slurm = Slurm("RUNNING")
    assert "no Slurm job" in requeue_job({}, slurm)
    assert not slurm.calls
