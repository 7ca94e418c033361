"""When atoms that were set aside are looked at again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcsched.driver.aside import FIRST_S, LONGEST_S, NUM_CHECKS, Aside, Kept
from hpcsched.launchspec import LaunchNode
from hpcsched.topology.machine import AtomId

ATOMS = (AtomId(4), AtomId(5))
OTHER = (AtomId(6),)
NODE = LaunchNode("n2", ("0", "1"), (0, 1), None, 0, ("0", "1", "2"))


def put(aside: Aside, now: float, atoms: tuple[AtomId, ...] = ATOMS) -> float | None:
    return aside.put(NODE, atoms, now)


def due(aside: Aside, now: float) -> Kept:
    (kept,) = aside.due(now)
    return kept


def test_they_are_looked_at_ever_more_seldom_and_after_so_many_times_no_more() -> None:
    aside = Aside()
    next_at = put(aside, 100.0)
    waits = []
    now = 100.0
    while next_at is not None:
        assert aside.due(next_at - 0.001) == []
        waits.append(next_at - now)
        now = next_at
        next_at = aside.checked(due(aside, now), fine=False, now=now)
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0]
    assert (waits[0], waits[-1], len(waits)) == (FIRST_S, LONGEST_S, NUM_CHECKS)
    assert aside.due(1e9) == []
    assert put(aside, now) is None, "should a resize have put them there again: it stays the last word"


def test_what_is_fine_is_forgotten_but_not_how_often_it_was_looked_at() -> None:
    aside = Aside()
    for number in range(NUM_CHECKS):
        next_at = put(aside, 0.0)
        assert next_at == min(LONGEST_S, FIRST_S * 2.0**number), (
            "each launch that finds it wrong has cost one"
        )
        assert aside.checked(due(aside, 1e4), fine=True, now=1e4) is None
        assert aside.due(1e9) == []
    assert put(aside, 0.0) is None


def test_a_check_of_what_has_been_set_aside_anew_since_does_not_count() -> None:
    aside = Aside()
    put(aside, 0.0)
    old = due(aside, 10.0)
    put(aside, 11.0)
    assert not aside.knows(old)
    assert aside.checked(old, fine=True, now=12.0) is None
    assert due(aside, 21.0).next_at == 16.0


def test_the_name_is_for_people() -> None:
    aside = Aside()
    put(aside, 0.0)
    assert due(aside, 10.0).name == "n2 GPU 0,1"


@given(
    st.lists(
        st.tuples(st.sampled_from([ATOMS, OTHER]), st.booleans(), st.booleans()), min_size=30, max_size=80
    )
)
def test_no_atom_is_looked_at_more_often_than_the_limit(story: list[tuple[tuple[AtomId, ...], bool, bool]]) -> None:  # fmt: skip
    """Whatever launches and checks find. Fault tried: `checked` that forgets the count when they are fine."""
    aside = Aside()
    num = {ATOMS: 0, OTHER: 0}
    now = 0.0
    for atoms, again, fine in story:
        now += 1000.0
        if again:
            put(aside, now, atoms)
        for kept in aside.due(now):
            if kept.atoms == atoms:
                num[atoms] += 1
                aside.checked(kept, fine=fine, now=now)
    assert max(num.values()) <= NUM_CHECKS
