"""Processes as /proc shows them: descendants, marks, and ending them for good.

A process is known by pid *and* start time, since pids are used again. Whatever cannot be read (gone, or another
user's) is left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

PROC = Path("/proc")


class Process(msgspec.Struct, frozen=True):
    """One process at one moment. `start_ticks`: clock ticks after boot when it began (proc(5), stat field 22)."""

    pid: int
    parent: int
    state: str
    """One letter; "Z": it has ended and waits for its parent."""
    start_ticks: int


def read_process(pid: int) -> Process | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the command's name in brackets and may hold anything: go by its last bracket.
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid=pid, state=fields[0], parent=int(fields[1]), start_ticks=int(fields[19]))


def all_processes() -> list[Process]:
    found = (read_process(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdecimal())
    return [process for process in found if process is not None]


def descendants(root: int) -> list[Process]:
    """Everything that `root` forked, directly or not, zombies left out; parents before children."""
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            queue.append(child.pid)
            if child.state not in "ZX":
                found.append(child)
    return found


def environment_of(pid: int) -> dict[str, str]:
    """The environment that it was started with; empty when it may not be read."""
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    items = (item.partition(b"=") for item in data.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in items}


def marked(
    marks: Mapping[str, str], *, exclude: Iterable[int] = (), logs_under: Path | None = None
) -> list[Process]:
    """Live processes of this user whose environment holds all of `marks`, without this one, those above it, and `exclude`.

    With `logs_under` also those that hold a rank's log below that folder open for writing: a script may start what it
    likes with an empty environment and a session of its own, yet what it starts inherits its standard output.
    """
    skip = {*_ancestors(), *exclude}
    found = []
    for process in all_processes():
        if process.pid in skip or process.state in "ZX":
            continue
        env = environment_of(process.pid)
        if (env and all(env.get(name) == value for name, value in marks.items())) or (
            logs_under is not None and writes_rank_log(process.pid, logs_under)
        ):
            found.append(process)
    return found


def writes_rank_log(pid: int, folder: Path) -> bool:
    """Whether it holds a rank-R.log below `folder` open for writing. (Who only reads one, such as a pager, does not count.)"""
    start = f"{folder}/"
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError, ValueError, IndexError):
            target = str(descriptor.readlink()).removesuffix(" (deleted)")
            if not target.startswith(start) or not Path(target).match("rank-*.log"):
                continue
            info = (PROC / str(pid) / "fdinfo" / descriptor.name).read_text()
            flags = int(info.partition("flags:")[2].split()[0], 8)
            if flags & os.O_ACCMODE != os.O_RDONLY:
                return True
    return False


def _ancestors() -> list[int]:
    """This process and all above it."""
    found = [os.getpid()]
    while (process := read_process(found[-1])) is not None and process.parent > 0:
        found.append(process.parent)
    return found


def kill_process(process: Process) -> bool:
    """SIGKILL it if it still is the same one; False when it was gone or is another user's."""
    now = read_process(process.pid)
    if now is None or now.start_ticks != process.start_ticks or now.state in "ZX":
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, signal.SIGKILL)
        return True
    return False


CLEANER_S = 3.0
"""So long those who clean up after the others may live when the others are gone: torch's deletes and ends 2 s after its last client."""
_CLEANERS = (b"torch_shm_manager\0", b"from multiprocessing.resource_tracker import main")


def is_cleaner(process: Process) -> bool:
    """It deletes what the others leave in /dev/shm when they are gone, and ends then: torch's manager of shared memory
    (`torch.multiprocessing.set_sharing_strategy("file_system")`) and Python's resource tracker (`SharedMemory`, spawned workers)."""
    try:
        command = (PROC / str(process.pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return any(word in command for word in _CLEANERS)


class CleanersLast:
    """Whom to kill now, of those that are left: first everybody else, then for a moment nobody, then the cleaners, too.

    Without it each trial that is killed leaves its batches in the node's memory for good.
    """

    def __init__(self, is_cleaner: Callable[[Process], bool] = is_cleaner) -> None:
        self._is_cleaner = is_cleaner
        self._alone_at: float | None = None

    def of(self, left: Sequence[Process], now: float) -> Sequence[Process]:
        """`now`: seconds of a clock that only goes forward."""
        others = [process for process in left if not self._is_cleaner(process)]
        if others:
            self._alone_at = None
            return others
        if self._alone_at is None:
            self._alone_at = now
        return left if now - self._alone_at >= CLEANER_S else ()


def end_marked(
    marks: Mapping[str, str], *, limit_s: float, exclude: Iterable[int] = (), logs_under: Path | None = None
) -> tuple[list[Process], bool]:
    """SIGKILL all that `marked` finds until none is left. (what was found, whether all are gone)."""
    end = time.monotonic() + limit_s
    pause_s = 0.005
    found: dict[tuple[int, int], Process] = {}
    cleaners_last = CleanersLast()
    while True:
        alive = marked(marks, exclude=exclude, logs_under=logs_under)
        if not alive:
            return list(found.values()), True
        if time.monotonic() > end:
            return list(found.values()), False
        found |= {(process.pid, process.start_ticks): process for process in alive}
        for process in cleaners_last.of(alive, time.monotonic()):
            kill_process(process)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)
