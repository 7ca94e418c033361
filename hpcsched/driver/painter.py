"""The driver's own picture of a large run, kept beside the journal for `hpcsched watch` and `status` (see `eventlog.picture`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hpcsched.core.scheduler import Scheduler
from hpcsched.eventlog.picture import FROM_RECORDS, encoded, picture_of, write_picture
from hpcsched.eventlog.records import Header, Record
from hpcsched.eventlog.replay import LiveCore
from hpcsched.eventlog.state import RunState
from hpcsched.runfolder import RunFolder

PERIOD_S = 1.0
"""At the earliest between two pictures."""
SHARE = 0.02
"""At most this share of the loop's time goes into pictures."""
BYTES_PER_S = 1_000_000
"""At most so much is written on average."""


class Painter:
    """Take in every record in the loop; `refresh` there as often as you like. Files are written in a thread of its own, so that a
    slow disk stops nothing; what cannot be written is left, for the journal has it."""

    def __init__(
        self,
        folder: RunFolder,
        header: Header,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float] = time.monotonic,
        from_records: int = FROM_RECORDS,
    ) -> None:
        """`header`: of the first life; `scheduler` has handled every step before its record is taken."""
        self._folder = folder
        self._run = RunState(core=LiveCore(header, scheduler))
        self._clock = clock
        self._from_records = from_records
        self._next_at = 0.0
        self._fresh: bytes | None = None
        self._condition = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def take(self, record: Record) -> None:
        self._run.feed(record)

    def refresh(self) -> None:
        """Paint when there is something to paint and it is time to."""
        if self._run.num_records < self._from_records:
            return
        began = self._clock()
        if began < self._next_at:
            return
        data = self._paint()
        took_s = self._clock() - began
        self._next_at = began + max(PERIOD_S, took_s / SHARE, len(data) / BYTES_PER_S)

    def close(self, limit_s: float = 5.0) -> None:
        """The last picture, when there were any or are to be."""
        if self._run.num_records >= self._from_records:
            self._paint()
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(limit_s)

    def _paint(self) -> bytes:
        data = encoded(picture_of(self._run))
        with self._condition:
            self._fresh = data
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="painter", daemon=True)
                self._thread.start()
            self._condition.notify_all()
        return data

    def _write(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._fresh is not None or self._closing)
                data, self._fresh = self._fresh, None
            if data is None:
                return
            try:
                write_picture(self._folder, data)
            except OSError:
                continue  # the next one may go through
