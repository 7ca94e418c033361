"""Proof from the node itself: `python -m hpcsched.launch.sweep RUN_DIR TRIAL INCARNATION NODE`, run there as a helper step.

Slurm may show a step for as long as one of its nodes is silent (seen on 22.05.8: for ever, once its srun was killed), and may show
none though ranks live. So where Slurm's word is not enough, this looks at the node's own processes: it kills what carries the
incarnation's marks, with everything below it, until there is none, and says so.
"""

from __future__ import annotations

import os
import sys
import time

from hpcsched.launch.processes import CleanersLast, Process, descendants, kill_process, marked

GONE = "hpcsched-sweep gone"
LEFT = "hpcsched-sweep left"
LIMIT_S = 5.0


def marks_of(run_dir: str, trial_id: int, incarnation: int) -> dict[str, str]:
    """What the environment of supervisors and ranks of an incarnation holds."""
    return {
        "HPCSCHED_RUN_DIR": run_dir,
        "HPCSCHED_TRIAL_ID": str(trial_id),
        "HPCSCHED_INCARNATION": str(incarnation),
    }


def processes_on(node: str, marks: dict[str, str]) -> list[Process]:
    """Ranks name their node, supervisors have Slurm's variable. (The srun of the driver, which may run on the same node, has neither.)"""
    roots = [*marked(marks | {"HPCSCHED_NODE": node}), *marked(marks | {"SLURMD_NODENAME": node})]
    return [*(below for root in roots for below in descendants(root.pid)), *roots]


def main() -> int:
    run_dir, trial_id, incarnation, node = sys.argv[1:5]
    marks = marks_of(run_dir, int(trial_id), int(incarnation))
    end = time.monotonic() + LIMIT_S
    cleaners_last = CleanersLast()
    while left := processes_on(node, marks):
        if time.monotonic() > end:
            print(LEFT, " ".join(str(process.pid) for process in left), flush=True)
            return 1
        others = [process for process in left if process.pid != os.getpid()]
        for process in cleaners_last.of(others, time.monotonic()):
            kill_process(process)
        time.sleep(0.02)
    print(GONE, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
