"""What a rank does that comes no further, as its supervisor sees it in /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from hpcsched.progress import Mark, Phase
from hpcsched.wire import RankNow

BUSY = 0.1
"""Of a core, since the last look: less is asleep."""


class _Seen(msgspec.Struct):
    mark: Mark
    since: float
    cpu_s: float | None
    at: float


class Watch:
    """Remembers each rank's last mark."""

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._seen: dict[int, _Seen] = {}

    def look(self, rank: int, pid: int, mark: Mark | None, now: float) -> RankNow | None:
        """None: the rank has written nothing yet, or has left."""
        if mark is None or mark.phase is Phase.LEFT:
            return None
        state, cpu_s = self._process(pid)
        before = self._seen.get(rank)
        since = now if before is None or before.mark != mark else before.since
        busy = True
        if before is not None and before.cpu_s is not None and cpu_s is not None and now > before.at:
            busy = (cpu_s - before.cpu_s) / (now - before.at) >= BUSY
        self._seen[rank] = _Seen(mark, since, cpu_s, now)
        doing: Literal["stopped", "sleeps", "computes", "data"]
        if state in ("T", "t"):
            doing = "stopped"
        elif mark.phase is Phase.DATA:
            doing = "data"
        else:
            doing = "computes" if busy else "sleeps"
        return RankNow(rank, mark.iteration, mark.num_collectives, now - since, doing)

    def _process(self, pid: int) -> tuple[str, float | None]:
        """State and processor seconds so far, of all its threads (proc_pid_stat(5), fields 3, 14 and 15)."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return "", None
