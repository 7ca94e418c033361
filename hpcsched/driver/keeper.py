"""What has to be looked at now and then, in a thread of its own so that a slow disk or Slurm command never stops
the loop: the lease is renewed, control files are taken, the allocation's live end is asked, dead nodes are tried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from hpcsched.errors import HpcschedError

CLOSE_S = 2.0


class Chore(msgspec.Struct):
    """`do` is called every `period_s` at least; what it raises is told (once until it works again)."""

    name: str
    """Of its thread."""
    what: str
    """In the trouble it makes: what was tried ("to ..."), ..."""
    meanwhile: str
    """... and what holds until it works again."""
    period_s: float
    do: Callable[[], None]
    next_at: float = 0.0
    failing: bool = False


class Keeper:
    """Runs chores, each in its turn, until closed."""

    def __init__(self, chores: list[Chore], say: Callable[[str], None]) -> None:
        self._chores = chores
        self._say = say
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(chore,), name=f"keeper-{chore.name}", daemon=True)
            for chore in chores
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run(self, chore: Chore) -> None:
        while not self._stop.wait(max(0.0, chore.next_at - time.monotonic())):
            chore.next_at = time.monotonic() + chore.period_s
            try:
                chore.do()
                chore.failing = False
            except (OSError, HpcschedError) as error:
                if not chore.failing:
                    self._say(_in_words(chore, error))
                chore.failing = True

    def close(self) -> None:
        """Whoever is stuck (a disk or Slurm that does not answer) is left: all together are waited for so long."""
        self._stop.set()
        end = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


def _in_words(chore: Chore, error: Exception) -> str:
    why = str(error)
    if isinstance(error, OSError) and error.strerror:
        why = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"could not {chore.what}: {why}; it is tried again every {chore.period_s:g} s, and until then {chore.meanwhile}"
