"""Spans of placements."""

from __future__ import annotations

import pytest

from hpcsched.topology.machine import AtomId, Node, atoms_of_nodes
from hpcsched.topology.span import Span, Spans, span_of

MACHINE = atoms_of_nodes(
    (
        Node("a", ("0", "1", "2", "3"), (0, 1, 2, 3), switches=("r", "l1"), islands=(("0", "1"), ("2", "3"))),
        Node("b", ("0", "1"), (0, 1), switches=("r", "l1")),
        Node("c", ("0", "1"), (0, 1), switches=("r", "l2")),
    ),
    1,
)


@pytest.mark.parametrize(
    ("atoms", "span"),
    [
        ((0,), Span.ISLAND),
        ((2, 3), Span.ISLAND),
        ((1, 2), Span.NODE),
        ((4, 5), Span.ISLAND),
        ((0, 4), Span.SWITCH),
        ((4, 6), Span.BEYOND),
    ],
)
def test_the_span_is_the_nearest_thing_that_all_gpus_share(atoms: tuple[int, ...], span: Span) -> None:
    chosen = [AtomId(atom) for atom in atoms]
    assert span_of(MACHINE, chosen) is span
    assert Spans(MACHINE).of(chosen) is span
