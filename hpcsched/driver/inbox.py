"""The one queue of the driver: everything that threads learn arrives here; the loop alone acts on it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import msgspec

from hpcsched.driver.aside import Kept
from hpcsched.orders import Answer, Order


class Durable(msgspec.Struct, frozen=True):
    """Steps up to `n` are on disk."""

    n: int


class SignalCaught(msgspec.Struct, frozen=True):
    name: str


class AllocationEnds(msgspec.Struct, frozen=True):
    """The live end of the allocation, UNIX seconds; None: no limit."""

    at_unix_s: float | None


class AllocationOver(msgspec.Struct, frozen=True):
    """The job has ended although the driver has not: somebody cancelled it, say."""

    why: str


class NodeBack(msgspec.Struct, frozen=True):
    node: str


class Checked(msgspec.Struct, frozen=True):
    """Atoms that were set aside have been looked at again."""

    kept: Kept
    why: str | None
    """Why they cannot be used; None: they can."""


class Said(msgspec.Struct, frozen=True):
    """A thread has something to tell the user."""

    text: str


class LeaseLost(msgspec.Struct, frozen=True):
    """Another driver owns the run folder now."""

    why: str


class Ordered(msgspec.Struct, frozen=True):
    """A user's order, whichever way it came."""

    order: Order
    answer: Callable[[Answer], None]
    """Called once the journal holds what was done; must be quick."""


class Inbox:
    """A queue that hands out all that is there."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: object) -> None:
        self._queue.put(item)

    def take(self, wait_s: float, most: int = 2000) -> list[Any]:
        """At least one item if any comes within `wait_s`, and whatever else is at hand (at most `most`)."""
        items: list[Any] = []
        try:
            items.append(self._queue.get(timeout=max(0.0, wait_s)))
            while len(items) < most:
                items.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return items
