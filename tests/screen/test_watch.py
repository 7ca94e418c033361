"""`hpcsched watch` in a terminal (a pseudo-terminal), as a person uses it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcsched.screen.keys import keys_of
from tests.support.runs import a_run

ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9])")


class Terminal:
    """One end of a pseudo-terminal with a program in the other."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self.fd = fd
        self.process = process
        self.text = ""

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def shows(self, words: str, limit_s: float = 60.0) -> None:
        """Wait until `words` appear in what is drawn from now on."""
        end = time.monotonic() + limit_s
        text = ""
        while words not in text:
            left = end - time.monotonic()
            if left < 0 or not select.select([self.fd], [], [], left)[0]:
                pytest.fail(f"waited in vain for {words!r}; there was {text[-3000:]!r}")
            try:
                self.text += os.read(self.fd, 65536).decode("utf-8", "replace")
            except OSError:
                pytest.fail(
                    f"the program ended (code {self.process.wait(10)}) before {words!r}: {self.text[-3000:]!r}"
                )
            text = " ".join(ESCAPES.sub("", self.text).split())
        self.text = ""

    def ends(self) -> int:
        """Read what still comes (a full terminal would hold the program up) until it is over."""
        while self.process.poll() is None:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    break
        return self.process.wait(30)


@contextmanager
def terminal(*args: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    before = termios.tcgetattr(theirs)
    environ = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcsched", *args], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"},
    )  # fmt: skip
    try:
        yield Terminal(ours, process)
        assert termios.tcgetattr(theirs) == before, "the terminal is not as it was"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(theirs)
        os.close(ours)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50)])
def test_keys_explain_a_trial_and_quit(tmp_path: Path, columns: int, lines: int) -> None:
    folder = a_run(tmp_path, deadline_s=40.0)
    with terminal("watch", str(folder.root), columns=columns, lines=lines) as screen:
        screen.shows("q quit")
        screen.press("\x1b[B")
        screen.press("e")
        screen.shows("Esc back")
        screen.press("q")
        screen.shows("q quit")
        screen.press("q")
        assert screen.ends() == 0


def test_a_stop_of_a_run_that_is_over_says_so_and_the_view_goes_on(tmp_path: Path) -> None:
    folder = a_run(tmp_path, deadline_s=40.0)
    with terminal("watch", str(folder.root)) as screen:
        screen.shows("q quit")
        screen.press("s")
        screen.shows("(y/n)")
        screen.press("y")
        screen.shows("no driver serves this run")
        screen.press("x")
        screen.shows("extend the deadline")
        screen.press("\x1b")
        screen.press("l")
        screen.shows("rank 0 is up")
        screen.press("q")
        screen.shows("q quit")
        screen.press("q")
        assert screen.ends() == 0


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpcsched", "watch", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no journal here" in done.stderr


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("e", ["e"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1b", ["escape"]),
        ("\x1b[1;5Cq", ["q"]),
        ("30m\r", ["3", "0", "m", "enter"]),
        ("\x1bOA\x7f", ["up", "backspace"]),
    ],
)
def test_keys_are_told_apart(text: str, keys: list[str]) -> None:
    assert keys_of(text) == keys
