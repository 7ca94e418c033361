"""A process that has imported what ranks need and forks them: `python -P -m hpcsched.launch.zygote FD`.

Theory. Importing torch takes seconds, and minutes on a parallel file system; forking a process that has done so takes
milliseconds. What may be forked is narrow: a second thread would be gone in the child with whatever lock it held, an
OpenMP region that ran before the fork hangs the child at its first tensor operation, and CUDA cannot be used after a
fork once it was touched. So the zygote imports, does nothing else, and then looks at itself (`forkable`): one thread (an OpenMP
region leaves its pool behind, so that shows, too) and CUDA not touched. When that does not hold it says why, and the ranks start cold.

It forks twice: the rank's parent ends at once, so that the rank becomes a child of the nearest subreaper (prctl(2)), the
node supervisor, exactly as a rank that was started cold. The rank then arranges itself as `rank_exec` does and runs the script
as `__main__`. A rank therefore has its own session, log, environment and core set, and dies with its supervisor.

Protocol, one JSON line each way on the socket FD: `{"preload": [...]}` is answered by `Ready`; each `Fork` by
`Forked`; the end of the stream ends the zygote.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib
import io
import os
import shutil
import signal
import socket
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from hpcsched.launch.forkable import why_cold
from hpcsched.launch.rank_exec import bind_memory

PR_SET_PDEATHSIG = 1
ADOPTED_LIMIT_S = 5.0
"""Longest wait of a new rank until its supervisor is its parent."""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""Environment of a zygote: libraries that start threads when they are loaded shall not."""
_PYTHON_OPTIONS = {"-u", "-B", "-I", "-E", "-s", "-P"}
"""Options of the interpreter that change nothing for a script that runs in a zygote."""


class Preload(msgspec.Struct, frozen=True):
    preload: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True):
    """`cold`: why nothing may be forked from this process, or None."""

    cold: str | None
    preload_s: float


class Fork(msgspec.Struct, frozen=True):
    supervisor: int
    """Process id of the new rank's parent to be."""
    argv: tuple[str, ...]
    """The script and its arguments, or "-m", module, arguments."""
    env: dict[str, str]
    cwd: str
    cores: tuple[int, ...]
    log_file: str


class Forked(msgspec.Struct, frozen=True):
    pid: int | None
    error: str = ""


def script_of(
    command: Sequence[str], wrap: Sequence[str], path: str, executable: str = sys.executable
) -> tuple[str, ...] | None:
    """What a zygote runs for this command ("train.py", arguments; or "-m", module, arguments), or None: start cold.

    Only a script for this very interpreter will do, and nothing wrapped (a container has other files).
    """
    if wrap or not command:
        return None
    found = shutil.which(command[0], path=path)
    if found is None or Path(found).parent / Path(found).name != Path(found):
        return None
    mine, theirs = Path(executable), Path(found)
    # Of one environment: the same file behind it, from the same folder.
    if (
        not theirs.name.startswith("python")
        or theirs.parent != mine.parent
        or theirs.resolve() != mine.resolve()
    ):
        return None
    rest = list(command[1:])
    while rest and rest[0] in _PYTHON_OPTIONS:
        rest.pop(0)
    if not rest:
        return None
    if rest[0] == "-m" and len(rest) > 1:
        return tuple(rest)
    return None if rest[0].startswith("-") else tuple(rest)


# ---- in the zygote


def serve(stream: io.BufferedRWPair) -> Fork | None:
    """Answer requests. Returns None in the zygote at its end, and the request in each new rank."""
    request = msgspec.json.decode(stream.readline(), type=Preload)
    began = time.monotonic()
    cold = _preload(request.preload) or why_cold()
    _answer(stream, Ready(cold=cold, preload_s=round(time.monotonic() - began, 3)))
    while line := stream.readline():
        fork = msgspec.json.decode(line, type=Fork)
        pid, error = _fork_twice()
        if pid == 0:
            return fork
        _answer(stream, Forked(pid=pid, error=error))
    return None


