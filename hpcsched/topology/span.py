"""How far a placement reaches, and what that costs: s(atoms, span)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from enum import StrEnum

import msgspec

from hpcsched.topology.machine import AtomId, Machine, Placement


class Span(StrEnum):
    """The nearest common thing that all GPUs of a placement share; in order of distance."""

    ISLAND = "island"
    NODE = "node"
    SWITCH = "switch"
    """Several nodes under one leaf switch (or block); also where no switches are known: all are one hop apart."""
    BEYOND = "beyond"


SPANS = tuple(Span)


def span_of(machine: Machine, placement: Placement | Collection[AtomId]) -> Span:
    """The span of a placement (or of a set of atoms). Proportional to its size and to its nodes' GPUs."""
    atoms = placement.atoms if isinstance(placement, Placement) else tuple(placement)
    used = {machine.atoms[atom_id].node for atom_id in atoms}
    nodes = [node for node in machine.nodes if node.name in used]
    if len(nodes) > 1:
        return Span.SWITCH if len({node.switches for node in nodes}) == 1 else Span.BEYOND
    gpus = {gpu for atom_id in atoms for gpu in machine.atoms[atom_id].gpus}
    if not nodes or not nodes[0].islands or any(gpus <= set(island) for island in nodes[0].islands):
        return Span.ISLAND
    return Span.NODE


class SpanScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """s(atoms, span): throughput relative to one atom, as measured (or given by hand) at some points.

    Between points it is interpolated, beyond them it stays flat. A span without any points takes those of the next
    nearer span that has some, then of the next farther one: nothing is known against it. s(1, .) is 1 where it is not given.
    """

    points: dict[Span, dict[int, float]]

    def at(self, atoms: int, span: Span) -> float:
        known = self._of(span)
        if known is None:
            return 1.0
        if atoms in known:
            return known[atoms]
        sizes = sorted(known)
        if atoms <= sizes[0]:
            return known[sizes[0]]
        if atoms >= sizes[-1]:
            return known[sizes[-1]]
        i = bisect_left(sizes, atoms)
        low, high = sizes[i - 1], sizes[i]
        share = (atoms - low) / (high - low)
        return known[low] + share * (known[high] - known[low])

    def _of(self, span: Span) -> Mapping[int, float] | None:
        place = SPANS.index(span)
        for other in (*reversed(SPANS[: place + 1]), *SPANS[place + 1 :]):
            if self.points.get(other):
                return {1: 1.0, **self.points[other]}
        return None
