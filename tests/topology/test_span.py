"""Spans of placements, and s(atoms, span)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.topology.machine import AtomId, Node, atoms_of_nodes
from hpcsched.topology.span import SPANS, Span, SpanScaling, span_of

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
    assert span_of(MACHINE, [AtomId(atom) for atom in atoms]) is span


SCALING = SpanScaling({Span.ISLAND: {2: 1.9, 4: 3.6}, Span.SWITCH: {4: 3.0, 8: 5.0}})


@pytest.mark.parametrize(
    ("atoms", "span", "expected"),
    [
        (1, Span.ISLAND, 1.0),
        (2, Span.ISLAND, 1.9),
        (3, Span.ISLAND, 2.75),
        (8, Span.ISLAND, 3.6),  # flat beyond
        (4, Span.NODE, 3.6),  # not measured: as the next nearer
        (6, Span.SWITCH, 4.0),
        (6, Span.BEYOND, 4.0),
        (100, Span.BEYOND, 5.0),
    ],
)
def test_between_points_it_is_interpolated_and_beyond_them_flat(
    atoms: int, span: Span, expected: float
) -> None:
    assert SCALING.at(atoms, span) == pytest.approx(expected)


def test_a_nearer_span_that_was_not_measured_takes_the_next_farther() -> None:
    assert SpanScaling({Span.BEYOND: {8: 4.0}}).at(8, Span.ISLAND) == 4.0
    assert SpanScaling({}).at(8, Span.NODE) == 1.0


@given(
    st.dictionaries(st.integers(1, 64), st.floats(0.1, 64), min_size=1, max_size=6),
    st.sampled_from(SPANS),
    st.integers(1, 200),
)
def test_no_value_lies_outside_what_was_measured(points: dict[int, float], span: Span, atoms: int) -> None:
    known = {1: 1.0, **points}
    value = SpanScaling({span: points}).at(atoms, span)
    assert min(known.values()) - 1e-9 <= value <= max(known.values()) + 1e-9
    if atoms in known:
        assert value == known[atoms]
