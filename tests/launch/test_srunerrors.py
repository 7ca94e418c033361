"""What passes is nobody's fault; what can never work counts."""

from __future__ import annotations

import errno

import pytest

from hpcsched.launch.launcher import is_for_good
from hpcsched.launch.srunerrors import classify

CREATE = "srun: error: Unable to create step for job 77: "


@pytest.mark.parametrize(
    "stderr",
    [
        CREATE + "Unable to contact slurm controller (connect failure)",
        CREATE + "Socket timed out on send/recv operation",
        CREATE + "Connection timed out reading",
        CREATE + "Message receive failure",
        CREATE + "Controller is in standby mode, try a different controller",
        CREATE + "Rate limit exceeded, please retry momentarily",
        CREATE + "Protocol authentication error",
        CREATE + "Invalid user id",
        CREATE + "Requested partition configuration not available now",
        "srun: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\": No such file or directory",
        "srun: error: Task launch for StepId=77.3 failed on node n1: Job credential expired",
        "srun: error: task 0 launch failed: Slurmd could not connect IO",
        "srun: error: Task launch for StepId=77.3 failed on node n1: Job prolog failed",
    ],
)  # fmt: skip
def test_an_outage_is_slurms(stderr: str) -> None:
    assert classify(stderr).whose == "slurm"


@pytest.mark.parametrize(
    ("stderr", "whose"),
    [
        (CREATE + "Insufficient GRES available in allocation", "site"),
        (CREATE + "Step limit reached for this job", "site"),
        (CREATE + "Memory required by task is not available", "site"),
        ("slurmstepd: error: execve(): /home/u/venv/bin/python: No such file or directory", "trial"),
        ("ModuleNotFoundError: No module named 'hpcsched'", "trial"),
    ],
)
def test_what_can_never_work_counts(stderr: str, whose: str) -> None:
    assert classify(stderr).whose == whose


def test_a_full_disk_or_memory_passes_and_a_program_that_is_not_there_does_not() -> None:
    assert is_for_good(FileNotFoundError(errno.ENOENT, "srun"))
    assert is_for_good(PermissionError(errno.EACCES, "srun"))
    assert not is_for_good(OSError(errno.ENOSPC, "disk"))
    assert not is_for_good(OSError(errno.ENOMEM, "memory"))
