"""`[setup] per_node`: a command once on every node before its first trial (staging data, unpacking an environment).

All nodes at once, a step each. A node on which it fails is left out of the run, with what the command said; when none is
left the run does not begin. A resumed run does not do it again on the nodes of the same job, but does after a requeue: the
job keeps its id then, and what it had put on its nodes is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from hpcsched.errors import AllocationError, RunFolderError
from hpcsched.launch.environment import srun_environment
from hpcsched.launch.steps import helper_step, run_mark
from hpcsched.runfolder import RunFolder

LIMIT_S = 3600.0
MOST_AT_ONCE = 32
TAIL = 1500
GRACE_S = 3.0
"""Between SIGTERM and SIGKILL for commands whose driver was told to end."""
HERE = "this machine"


class Done(msgspec.Struct, frozen=True):
    """What `setup.json` holds: where the command has succeeded."""

    job_id: str
    command: str
    nodes: tuple[str, ...]
    num_restarts: int = 0


def set_up_nodes(
    command: str,
    folder: RunFolder,
    nodes: Sequence[str],
    *,
    job_id: str,
    num_restarts: int,
    cwd: Path,
    environ: Mapping[str, str],
    srun_args: Sequence[str] = (),
    say: Callable[[str], None],
    limit_s: float = LIMIT_S,
) -> tuple[str, ...]:
    """Run the command where it has not yet succeeded in this turn of the job; the nodes that are ready, in order.

    nodes: of the job; empty: this machine alone, without Slurm. num_restarts: how often the job was requeued. Raises AllocationError when no node is ready.
    """
    record = folder.setup
    ready: set[str] = set()
    if (before := _read(record)) is not None:
        is_same = (before.job_id, before.num_restarts, before.command) == (job_id, num_restarts, command)
        ready = set(before.nodes) if is_same else set()
    names = tuple(nodes) or (HERE,)
    todo = [node for node in names if node not in ready]
    if not todo:
        return names

    running = _Running()

    def run(node: str) -> str:
        return _run(
            command,
            folder,
            node,
            running,
            job_id=job_id,
            cwd=cwd,
            environ=environ,
            srun_args=srun_args,
            limit_s=limit_s,
        )

    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(todo))) as pool:
        try:
            problems = dict(zip(todo, pool.map(run, todo), strict=True))
        except BaseException:  # a signal: the pool would wait for all of them
            running.end_all()
            raise
    failed = {node: why for node, why in problems.items() if why}
    ready |= set(todo) - set(failed)
    left = tuple(node for node in names if node in ready)
    try:
        record.write_bytes(msgspec.json.encode(Done(job_id, command, left, num_restarts)) + b"\n")
    except OSError as error:
        raise RunFolderError(f"{record}: cannot be written: {error.strerror or error}") from error
    for node, why in failed.items():
        say(
            f"[setup] per_node failed on {node}, which is left out: {why} (all of it: {log_file(folder, node)})"
        )
    if not left:
        node, why = next(iter(failed.items()))
        raise AllocationError(
            f"[setup] per_node ({command!r}) failed on {'every node' if len(names) > 1 else node}: {why}. "
            f"Its output is in {log_file(folder, node)}; mend the command, then start again"
        )
    return left


class _Running:
    """The commands that run now. Each is a session of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self._processes: set[subprocess.Popen[bytes]] = set()

    def run(self, argv: Sequence[str], *, limit_s: float, **options: Any) -> int:
        """The exit code. Raises subprocess.TimeoutExpired and OSError."""
        with self._lock:
            if self._ended:
                return -signal.SIGTERM
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, **options)
            self._processes.add(process)
        try:
            return process.wait(limit_s)
        finally:
            with self._lock:
                self._processes.discard(process)
            if process.poll() is None:
                _signal(process, signal.SIGKILL)
                process.wait()

    def end_all(self) -> None:
        """SIGTERM, which srun passes on; after a moment SIGKILL."""
        with self._lock:
            self._ended = True
            processes = list(self._processes)
        for process in processes:
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            if process.poll() is None:
                _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def log_file(folder: RunFolder, node: str) -> Path:
    return folder.root / f"setup-{node.replace(' ', '-')}.log"


def _run(
    command: str,
    folder: RunFolder,
    node: str,
    running: _Running,
    *,
    job_id: str,
    cwd: Path,
    environ: Mapping[str, str],
    srun_args: Sequence[str],
    limit_s: float,
) -> str:
    """Why it failed; "" when it did not."""
    mark = {"HPCSCHED_RUN_DIR": str(folder.root)}
    argv: tuple[str, ...] = ("bash", "-c", command)
    env = {**environ, **mark}
    if node != HERE:
        step = helper_step(node, argv, name=f"{run_mark(str(folder.root))}setup", srun_args=srun_args)
        argv, env = step.argv, {**srun_environment(environ), **mark, "SLURM_JOB_ID": job_id}
    log = log_file(folder, node)
    try:
        with log.open("wb") as output:
            code = running.run(argv, limit_s=limit_s, env=env, cwd=cwd, stdout=output, stderr=output)
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:.0f} s"
    except OSError as error:
        return f"{argv[0]}: {error.strerror or error}"
    if code == 0:
        return ""
    with log.open("rb") as said:
        said.seek(max(0, os.fstat(said.fileno()).st_size - TAIL))
        tail = said.read().decode("utf-8", "replace").strip()
    return f"exit code {code}" + (f": {tail}" if tail else "")


def _read(file: Path) -> Done | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Done)
    except (OSError, msgspec.DecodeError):
        return None
