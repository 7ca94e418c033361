"""Heartbeats of a supervisor, from a thread of its own that touches nothing but the channel.

What a heartbeat says: this node is up and can be reached, this process runs, and its main thread has come round within the last
`HUNG_AFTER_S`. It does not say that the main thread is at leisure: that waits for file systems (a rank's log is made, a folder is
looked at, its own log is written) and for the tasks of an MPI trial, and a file system that stalls for some seconds is no reason
to end a trial. So while the ranks are being started a heartbeat says no more than that the process runs, for that has a limit of its
own with the driver ([timeouts] start); afterwards a main thread that stays away ends the heartbeats, since nobody else would tell
the driver of a rank that has died, or end the others. (A process that is stopped, or a node that is gone, is missed after
`crew.SILENT_AFTER_S` as ever.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

HUNG_AFTER_S = 60.0
"""A main thread away for longer counts as gone: file systems that fail over come back within it, and a trial that has lost a rank
does not hold its atoms for much longer."""


class Pulse:
    """`beat` sends one heartbeat and may be called from any thread."""

    def __init__(
        self,
        beat: Callable[[], None],
        period_s: float,
        *,
        hung_after_s: float = HUNG_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beat = beat
        self._period_s = period_s
        self._hung_after_s = hung_after_s
        self._clock = clock
        self._round_at: float | None = None
        """When the main thread last came round; None: it has yet to start the ranks."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="hpcsched-pulse", daemon=True).start()

    def came_round(self) -> None:
        """From the main thread, often: it still does what it is there for."""
        self._round_at = self._clock()

    def tick(self) -> None:
        """One heartbeat, if there is to be one."""
        round_at = self._round_at
        if round_at is not None and self._clock() - round_at > self._hung_after_s:
            return
        with self._lock:
            if not self._stopped.is_set():
                self._beat()

    def stop(self) -> None:
        """None comes after this has returned: the channel may be closed."""
        with self._lock:
            self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            self.tick()
