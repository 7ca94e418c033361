"""Whose turn it is to create a step."""

from __future__ import annotations

import threading
import time

import pytest

from hpcsched.launch.pace import Pace, PaceLimits
from hpcsched.launch.turns import Ticket, Turn, Turns, most_steps, too_few
from tests.support.dialogue import wait_until
from tests.support.virtual import machine

LIMIT_S = 30.0


class Line:
    """Threads that wait for their turns."""

    def __init__(self, most: int, num_atoms: int = 0, max_creating: int = 1000) -> None:
        self.pace = Pace(PaceLimits(max_creating=max_creating, burst=1000), time.monotonic())
        self.turns = Turns(most, num_atoms, self.pace, threading.RLock(), time.monotonic)
        self.had: list[Ticket] = []
        self.threads: list[threading.Thread] = []

    def join(self, *, of_spare: bool = False) -> Ticket:
        """A step that has its turn already, or sleeps in the line."""
        ticket = Ticket(of_spare=of_spare)

        def wait() -> None:
            if self.turns.take(ticket, LIMIT_S) is Turn.NOW:
                self.had.append(ticket)

        self.threads.append(threading.Thread(target=wait))
        self.threads[-1].start()
        wait_until(lambda: ticket.wakes is not None or ticket in self.had, "it waits or has its turn")
        return ticket

    def wait_had(self, *tickets: Ticket) -> None:
        wait_until(lambda: len(self.had) == len(tickets), "they have had their turns")
        assert self.had == list(tickets)

    def end(self, ticket: Ticket) -> None:
        self.turns.ended(ticket)

    def close(self, *waiting: Ticket) -> None:
        for ticket in waiting:
            self.turns.cancel(ticket)
        for thread in self.threads:
            thread.join()


def test_who_waits_sleeps_until_it_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine hundred that look twenty times a second took half a core of the driver's node."""
    slept: list[float] = []

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None:  # `threading` has conditions of its own
                slept.append(timeout)
            return super().wait(timeout)

    monkeypatch.setattr("hpcsched.launch.turns.threading.Condition", Watched)
    line = Line(100, max_creating=1)
    tickets = [line.join() for _ in range(20)]
    for num in range(1, 21):
        line.wait_had(*tickets[:num])
        with line.turns._lock:
            line.pace.created()
            line.turns.wake()
    line.close()
    assert len(slept) <= 2 * 20, (
        "each is woken when it is the first and when it may go, not when another one is"
    )
    assert min(slept) > LIMIT_S / 2


def test_a_spare_gets_a_turn_only_when_no_trial_waits() -> None:
    line = Line(1)
    first, spare, trial = line.join(), line.join(of_spare=True), line.join()
    line.wait_had(first)
    line.end(first)
    line.wait_had(first, trial)
    line.end(trial)
    line.wait_had(first, trial, spare)
    line.close()


def test_spares_leave_a_place_for_each_atom() -> None:
    line = Line(5, num_atoms=3)
    spares = [line.join(of_spare=True) for _ in range(3)]
    line.wait_had(*spares[:2])
    trials = [line.join() for _ in range(3)]
    line.wait_had(*spares[:2], *trials)
    line.turns.adopted(spares[0])
    line.end(trials[0])
    line.wait_had(*spares[:2], *trials, spares[2])
    line.close()


def test_a_cancelled_one_leaves_the_line_to_the_next() -> None:
    line = Line(1)
    first, second, third = line.join(), line.join(), line.join()
    line.turns.cancel(second)
    line.end(first)
    line.wait_had(first, third)
    line.close()
    assert not line.turns._trials


def test_who_has_waited_for_as_long_as_it_may_is_late() -> None:
    line = Line(0)
    assert line.turns.take(Ticket(), 0.0) is Turn.LATE
    assert not line.turns._trials
    assert line.turns.num_alive == 0


def test_the_limit_follows_the_machine() -> None:
    assert most_steps(machine(125, 8), 1) == 2125
    assert too_few(None, machine(125, 8)) is None
    assert too_few(1000, machine(125, 8)) is None
    said = too_few(256, machine(125, 8))
    assert said is not None
    assert "256" in said
    assert "1000 atoms" in said
