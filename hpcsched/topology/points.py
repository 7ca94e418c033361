"""One placement of each span for a number of atoms: what a profile measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from hpcsched.topology.machine import AtomId, Machine, Node, Placement
from hpcsched.topology.span import Span, Spans


def placements_by_span(machine: Machine, size: int) -> dict[Span, Placement]:
    """Nearest first; spans that this machine cannot give to so many atoms are left out.

    Over several nodes: on the fewest (two at least), as evenly as they allow."""
    atoms: dict[str, list[AtomId]] = {}
    for atom in machine.atoms:
        atoms.setdefault(atom.node, []).append(atom.atom_id)
    nodes = [node for node in machine.nodes if node.name in atoms]
    leaves: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        leaves.setdefault(node.switches, []).append(node)

    def candidates() -> Iterator[tuple[Span, tuple[AtomId, ...]]]:
        for node in nodes:
            islands = _by_island(machine, node, atoms[node.name])
            for island in islands:
                yield Span.ISLAND, tuple(island[:size])
            yield Span.NODE, tuple(_in_turn(islands)[:size])
        for under in leaves.values():
            yield Span.SWITCH, _evenly([atoms[node.name] for node in under], size)
        in_turn = [node for node in chain.from_iterable(zip_longest(*leaves.values())) if node is not None]
        yield Span.BEYOND, _evenly([atoms[node.name] for node in in_turn], size)

    spans = Spans(machine)
    found: dict[Span, Placement] = {}
    for span, chosen in candidates():
        if span not in found and len(chosen) == size and spans.of(chosen) is span:
            found[span] = Placement(tuple(sorted(chosen)), f"to measure {size} atoms, span {span}")
    return {span: found[span] for span in Span if span in found}


def _by_island(machine: Machine, node: Node, atoms: Sequence[AtomId]) -> list[list[AtomId]]:
    if not node.islands:
        return [list(atoms)]
    return [
        [atom_id for atom_id in atoms if set(machine.atoms[atom_id].gpus) <= set(island)]
        for island in node.islands
    ]


def _in_turn(groups: Sequence[Sequence[AtomId]]) -> list[AtomId]:
    """The first of each group, then the second of each, ..."""
    return [atom_id for atom_id in chain.from_iterable(zip_longest(*groups)) if atom_id is not None]


def _evenly(groups: Sequence[Sequence[AtomId]], size: int) -> tuple[AtomId, ...]:
    """`size` atoms of the first groups that hold them, at least two; fewer when there are too few."""
    num = next((num for num in range(2, len(groups) + 1) if sum(map(len, groups[:num])) >= size), len(groups))
    return tuple(_in_turn(groups[:num])[:size])
