"""A suspended run puts its own batch job back into the queue, so that the next allocation goes on.

Only while Slurm still counts the job as running: after `scancel` or a preemption the job is completing, and to queue it
again would be against its owner's will, or Slurm's own affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hpcsched.errors import CommandError

TIMEOUT_S = 20.0


class RunCommand(Protocol):
    def __call__(self, argv: tuple[str, ...], *, timeout_s: float, env: Mapping[str, str]) -> str: ...


def requeue_job(environ: Mapping[str, str], run_command: RunCommand) -> str:
    """Do it; what came of it, in words. Slurm ends the calling batch script soon after."""
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id:
        return "--requeue: this is no Slurm job; go on by hand with --resume"
    try:
        told = run_command(
            ("squeue", "--noheader", f"--jobs={job_id}", "--format=%A %i %T"),
            timeout_s=TIMEOUT_S,
            env=environ,
        )
        # The last task of an array has the array's id for its own, and by that Slurm takes all tasks: as "ARRAY_TASK" it is one.
        states = [line.split()[1:3] for line in told.splitlines() if line.split()[:1] == [job_id]]
        name, state = states[0] if states else (job_id, "")
        if state != "RUNNING":
            return f"job {job_id} is {state.lower() or 'gone'}, not put back into the queue"
        run_command(("scontrol", "requeue", name), timeout_s=TIMEOUT_S, env=environ)
    except CommandError as error:
        return f"job {job_id} could not be put back into the queue: {error}"
    return f"job {job_id} is back in the queue; it goes on with this run when it starts again"
