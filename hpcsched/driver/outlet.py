"""What is shown to the user goes out by a thread of its own: a terminal or pipe that nobody reads stops that thread alone.

Theory. A write to a pipe that is full, to a terminal held by Ctrl-S, or over an ssh connection whose other end sleeps, returns when
somebody reads again: perhaps never. So whoever shows something hands it over and goes on. What waits is bounded, the oldest is
dropped. Bytes go past the stream's own buffer: a thread that is stuck within it would hold its lock, and Python ends a process
that cannot flush its stdout at exit by SIGABRT, one whose disk was full by code 120.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TextIO, TypeVar

Item = TypeVar("Item")

MOST_AT_ONCE = 64
"""Handed to `show` together."""


class Outlet(Generic[Item]):
    """Hands items to `show(items, num_dropped)` in a thread of its own, in order. Thread-safe.

    `num_dropped`: items before these that nobody will see. What `show` cannot do (OSError, ValueError: the terminal is gone,
    the disk is full) is left undone.
    """

    def __init__(self, show: Callable[[list[Item], int], None], *, most: int, name: str) -> None:
        """`most`: items that may wait; a further one drops the oldest."""
        self._show = show
        self._most = most
        self._name = name
        self._condition = threading.Condition()
        self._items: deque[Item] = deque()
        self._num_dropped = 0
        self._busy_since: float | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> bool:
        """Something has been put that `show` has not been given yet."""
        return bool(self._items)

    def put(self, item: Item) -> None:
        """Never blocks, never raises; after `close` it does nothing."""
        with self._condition:
            if self._closing:
                return
            self._items.append(item)
            if len(self._items) > self._most:
                self._items.popleft()
                self._num_dropped += 1
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread is to be had: the next item tries again
                    return
                self._thread = thread
            self._condition.notify_all()

    def wait(self, limit_s: float) -> bool:
        """Until all that has been put is shown; False: it was not within `limit_s`. A `show` that had been stuck for so long before
        is not waited for."""
        until = time.monotonic() + limit_s
        with self._condition:
            while self._items or self._busy_since is not None:
                if self._thread is None:
                    return False
                stuck_at = until if self._busy_since is None else self._busy_since + limit_s
                left_s = min(until, stuck_at) - time.monotonic()
                if left_s <= 0:
                    return False
                self._condition.wait(left_s)
            return True

    def close(self, limit_s: float) -> bool:
        """As `wait`; nothing is taken any more."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        return self.wait(limit_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._items or self._closing)
                if not self._items:
                    return
                items = [self._items.popleft() for _ in range(min(MOST_AT_ONCE, len(self._items)))]
                num_dropped, self._num_dropped = self._num_dropped, 0
                self._busy_since = time.monotonic()
            try:
                with contextlib.suppress(OSError, ValueError):
                    self._show(items, num_dropped)
            finally:
                with self._condition:
                    self._busy_since = None
                    self._condition.notify_all()


def write_through(stream: TextIO, text: str) -> None:
    """All of `text`, past the stream's buffer where it has a descriptor. Blocks while nobody reads. Raises OSError, ValueError."""
    fd = None
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(OSError):  # a stand-in of a test
            fd = stream.fileno()
    if fd is None:
        stream.write(text)
        stream.flush()
        return
    data = text.encode(stream.encoding, errors="backslashreplace")
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another process has made the terminal that we share non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll(1000)