def _preload(modules: Sequence[str]) -> str | None:
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module does when it is imported
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
    return None


def _fork_twice() -> tuple[int | None, str]:
    """(pid of the rank, "") in the zygote, (0, "") in the rank."""
    read_end, write_end = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        return None, str(error)
    if middle == 0:
        os.close(read_end)
        try:
            rank = os.fork()
        except OSError:
            os._exit(1)
        if rank == 0:
            os.close(write_end)
            return 0, ""
        os.write(write_end, str(rank).encode())
        os._exit(0)
    os.close(write_end)
    text = os.read(read_end, 32)
    os.close(read_end)
    os.waitpid(middle, 0)
    return (int(text), "") if text else (None, "the second fork failed: too many processes?")


def _answer(stream: io.BufferedRWPair, message: Ready | Forked) -> None:
    stream.write(msgspec.json.encode(message) + b"\n")
    stream.flush()


# ---- in a rank


def become_rank(fork: Fork) -> None:
    """Arrange this process as `rank_exec` does. Ends it when its supervisor is gone."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    until = time.monotonic() + ADOPTED_LIMIT_S
    while os.getppid() != fork.supervisor:  # until the process between has ended
        if time.monotonic() > until:
            os._exit(137)
        time.sleep(0.0005)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != fork.supervisor:
        os._exit(137)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(fork.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    os.close(null)
    os.close(log)
    sys.stdout = _like(sys.stdout, 1)
    sys.stderr = _like(sys.stderr, 2)
    if fork.cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, set(fork.cores))
    bind_memory(fork.env.get("HPCSCHED_MEMORY_NODES", ""))
    os.environ.clear()
    os.environ.update(fork.env)
    os.chdir(fork.cwd)
    _own_randomness()
    _own_threads(fork.env)


def _like(stream: TextIO, fd: int) -> TextIO:
    """The file as the interpreter has opened that one (PYTHONIOENCODING), by lines."""
    return open(fd, "w", buffering=1, closefd=False, encoding=stream.encoding, errors=stream.errors)


def _own_randomness() -> None:
    """Forked ranks would all draw the same numbers."""
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()


def _own_threads(env: Mapping[str, str]) -> None:
    """Libraries have read OMP_NUM_THREADS when they were loaded; torch can be told again."""
    torch = sys.modules.get("torch")
    wanted = env.get("OMP_NUM_THREADS", "")
    if torch is not None and wanted.isdigit() and int(wanted) > 0:
        torch.set_num_threads(int(wanted))


def run_as_main(argv: Sequence[str]) -> None:
    """Run a script or module as `python` would, in this process. What it raises goes up."""
    if argv[0] == "-m":
        import runpy

        sys.argv = list(argv[1:])
        if not os.environ.get("PYTHONSAFEPATH"):
            sys.path.insert(0, os.getcwd())  # noqa: PTH109  (as the interpreter does)
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    script = Path(argv[0]).absolute()
    sys.argv = list(argv)
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, str(script.resolve().parent))
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    main.__dict__["__builtins__"] = builtins
    try:
        with io.open_code(str(script)) as file:
            code = compile(file.read(), str(script), "exec")
    except OSError as error:
        print(f"hpcsched: cannot run {argv[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        sys.exit(2)  # as the interpreter
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def main(argv: Sequence[str]) -> None:
    fd = int(argv[0])
    supervisor_ended: Any = ctypes.CDLL(None, use_errno=True).prctl
    supervisor_ended(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    connection = socket.socket(fileno=fd)
    stream = connection.makefile("rwb")
    fork = serve(stream)
    connection.detach()
    with contextlib.suppress(OSError):
        os.close(fd)
    if fork is not None:
        become_rank(fork)
        run_as_main(fork.argv)


if __name__ == "__main__":
    main(sys.argv[1:])
