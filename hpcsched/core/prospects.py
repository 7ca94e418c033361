"""How far trials would reach that are only being thought of: one of a size, or several alike, on a machine that is theirs alone.

Placed with the pool, one after the other, as they would be. That is for plans: where a trial would go *now* is asked of the ledger
(`View.speedup`).
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcsched.topology.machine import AtomId, Machine
from hpcsched.topology.pool import Pool
from hpcsched.topology.span import Span, Spans

MOST_PLACED = 256
"""So many trials are placed at most; the rest is taken to be as they are."""


class Prospects:
    """Of one machine with some of its atoms out of use. Each question is answered once, then looked up."""

    __slots__ = ("_known", "_machine", "_pool", "_spans", "_unusable")

    def __init__(self, machine: Machine, unusable: Iterable[AtomId], spans: Spans) -> None:
        self._machine = machine
        self._unusable = tuple(unusable)
        self._spans = spans
        self._pool: Pool | None = None
        self._known: dict[tuple[int, int], dict[Span, int]] = {}

    def nearest(self, size: int) -> Span | None:
        """Span of one trial of so many atoms, alone; None when there are too few."""
        return next(iter(self.spans(size, 1)), None)

    def spans(self, size: int, num: int) -> dict[Span, int]:
        """How many of `num` trials (of the first MOST_PLACED) get which span; those that do not fit are left out."""
        num = min(num, MOST_PLACED)
        known = self._known.get((size, num))
        if known is None:
            known = self._known[size, num] = self._place(size, num)
        return known

    def _place(self, size: int, num: int) -> dict[Span, int]:
        pool = self._pool
        if pool is None:
            pool = self._pool = Pool(self._machine)
            pool.take(self._unusable)
        found: dict[Span, int] = {}
        taken: list[AtomId] = []
        for _ in range(num):
            placement = pool.find(size)
            if placement is None:
                break
            pool.take(placement.atoms)
            taken += placement.atoms
            span = self._spans.of(placement.atoms)
            found[span] = found.get(span, 0) + 1
        pool.give(taken)
        return found
