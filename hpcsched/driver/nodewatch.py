"""Nodes that are not used now: are they back? Asked ever more seldom, since each question costs the controller work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from hpcsched.errors import CommandError
from hpcsched.launch.allocation import RunCommand
from hpcsched.launch.probe import step_environment

FIRST_S, LONGEST_S = 5.0, 60.0
STEP_LIMIT_S = 15.0


class _Absence(msgspec.Struct):
    next_at: float
    wait_s: float


class NodeWatch:
    """`ask(node)` says whether a step can be run there."""

    def __init__(self, ask: Callable[[str], bool]) -> None:
        self._ask = ask
        self._absent: dict[str, _Absence] = {}

    def back(self, down: Iterable[str], now: float) -> list[str]:
        """Those of `down` that answer again; call it often, it asks seldom (5 s, 10 s, ... 60 s)."""
        down = list(down)
        self._absent = {node: absence for node, absence in self._absent.items() if node in down}
        found = []
        for node in down:
            absence = self._absent.setdefault(node, _Absence(now + FIRST_S, FIRST_S))
            if now < absence.next_at:
                continue
            if self._ask(node):
                found.append(node)
            else:
                absence.wait_s = min(LONGEST_S, 2 * absence.wait_s)
                absence.next_at = now + absence.wait_s
        return found


def step_runs_on(
    node: str, environ: Mapping[str, str], run_command: RunCommand, *, srun_args: Sequence[str]
) -> bool:
    """Whether an empty step of this job runs on `node`: what a trial needs, and no less. `srun_args`: the site's."""
    argv = (
        "srun", "--overlap", "-N1", "-n1", "-w", node, "--gres=none", "--cpu-bind=none", "--mpi=none", "--wait=0",
        "--input=none", *srun_args, "true",
    )  # fmt: skip
    try:
        run_command(argv, timeout_s=STEP_LIMIT_S, env=step_environment(environ))
    except CommandError:
        return False
    return True
