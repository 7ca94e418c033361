"""What an earlier driver life of a run folder left running is ended before anything starts: also a `[setup]` command."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping

from hpcsched.errors import CommandError
from hpcsched.launch.command import run_command
from hpcsched.launch.environment import srun_environment
from hpcsched.launch.processes import end_marked
from hpcsched.launch.slurmsteps import live_steps
from hpcsched.launch.steps import run_mark
from hpcsched.runfolder import RunFolder

LIMIT_S = 30.0
"""Longest wait until steps are gone."""
PROCESSES_LIMIT_S = 10.0
SCANCEL_LIMIT_S = 10.0


def end_orphans(folder: RunFolder, job_id: str | None, environ: Mapping[str, str]) -> list[str]:
    """Steps of the job (None: there is no Slurm) and processes of this host. Blocks; what was found, one line each.

    `environ`: what Slurm's commands may inherit (see `srun_environment`).
    """
    found = [] if job_id is None else _end_steps(folder, job_id, srun_environment(environ))
    marks = {"HPCSCHED_RUN_DIR": str(folder.root)}
    logs = folder.trials if job_id is None else None
    processes, gone = end_marked(marks, limit_s=PROCESSES_LIMIT_S, logs_under=logs)
    return [
        *found,
        *(f"process {process.pid}{'' if gone else ' (may still be ending)'}" for process in processes),
    ]


def _end_steps(folder: RunFolder, job_id: str, environ: Mapping[str, str]) -> list[str]:
    mark = run_mark(str(folder.root))
    end = time.monotonic() + LIMIT_S
    found: dict[str, str] = {}
    force = False
    while True:
        steps = live_steps(job_id, environ)
        mine = [step for step in steps or () if step.name.startswith(mark)]
        if steps is not None and not mine:
            break
        for step in mine:
            found[step.step_id] = f"step {step.step_id} ({step.name}) on {step.nodes}"
            # Judge by the step, not by what scancel says: it complains about steps that it does signal.
            with contextlib.suppress(CommandError):
                argv = ("scancel", *(("-s", "KILL") if force else ()), step.step_id)
                run_command(argv, timeout_s=SCANCEL_LIMIT_S, env=environ)
        if time.monotonic() > end:
            why = "Slurm does not answer" if steps is None else "still there"
            found["?"] = f"gave up after {LIMIT_S:g} s: {why}"
            break
        threading.Event().wait(0.2)
        force = True
    return list(found.values())
