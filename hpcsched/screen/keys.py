"""Single keys from a terminal, without waiting for Enter; nothing when standard input is none."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import sys
from types import TracebackType
from typing import Any, TextIO

NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x03": "q", "\x04": "q",
}  # fmt: skip
ESCAPE_S = 0.05
"""An escape sequence arrives in one piece, or within so long; else it was the Escape key."""


class Keys:
    """While entered, the terminal hands over each key and echoes none; as it was afterwards, whatever happens."""

    def __init__(self, stream: TextIO = sys.stdin) -> None:
        self._fd: int | None = None
        self._before: list[Any] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(OSError, ValueError):
            self._fd = stream.fileno() if stream.isatty() else None

    @property
    def is_there(self) -> bool:
        return self._fd is not None

    def __enter__(self) -> Keys:
        if self._fd is not None:
            import termios
            import tty

            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSADRAIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None and self._before is not None:
            import termios

            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def read(self, wait_s: float) -> list[str]:
        """Keys pressed within `wait_s` (at once when some are there): characters, or names such as "up", "enter"."""
        if self._fd is None:
            select.select([], [], [], max(0.0, wait_s))
            return []
        if not select.select([self._fd], [], [], max(0.0, wait_s))[0]:
            return []
        data = os.read(self._fd, 4096)
        if not data:
            self._fd = None
            return ["q"]  # end of input: the terminal has been closed
        while data.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and select.select([self._fd], [], [], ESCAPE_S)[0]:
            data += os.read(self._fd, 4096)
        return keys_of(self._decoder.decode(data))


def keys_of(text: str) -> list[str]:
    """Characters and names; escape sequences that mean nothing to us are left out."""
    keys: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\x1b":
            keys.append(NAMES.get(text[at], text[at]))
            at += 1
            continue
        end = at + 1
        if end < len(text) and text[end] in "[O":
            end += 1
            while end < len(text) and not "@" <= text[end] <= "~":
                end += 1
            end += 1
        name = NAMES.get(text[at:end])
        if name is not None:
            keys.append(name)
        at = end
    return keys
