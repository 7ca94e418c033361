"""Which spare waits on which node. Pure: no sockets, no clock.

A spare is a supervisor in its own step that has imported torch and waits (design, "Warm start"). So many a node are
kept; an incarnation takes one on each of its nodes, or starts cold. A node whose spares fail is left alone for ever longer.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

import msgspec

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 300.0


class SpareState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    COLD = "cold"
    """It is there, but what was preloaded may not be forked."""


class _Spare(msgspec.Struct):
    number: int
    node: str
    started_at: float
    state: SpareState = SpareState.STARTING
    heard_at: float = 0.0


class _Failures(msgspec.Struct):
    not_before: float
    wait_s: float


class Spares:
    """One driver life's spares. Numbers are never used twice."""

    def __init__(self, per_node: int = 1) -> None:
        self._per_node = per_node
        self._next = 0
        self._waiting: dict[int, _Spare] = {}
        self._failures: dict[str, _Failures] = {}
        self.cold: str | None = None
        """Why preloading does not work here: no more spares are started then."""

    def missing(self, nodes: Iterable[str], now: float) -> list[tuple[int, str]]:
        """(number, node) of spares to start now; they count as started."""
        if self.cold is not None:
            return []
        wanted = []
        num_waiting: dict[str, int] = {}
        for spare in self._waiting.values():
            num_waiting[spare.node] = num_waiting.get(spare.node, 0) + 1
        for node in nodes:
            failures = self._failures.get(node)
            if failures is not None and now < failures.not_before:
                continue
            for _ in range(self._per_node - num_waiting.get(node, 0)):
                self._waiting[self._next] = _Spare(self._next, node, now, heard_at=now)
                wanted.append((self._next, node))
                self._next += 1
        return wanted

    def heard(self, number: int, now: float) -> None:
        if spare := self._waiting.get(number):
            spare.heard_at = now

    def ready(self, number: int, cold: str | None, now: float) -> None:
        spare = self._waiting.get(number)
        if spare is None:
            return
        spare.heard_at = now
        spare.state = SpareState.READY if cold is None else SpareState.COLD
        if cold is None:
            self._failures.pop(spare.node, None)
        else:
            self.cold = cold

    def take(self, nodes: Collection[str], now: float, silent_after_s: float) -> dict[str, int] | None:
        """node -> number of the spares that an incarnation on `nodes` gets, now gone from here; None: start cold."""
        found = {}
        for node in nodes:
            ready = [
                spare.number
                for spare in self._waiting.values()
                if spare.node == node
                and spare.state is SpareState.READY
                and now - spare.heard_at <= silent_after_s
            ]
            if not ready:
                return None
            found[node] = ready[0]
        for number in found.values():
            del self._waiting[number]
        return found

    def lost(self, number: int, now: float) -> bool:
        """It has ended or could not be started; False when it is none that waits."""
        spare = self._waiting.pop(number, None)
        if spare is None:
            return False
        before = self._failures.get(spare.node)
        wait_s = FIRST_WAIT_S if before is None else min(LONGEST_WAIT_S, 2 * before.wait_s)
        self._failures[spare.node] = _Failures(now + wait_s, wait_s)
        return True

    def silent(self, now: float, silent_after_s: float) -> list[int]:
        """Numbers of spares not heard of for so long: to be killed; they do not count any more."""
        numbers = [
            spare.number
            for spare in self._waiting.values()
            if spare.state is not SpareState.STARTING and now - spare.heard_at > silent_after_s
        ]
        for number in numbers:
            self.lost(number, now)
        return numbers

    def late(self, now: float, limit_s: float) -> list[tuple[int, str]]:
        """(number, node) of spares that have not preloaded so long after their start, heard of or not: as `silent`."""
        late = [
            (spare.number, spare.node)
            for spare in self._waiting.values()
            if spare.state is SpareState.STARTING and now - spare.started_at > limit_s
        ]
        for number, _ in late:
            self.lost(number, now)
        return late

    def drop_all(self) -> list[tuple[int, str]]:
        """(number, node) of all that wait: no more are needed."""
        dropped = [(spare.number, spare.node) for spare in self._waiting.values()]
        self._waiting.clear()
        self.cold = self.cold or "no more trials will start"
        return dropped
