"""Whose turn it is to create a step: places for those that live at once, the pace of creations, trials before spares.

Theory. Each step that is to come waits in a thread of its own, hundreds at a time, and only the first in line can get a turn. So all
the others sleep until somebody wakes them; the first one sleeps, too, when a place is lacking, and by the clock only for the pace's
next token. Whoever leaves the line, or gives something back to it, wakes the first.

A spare gets a turn only when no trial waits, and leaves a place for each atom where there are more places than atoms.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable

from hpcsched.launch.pace import Pace
from hpcsched.topology.machine import Machine


def most_steps(machine: Machine, spares_per_node: int) -> int:
    """As many steps as can be of use at once: on each atom one, and for a moment the one before it that is ending, and the spares."""
    return 2 * len(machine.atoms) + len(machine.nodes) * spares_per_node


def too_few(max_steps: int | None, machine: Machine) -> str | None:
    """What to say at the start when not every atom can have a step; None: it can."""
    if max_steps is None or max_steps >= len(machine.atoms):
        return None
    return (
        f"[launcher] max_steps is {max_steps}, and trials of one atom on all {len(machine.atoms)} atoms need as many steps: those beyond "
        "wait, are refused after a while and tried again, and their atoms stay idle. Without the key the limit follows the machine"
    )


class Turn(enum.Enum):
    NOW = "now"
    """The step may be created; it has a place until `ended`."""
    CANCELLED = "cancelled"
    LATE = "late"
    """It has waited for as long as it is to."""


class Ticket:
    """One step's, from its wish to its end."""

    def __init__(self, *, of_spare: bool = False) -> None:
        self.of_spare = of_spare
        self.cancelled = False
        self.wakes: threading.Condition | None = None
        """While it waits."""


class Turns:
    """Thread-safe by its user's `lock`, which may be held or not when a method is called."""

    def __init__(
        self, most: int, num_atoms: int, pace: Pace, lock: threading.RLock, clock: Callable[[], float]
    ) -> None:
        self.most = most
        """Steps alive at once."""
        self._for_spares = most - num_atoms if most > num_atoms else most
        self._pace = pace
        self._lock = lock
        self._clock = clock
        self._trials: dict[Ticket, None] = {}
        """Who waits, first come first served."""
        self._spares: dict[Ticket, None] = {}
        self.num_alive = 0
        self._num_spares = 0
        """Of those alive."""

    @property
    def are_all_taken(self) -> bool:
        return self.num_alive >= self.most

    def take(self, ticket: Ticket, limit_s: float) -> Turn:
        """Wait for a turn, at most so long."""
        with self._lock:
            line = self._spares if ticket.of_spare else self._trials
            line[ticket] = None
            ticket.wakes = threading.Condition(self._lock)
            until = self._clock() + limit_s
            try:
                while not ticket.cancelled:
                    now = self._clock()
                    pause_s = self.ask(ticket, now)
                    if pause_s == 0.0:
                        self.num_alive += 1
                        self._num_spares += ticket.of_spare
                        return Turn.NOW
                    if now >= until:
                        return Turn.LATE
                    ticket.wakes.wait(min(pause_s, until - now))
                return Turn.CANCELLED
            finally:
                ticket.wakes = None
                del line[ticket]
                self.wake()

    def ask(self, ticket: Ticket, now: float) -> float:
        """0: it is its turn, and the pace's token is taken. Else for how long to sleep; inf: until it is woken."""
        if ticket is not self._first() or self.are_all_taken:
            return math.inf
        if ticket.of_spare and self._num_spares >= self._for_spares:
            return math.inf
        return self._pace.may_create(now)

    def cancel(self, ticket: Ticket) -> None:
        with self._lock:
            ticket.cancelled = True
            if ticket.wakes is not None:
                ticket.wakes.notify()

    def adopted(self, ticket: Ticket) -> None:
        """A spare's step is a trial's from now on."""
        with self._lock:
            if ticket.of_spare:
                ticket.of_spare = False
                self._num_spares -= 1
                self.wake()

    def ended(self, ticket: Ticket) -> None:
        """A step that had its turn is no more, or has not come to be."""
        with self._lock:
            self.num_alive -= 1
            self._num_spares -= ticket.of_spare
            self.wake()

    def wake(self) -> None:
        """The first in line is to ask again."""
        with self._lock:
            first = self._first()
            if first is not None and first.wakes is not None:
                first.wakes.notify()

    def _first(self) -> Ticket | None:
        return next(iter(self._trials), None) or next(iter(self._spares), None)
