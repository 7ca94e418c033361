"""Where the driver runs: here, or as a step on the first node of the job (`[driver] where`).

`salloc` leaves its shell on the login node, and so the driver. When no compute node can connect back to it there, it
starts itself again as a step beside all others (`--overlap --gres=none`) on the first node and this process becomes its
terminal: output comes through srun, signals go the other way.

srun(1): signals sent to srun are forwarded to the tasks, but for SIGINT, which asks for a report; so a Ctrl-C is handed
over as SIGUSR1, and a driver that has moved takes that for one (`meant`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, TextIO

from hpcsched.driver.addresses import addresses_towards
from hpcsched.errors import AllocationError, CommandError
from hpcsched.launch.allocation import Allocation, RunCommand, reason_of
from hpcsched.launch.connect_back import ask_node, listening
from hpcsched.launch.environment import srun_environment
from hpcsched.launch.steps import helper_step

MOVED = "HPCSCHED_DRIVER_MOVED"
"""Set for a driver that was started on a node by this module: it stays there."""
FORWARDED = {
    signal.SIGINT: signal.SIGUSR1,
    signal.SIGUSR1: signal.SIGUSR2,
    signal.SIGUSR2: signal.SIGUSR2,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}


def meant(name: str, environ: Mapping[str, str]) -> str:
    """What a signal's name means to a driver here: one that has moved gets its Ctrl-C as SIGUSR1."""
    return "SIGINT" if environ.get(MOVED) and name == "SIGUSR1" else name


def must_move(
    where: str,
    allocation: Allocation,
    environ: Mapping[str, str],
    run_command: RunCommand,
    *,
    srun_args: Sequence[str] = (),
    say: Callable[[str], None],
) -> bool:
    """Whether the driver has to go to a node. Asks one node, and only when this host is none of the job's."""
    if where == "here" or environ.get(MOVED) or allocation.driver_node is not None:
        return False
    if where == "node":
        return True
    node = allocation.nodes[0]
    named = {fact.name: fact.address for fact in allocation.node_facts}
    addresses = addresses_towards([named.get(node) or node])
    with listening() as port:
        try:
            reached = ask_node(allocation, node, port, addresses, environ, run_command, srun_args=srun_args)
        except CommandError as error:
            say(f"whether {node} can connect back was not found out: {reason_of(error)}")
            return False
    if reached.address is not None:
        return False
    say(f"{node} cannot connect back to this host ({reached.why}); the driver moves to {node}")
    return True


def run_words(target: str, root: str, overrides: Mapping[str, Any], *, resume: bool) -> tuple[str, ...]:
    """`hpcsched run` with what this process was asked."""
    words = ("run", "--resume", root) if resume else ("run", target, "--run-dir", root)
    given = [
        word
        for key, value in overrides.items()
        if value is not None
        for word in ("--set", f"{key}={json.dumps(value)}")
    ]
    return (*words, *given)


def run_on_node(
    allocation: Allocation,
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    srun_args: Sequence[str] = (),
    stream: TextIO,
    python: str = sys.executable,
) -> int:
    """Be the terminal of a driver on the job's first node until it ends; its exit code. Raises AllocationError when srun
    cannot be started."""
    node = allocation.nodes[0]
    step = helper_step(
        node, (python, "-P", "-m", "hpcsched", *words), name="hpcsched-driver", srun_args=srun_args
    )
    size = _terminal(stream)
    env = {**srun_environment(environ), "SLURM_JOB_ID": allocation.job_id, MOVED: "1", **size}
    # srun(1): with --unbuffered the task writes to a pseudo-terminal: right for a live view, wrong for a file.
    argv = step.argv if size else tuple(word for word in step.argv if word != "--unbuffered")
    try:
        srun = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        raise AllocationError(
            f"the driver cannot be started on {node}: {step.argv[0]}: {error.strerror}"
        ) from error

    def hand_over(number: int, _frame: FrameType | None) -> None:
        srun.send_signal(FORWARDED[signal.Signals(number)])

    before = {number: signal.signal(number, hand_over) for number in FORWARDED}
    try:
        return srun.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal(stream: TextIO) -> dict[str, str]:
    """So that the driver at the other end of srun's pipe draws its live view for this terminal."""
    try:
        is_terminal = stream.isatty()
    except ValueError:
        is_terminal = False
    if not is_terminal or os.environ.get("TERM") in (None, "dumb"):
        return {}
    columns, lines = shutil.get_terminal_size()
    return {"COLUMNS": str(columns), "LINES": str(lines)}
