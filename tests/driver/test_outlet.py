"""Nobody reads, or nothing can be written: nothing but the screen's own thread notices."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from hpcsched.core.scheduler import Scheduler
from hpcsched.driver import lastwords, say, screen
from hpcsched.driver.keeper import Chore, Keeper
from hpcsched.driver.outlet import Outlet
from hpcsched.driver.screen import Lines, LiveView, make_screen
from hpcsched.topology.machine import Machine
from tests.support.e2e import wait_until
from tests.support.unread import drained, full_pipe, unread_terminal

NOTHING = Machine(nodes=(), atoms=())
LIMIT_S = 20.0


class Idle:
    """A scheduler before its first trial, as far as a live view looks at one."""

    best = None
    trials = ()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(screen, "CLOSE_S", 0.05)
    monkeypatch.setattr(say, "PATIENCE_S", 0.05)
    monkeypatch.setattr(say, "_outlet", Outlet(say._show, most=5, name="say"))
    monkeypatch.setattr(lastwords, "PATIENCE_S", 0.05)
    monkeypatch.setattr(lastwords, "UNREAD_S", 0.05)
    yield


def test_a_pipe_that_is_not_read_holds_up_nobody_and_says_later_how_much_is_lost() -> None:
    reader, writer = full_pipe()
    lines = Lines(NOTHING, os.fdopen(writer, "w"))
    for number in range(5000):
        lines.note(1.0, f"note {number}")
    lines.close()  # and the end is not held up either
    said = drained(reader, "note 4999\n").lstrip(".").splitlines()
    at = next(i for i, line in enumerate(said) if "are lost: nobody read" in line)
    num_lost = int(said[at].partition("(")[2].split()[0])
    assert len(said) == 5000 - num_lost + 1
    assert said[at + 1] == f"[     1.0 s] note {at + num_lost}", "the oldest are lost"
    assert num_lost >= 5000 - screen.MOST_LINES - 64


def test_a_terminal_that_is_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, terminal = unread_terminal()
    before = (sys.stdout, sys.stderr)
    view = make_screen(NOTHING, cast(Scheduler, Idle()), "accuracy", terminal)
    assert isinstance(view, LiveView)
    view.refresh(0.0)
    wait_until(
        lambda: not view._outlet.waiting, "its thread is stuck with the first picture", limit_s=LIMIT_S
    )
    for number in range(1, 50):
        view.note(0.3 * number, f"note {number}")
        view.refresh(0.3 * number)
    view.close()
    assert (sys.stdout, sys.stderr) == before, "what comes last is not for a view that is stuck"
    drained(master, "\x1b[?25h")  # somebody reads again: the cursor comes back, after all


def test_a_process_whose_output_is_stuck_ends_with_its_exit_code() -> None:
    """Python ends one whose thread is stuck within the buffer of stdout by SIGABRT."""
    reader, writer = full_pipe()
    program = (
        "import sys; from hpcsched.driver import screen, lastwords, say; from hpcsched.topology.machine import Machine\n"
        "screen.CLOSE_S = say.PATIENCE_S = lastwords.PATIENCE_S = lastwords.UNREAD_S = 0.02\n"
        "lines = screen.Lines(Machine(nodes=(), atoms=()), sys.stdout); lines.note(1.0, 'a note'); lines.close()\n"
        "words = lastwords.LastWords(); words.say('the end'); words.close(); say.say('farewell'); sys.exit(75)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=writer, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 75
    os.close(reader)
    os.close(writer)


def test_a_process_whose_output_goes_to_a_full_disk_ends_with_its_exit_code() -> None:
    program = (
        "import sys; from hpcsched.driver import screen, lastwords, say; from hpcsched.topology.machine import Machine\n"
        "lines = screen.Lines(Machine(nodes=(), atoms=()), sys.stdout); lines.note(1.0, 'a note'); lines.close()\n"
        "words = lastwords.LastWords(); words.say('the end'); words.close(); say.say('farewell'); sys.exit(75)"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=full, timeout=LIMIT_S, check=False
        )
    assert done.returncode == 75


def test_a_chore_that_cannot_say_what_is_wrong_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Semaphore(0)

    def fails() -> None:
        tried.release()
        raise OSError(5, "Input/output error")

    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        keeper = Keeper([Chore("one", "do it", "nothing holds", 0.001, fails)], say.say)
        keeper.start()
        for _ in range(5):
            assert tried.acquire(timeout=LIMIT_S)
        keeper.close()


def test_a_thread_that_warns_is_not_stuck_with_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the channel's would be, and with it all trials."""
    reader, writer = full_pipe()
    with os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with say.Told():
            for number in range(20):
                logging.getLogger("hpcsched.channel.exchange").warning("dropped frame %d", number)
            say.say("and the lease cannot be renewed")
        said = drained(reader, "renewed\n")
        assert "lines are lost: nobody read" in said
        assert say._outlet.wait(LIMIT_S)
    os.close(reader)


def test_a_terminal_that_another_process_made_non_blocking_is_waited_for() -> None:
    reader, writer = full_pipe()
    os.set_blocking(writer, False)
    lines = Lines(NOTHING, os.fdopen(writer, "w"))
    lines.note(1.0, "a note")
    assert "a note" in drained(reader, "a note\n")
    lines.close()


def test_while_no_thread_is_to_be_had_lines_wait_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    outlet: Outlet[str] = Outlet(lambda items, _: shown.extend(items), most=5, name="one")

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limits:
        limits.setattr(threading.Thread, "start", start)
        outlet.put("first")
        assert not outlet.wait(LIMIT_S)
    outlet.put("second")
    assert outlet.close(LIMIT_S)
    assert shown == ["first", "second"]


def test_what_a_view_has_shown_is_complete_when_it_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as stream:
        lines = Lines(NOTHING, stream)
        for number in range(500):
            lines.note(1.0, f"note {number}")
        lines.close()
    assert (tmp_path / "out").read_text().count("\n") == 500
