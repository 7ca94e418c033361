"""A line to the user from whatever thread: to stderr, beside the screen's own. Never raises, never holds anybody up for long."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Self, TextIO

from hpcsched.driver.outlet import Outlet, write_through

PATIENCE_S = 1.0
"""Longest wait for a write to stderr; while it is stuck nobody waits at all."""
MOST_LINES = 1000


def _show(lines: list[tuple[TextIO, str]], num_dropped: int) -> None:
    if num_dropped:
        write_through(lines[0][0], f"hpcsched: ({num_dropped} lines are lost: nobody read)\n")
    for stream, line in lines:
        write_through(stream, line)


_outlet = Outlet(_show, most=MOST_LINES, name="say")


def say(text: str) -> None:
    """The line has been written when this returns, unless stderr is stuck or cannot be written."""
    tell(f"hpcsched: {text}\n")
    _outlet.wait(PATIENCE_S)


def tell(text: str) -> None:
    """The text as it is, without any wait."""
    if sys.stderr is not None:  # as in a process without one
        _outlet.put((sys.stderr, text))


class Told(logging.Handler):
    """While entered, warnings of the package's loggers go out here: Python's own way would stop their thread with stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(f"{self.format(record)}\n")

    def __enter__(self) -> Self:
        self.setLevel(logging.WARNING)
        logging.getLogger("hpcsched").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("hpcsched").removeHandler(self)
        _outlet.wait(PATIENCE_S)
