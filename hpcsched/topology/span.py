"""How far a placement reaches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from hpcsched.topology.machine import AtomId, Machine, Node, Placement


class Span(StrEnum):
    """The nearest common thing that all GPUs of a placement share; in order of distance."""

    ISLAND = "island"
    NODE = "node"
    SWITCH = "switch"
    """Several nodes under one leaf switch (or block); also where no switches are known: all are one hop apart."""
    BEYOND = "beyond"


SPANS = tuple(Span)


class Spans:
    """Spans of placements on one machine: its nodes by name are looked up once."""

    __slots__ = ("_islands", "_machine", "_nodes")

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._nodes: dict[str, Node] = {node.name: node for node in machine.nodes}
        self._islands: dict[tuple[tuple[str, ...], ...], tuple[frozenset[str], ...]] = {}

    def of(self, atoms: Collection[AtomId]) -> Span:
        """Proportional to the number of atoms."""
        every = self._machine.atoms
        names = {every[atom_id].node for atom_id in atoms}
        if len(names) > 1:
            return Span.SWITCH if len({self._nodes[name].switches for name in names}) == 1 else Span.BEYOND
        if not names:
            return Span.ISLAND
        named = self._nodes[names.pop()].islands
        if not named:
            return Span.ISLAND
        islands = self._islands.get(named)
        if islands is None:
            islands = self._islands[named] = tuple(frozenset(island) for island in named)
        gpus = {gpu for atom_id in atoms for gpu in every[atom_id].gpus}
        return Span.ISLAND if any(gpus <= island for island in islands) else Span.NODE


def span_of(machine: Machine, placement: Placement | Collection[AtomId]) -> Span:
    """The span of one placement (or of a set of atoms). Reads the whole machine: for many, use `Spans`."""
    return Spans(machine).of(placement.atoms if isinstance(placement, Placement) else placement)


def points_of(points: Mapping[Span, Mapping[int, float]], span: Span) -> Mapping[int, float] | None:
    """The points that hold for a span: its own, else those of the next nearer span that has some, else of the next
    farther one: nothing is known against it. s(1, .) is 1 where it is not given. None: no span has any."""
    place = SPANS.index(span)
    for other in (*reversed(SPANS[: place + 1]), *SPANS[place + 1 :]):
        if points.get(other):
            return {1: 1.0, **points[other]}
    return None
