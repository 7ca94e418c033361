"""Wakes a thread that polls sockets, from any other thread (ZeroMQ sockets belong to one thread alone)."""

from __future__ import annotations

import contextlib
import socket
import threading


class Wakeup:
    """A pair of sockets; many `set()` before the thread looks are one."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._lock = threading.Lock()
        self._is_set = False
        self._closed = False

    def fileno(self) -> int:
        return self._reader.fileno()

    def set(self) -> None:
        with self._lock:
            if not self._is_set and not self._closed:
                self._is_set = True
                self._writer.send(b"\0")

    def clear(self) -> None:
        """By the polling thread, before it looks at what there is to do."""
        with self._lock:
            if self._is_set:
                with contextlib.suppress(BlockingIOError):
                    self._reader.recv(64)
                self._is_set = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._reader.close()
            self._writer.close()
