"""Threads that wait for the disk, each with a descriptor of its own.

Linux tells of a failed write-back once for each open file (fsync(2)), and some network file systems only on the one that wrote. So each
syncer writes and syncs through its own, and what it says holds for what was written through it and for nothing else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import msgspec


class Flight(msgspec.Struct, eq=False):
    """One group on its way to the disk. `error` and `took_s` hold once `is_over`."""

    end: int
    """Where it ends in the file, in bytes."""
    crc: int
    """The checksum to go on from after it."""
    is_over: bool = False
    took_s: float = 0.0
    error: OSError | None = None


class _Syncer:
    def __init__(self, fd: int, sync: Callable[[int], None], landed: Callable[[Flight], None]) -> None:
        self.fd = fd
        self._sync = sync
        self._landed = landed
        self.orders: SimpleQueue[Flight | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (flight := self.orders.get()) is not None:
            began = time.monotonic()
            try:
                self._sync(self.fd)
            except OSError as error:
                flight.error = error
            flight.took_s = time.monotonic() - began
            flight.is_over = True
            self._landed(flight)
        with contextlib.suppress(OSError):
            os.close(self.fd)


class Syncers:
    """At most `most` at once. Used by one thread; `landed` is called in the syncer's and must return at once."""

    def __init__(
        self, file: Path, *, most: int, sync: Callable[[int], None], landed: Callable[[Flight], None]
    ) -> None:
        self._file = file
        self._most = most
        self._sync = sync
        self._landed = landed
        self._free: list[_Syncer] = []
        self._busy: list[tuple[_Syncer, Flight]] = []

    def begin(self, flight: Flight, data: bytes, at: int) -> None:
        """Write `data` and have it synced. Raises OSError when it cannot be written; nothing is under way then."""
        self._free += [syncer for syncer, known in self._busy if known.is_over]
        self._busy = [(syncer, known) for syncer, known in self._busy if not known.is_over]
        assert len(self._busy) < self._most, "the writer counts what is under way"
        if not self._free:
            fd = os.open(self._file, os.O_WRONLY | os.O_CLOEXEC)
            self._free.append(_Syncer(fd, self._sync, self._landed))
        write_all(self._free[-1].fd, data, at)
        syncer = self._free.pop()
        self._busy.append((syncer, flight))
        syncer.orders.put(flight)

    def close(self) -> None:
        """Each ends, and closes its descriptor, once what it is at is over."""
        for syncer in (*self._free, *(syncer for syncer, _ in self._busy)):
            syncer.orders.put(None)
        self._free, self._busy = [], []


def write_all(fd: int, data: bytes, at: int) -> None:
    """All of `data` at the byte `at`. Raises OSError."""
    view = memoryview(data)
    while view:
        num = os.pwrite(fd, view, at)
        view = view[num:]
        at += num
