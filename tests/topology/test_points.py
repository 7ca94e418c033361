"""Placements for a profile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.topology.machine import Machine, Node, atoms_of_nodes
from hpcsched.topology.points import placements_by_span
from hpcsched.topology.span import Span, span_of

GPUS = tuple("01234567")


def a_machine(leaves: int, nodes: int, *, islands: bool = True) -> Machine:
    return atoms_of_nodes(
        tuple(
            Node(
                f"n{leaf}-{number}",
                GPUS,
                tuple(range(8)),
                switches=("spine", f"leaf{leaf}"),
                islands=(GPUS[:4], GPUS[4:]) if islands else (),
            )
            for leaf in range(leaves)
            for number in range(nodes)
        ),
        1,
    )


@pytest.mark.parametrize(
    ("size", "spans"),
    [
        (1, ["island"]),
        (2, ["island", "node", "switch", "beyond"]),
        (4, ["island", "node", "switch", "beyond"]),
        (8, ["node", "switch", "beyond"]),
        (16, ["switch", "beyond"]),
        (32, ["beyond"]),
        (33, []),
    ],
)
def test_every_span_that_a_machine_can_give_is_measured(size: int, spans: list[str]) -> None:
    found = placements_by_span(a_machine(2, 2), size)
    assert [str(span) for span in found] == spans


def test_over_nodes_it_is_even_and_on_the_fewest() -> None:
    machine = a_machine(2, 3)
    found = placements_by_span(machine, 12)
    for span in (Span.SWITCH, Span.BEYOND):
        names = [machine.atoms[atom].node for atom in found[span].atoms]
        assert sorted(names.count(name) for name in set(names)) == [6, 6]


@given(leaves=st.integers(1, 3), nodes=st.integers(1, 3), islands=st.booleans(), size=st.integers(1, 80))
def test_a_placement_has_the_span_and_size_that_it_is_for(
    leaves: int, nodes: int, islands: bool, size: int
) -> None:
    machine = a_machine(leaves, nodes, islands=islands)
    found = placements_by_span(machine, size)
    assert bool(found) == (size <= len(machine.atoms))
    for span, placement in found.items():
        assert span_of(machine, placement) is span
        assert len(set(placement.atoms)) == size
