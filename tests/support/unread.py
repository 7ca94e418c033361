"""Streams that take nothing: pipes that are full, terminals that nobody reads, a disk that is full."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import TextIO


def full_pipe() -> tuple[int, int]:
    """Ends to read from and to write into; a write waits for a reader."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    fill(writer)
    return reader, writer


def unread_terminal() -> tuple[int, TextIO]:
    """A terminal of 40 lines of 120 columns whose buffer is full, and the end to read it by."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    fill(slave)
    return master, os.fdopen(slave, "w")


def fill(fd: int) -> None:
    """Until it takes no byte more."""
    os.set_blocking(fd, False)
    try:
        for size in (4096, 1):
            while True:
                try:
                    os.write(fd, b"." * size)
                except BlockingIOError:
                    break
    finally:
        os.set_blocking(fd, True)


def drained(fd: int, until: str) -> str:
    """What can be read, up to a text that has to come."""
    said = b""
    while until.encode() not in said:
        data = os.read(fd, 65536)
        assert data, f"it ended before {until!r}: {said!r}"
        said += data
    return said.decode()
