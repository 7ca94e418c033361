"""Placements: golden cases with their reasons, and the rule against brute force on small machines."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from hpcsched.topology.blocks import Layout, choose, island_masks, profile
from hpcsched.topology.machine import AtomId, Machine, Node, atoms_of_nodes
from hpcsched.topology.pool import Pool


def node(name: str, num_gpus: int, *switches: str, islands: tuple[int, ...] = ()) -> Node:
    gpus = tuple(str(i) for i in range(num_gpus))
    cuts = [sum(islands[:i]) for i in range(len(islands) + 1)]
    return Node(
        name=name,
        gpus=gpus,
        cores=tuple(range(num_gpus)),
        switches=switches,
        islands=tuple(gpus[a:b] for a, b in pairwise(cuts)),
    )


def ids(text: str) -> tuple[AtomId, ...]:
    """ "0-1,4" -> 0, 1, 4"""
    out: list[AtomId] = []
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        out += [AtomId(i) for i in range(int(first), int(last or first) + 1)]
    return tuple(out)


def machine_of(*nodes: Node) -> Machine:
    return atoms_of_nodes(nodes, 1)


TEST_CLUSTER = machine_of(
    node("n1", 4, "spine", "leaf1"),
    node("n2", 4, "spine", "leaf1"),
    node("n3", 4, "spine", "leaf2"),
    node("n4", 4, "spine", "leaf2"),
)
"""The real cluster for tests: atoms 0-3 on n1, 4-7 on n2, 8-11 on n3, 12-15 on n4."""

PCIE_BOX = machine_of(node("box", 8, islands=(4, 4)))
"""Two sockets with four GPUs each."""

UNEQUAL = machine_of(node("a", 2, "s"), node("b", 4, "s"), node("c", 8, "s"))
"""Atoms 0-1 on a, 2-5 on b, 6-13 on c."""

SCATTERED = machine_of(
    *(node(f"x{i}", 1, "r", "l1") for i in range(3)), node("y", 2, "r", "l2"), node("z", 2, "r", "l3")
)
"""The fullest switch is no help: its atoms lie on three nodes. Atoms 0-2 under l1, 3-4 on y, 5-6 on z."""


@pytest.mark.parametrize(
    ("machine", "taken", "size", "expected", "because"),
    [
        # one node, aligned from its front
        (TEST_CLUSTER, "", 1, "0", "on one node, n1"),
        (TEST_CLUSTER, "", 4, "0-3", "on one node, n1"),
        # a node that is begun is filled before a whole one is broken
        (TEST_CLUSTER, "0", 1, "1", "on one node, n1"),
        (TEST_CLUSTER, "0", 2, "2-3", "on one node, n1"),
        # the lone atom 5 is of use to nobody who wants two: it goes first, though n1 has fewer free
        (TEST_CLUSTER, "0-1,4", 1, "5", "on one node, n2"),
        # a whole node: the one whose switch is emptier of free atoms, so that the other switch stays whole
        (TEST_CLUSTER, "0", 4, "4-7", "on one node, n2"),
        # two nodes under one switch, evenly
        (TEST_CLUSTER, "", 6, "0-2,4-6", "no node has 6 atoms free: on 2 nodes under leaf1, the fewest"),
        (TEST_CLUSTER, "0", 8, "8-15", "no node has 8 atoms free: on 2 nodes under leaf2, the fewest"),
        # 5 over two nodes: 3 and 2; the node with 3 free gives the 3 and nothing whole is broken twice
        (TEST_CLUSTER, "0,8-15", 5, "1-3,4-5", "no node has 5 atoms free: on 2 nodes under leaf1, the fewest"),
        # beyond one switch: evenly over the fewest nodes, which are the whole one of each switch
        (TEST_CLUSTER, "0,8", 8, "4-7,12-15", "no switch has 8 atoms free: on 2 nodes under 2 switches below spine, the fewest"),
        (TEST_CLUSTER, "", 16, "0-15", "no switch has 16 atoms free: on 4 nodes under 2 switches below spine, the fewest"),
        (SCATTERED, "", 4, "3-6", "no switch has 4 atoms free: on 2 nodes under 2 switches below r, the fewest"),
        # islands
        (PCIE_BOX, "", 4, "0-3", "inside one island of box"),
        (PCIE_BOX, "0", 4, "4-7", "inside one island of box"),
        (PCIE_BOX, "0", 2, "2-3", "inside one island of box"),
        (PCIE_BOX, "0,4", 4, "1-3,5", "on one node, box, over 2 islands: no island has 4 atoms free"),
        (PCIE_BOX, "", 6, "0-5", "on one node, box, over 2 islands: no island has 6 atoms free"),
        # nodes of unequal size: the tightest that fits
        (UNEQUAL, "", 2, "0-1", "on one node, a"),
        (UNEQUAL, "", 4, "2-5", "on one node, b"),
        (UNEQUAL, "", 6, "6-11", "on one node, c"),
        (UNEQUAL, "", 10, "2-5,6-11", "no node has 10 atoms free: on 2 nodes under s, the fewest"),
    ],
)  # fmt: skip
def test_golden_placements(machine: Machine, taken: str, size: int, expected: str, because: str) -> None:
    pool = Pool(machine)
    pool.take(ids(taken))
    found = pool.find(size)
    assert found is not None
    assert found.atoms == ids(expected)
    assert found.because == because


def test_a_resize_keeps_what_it_has_when_that_is_as_good() -> None:
    pool = Pool(TEST_CLUSTER)
    pool.take(ids("8-9"))  # the trial's own, on n3
    found = pool.find(4, held=ids("8-9"))
    assert found is not None
    assert found.atoms == ids("8-11")
    assert found.because == "on one node, n3; keeps 2 of its 2 atoms"
    assert pool.num_free == 14, "find changes nothing"


def test_a_resize_moves_when_staying_would_scatter_it() -> None:
    pool = Pool(TEST_CLUSTER)
    pool.take(ids("8-9,10"))  # 8-9 its own; a stranger on 10
    found = pool.find(4, held=ids("8-9"))
    assert found is not None
    assert found.atoms == ids("12-15"), "n4 is whole; n3 has three only"


def test_a_shrinking_trial_stays_where_it_is() -> None:
    pool = Pool(PCIE_BOX)
    pool.take(ids("0-5"))
    found = pool.find(2, held=ids("0-5"))
    assert found is not None
    assert set(found.atoms) <= set(ids("0-5"))
    assert found.atoms == ids("0-1"), (
        "2-3 and 4-7 come back whole: as much as 0-3 and 6-7 would, and it is the first"
    )


# ---- against brute force


@st.composite
def machines(draw: st.DrawFn, most_atoms: int = 9) -> Machine:
    nodes: list[Node] = []
    left = most_atoms
    for number in range(draw(st.integers(1, 5))):
        islands = draw(st.lists(st.integers(1, 3), max_size=2))
        num = sum(islands) or draw(st.integers(1, 4))
        if num > left:
            break
        left -= num
        switches = draw(
            st.sampled_from([("r", "p", "l1"), ("r", "p", "l2"), ("r", "q", "l3"), ("r", "q", "l4")])
        )
        nodes.append(node(f"n{number}", num, *switches, islands=tuple(islands)))
    if not nodes:
        nodes = [node("n0", 2)]
    return machine_of(*nodes)


Key = tuple[object, ...]


def reach(machine: Machine, atoms: Iterable[AtomId]) -> Key:
    """What the rule compares, smaller is better; written from the rule alone."""
    by_node: dict[str, list[AtomId]] = {}
    for atom in atoms:
        by_node.setdefault(machine.atoms[atom].node, []).append(atom)
    facts = {each.name: each for each in machine.nodes}
    if len(by_node) == 1:
        name, mine = next(iter(by_node.items()))
        islands = facts[name].islands or (facts[name].gpus,)
        touched = sum(any(machine.atoms[a].gpus[0] in island for a in mine) for island in islands)
        return (0, touched)
    paths = {facts[name].switches for name in by_node}
    counts = [len(mine) for mine in by_node.values()]
    if len(paths) == 1:
        return (1, len(by_node), max(counts) - min(counts) > 1)
    common = 0
    while len({path[: common + 1] for path in paths}) == 1:
        common += 1
    return (2, -common, len(paths), len(by_node))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_placement_reaches_less_far_than_the_one_that_is_found(data: st.DataObject) -> None:
    machine = data.draw(machines())
    everyone = [atom.atom_id for atom in machine.atoms]
    taken = data.draw(st.lists(st.sampled_from(everyone), unique=True, max_size=len(everyone) - 1))
    held = data.draw(st.lists(st.sampled_from(taken), unique=True)) if taken else []
    pool = Pool(machine)
    pool.take(taken)
    usable = [atom for atom in everyone if atom not in taken or atom in held]
    size = data.draw(st.integers(1, len(everyone)))
    found = pool.find(size, held=held)
    if size > len(usable):
        assert found is None
        return
    assert found is not None
    assert len(set(found.atoms)) == len(found.atoms) == size, "sizes are exact"
    assert set(found.atoms) <= set(usable), "no overlap with anybody else"
    assert list(found.atoms) == sorted(found.atoms)
    assert pool.num_free == len(everyone) - len(taken), "find changes nothing"
    every = [tuple(map(AtomId, each)) for each in combinations(usable, size)]
    best = min(reach(machine, atoms) for atoms in every)
    assert reach(machine, found.atoms) == best
    if best[0] == 0 and best[1] == 1:
        kept = max(len(set(held) & set(atoms)) for atoms in every if reach(machine, atoms) == best)
        assert len(set(held) & set(found.atoms)) == kept, "a resize keeps what it has when that is as good"


def blocks_left(machine: Machine, free: set[AtomId]) -> tuple[int, ...]:
    """Free aligned blocks of 8, 4, 2, 1 atoms by island, counted from scratch."""
    counts = [0, 0, 0, 0]
    for each in machine.nodes:
        for island in each.islands or (each.gpus,):
            mine = [a.atom_id for a in machine.atoms if a.node == each.name and a.gpus[0] in island]
            done: set[AtomId] = set()
            for place, width in enumerate((8, 4, 2, 1)):
                for start in range(0, len(mine) - width + 1, width):
                    block = set(mine[start : start + width])
                    if block <= free and not block & done:
                        counts[place] += 1
                        done |= block
    return tuple(counts)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_among_equals_the_largest_aligned_blocks_stay_free(data: st.DataObject) -> None:
    machine = data.draw(machines())
    everyone = {atom.atom_id for atom in machine.atoms}
    taken = set(
        data.draw(st.lists(st.sampled_from(sorted(everyone)), unique=True, max_size=len(everyone) - 1))
    )
    free = everyone - taken
    size = data.draw(st.integers(1, len(free)))
    pool = Pool(machine)
    pool.take(taken)
    found = pool.find(size)
    assert found is not None
    if reach(machine, found.atoms) != (0, 1):
        return
    equals = [set(map(AtomId, each)) for each in combinations(sorted(free), size)]
    best = max(blocks_left(machine, free - atoms) for atoms in equals if reach(machine, atoms) == (0, 1))
    assert blocks_left(machine, free - set(found.atoms)) == best


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=2),
    st.integers(0, 2**10),
    st.integers(0, 2**10),
    st.integers(1, 8),
)
def test_the_choice_on_a_node_is_the_best_of_all(sizes: list[int], free: int, held: int, num: int) -> None:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    layout = Layout(tuple(zip(starts, sizes, strict=True)))
    everything = (1 << layout.num_atoms) - 1
    held &= everything
    free &= everything & ~held
    usable = free | held
    bits = [1 << i for i in range(layout.num_atoms) if usable >> i & 1]
    found = choose(layout, free, held, num)
    if len(bits) < num:
        assert found is None
        return
    assert found is not None and found.mask & ~usable == 0 and found.mask.bit_count() == num
    before = profile(layout, usable)
    keys = []
    for chosen in combinations(bits, num):
        mask = sum(chosen)
        touched = sum(1 for island in island_masks(layout) if island & mask)
        after = profile(layout, usable & ~mask)
        loss = tuple(b - a for b, a in zip(before, after, strict=True))
        keys.append((touched, -(mask & held).bit_count(), loss))
    best = min(keys)
    if best[0] == 1:
        assert (found.num_islands, -found.num_kept, found.loss) == best
    else:
        assert found.num_islands == best[0]


class TakeAndGive(RuleBasedStateMachine):
    """However trials come, grow and go: every atom is free or held by one, and the pool's index is that of a new pool."""

    placements = Bundle("placements")

    def __init__(self) -> None:
        super().__init__()
        self.machine = machine_of(
            node("a", 8, "r", "l1", islands=(4, 4)),
            node("b", 8, "r", "l1"),
            node("c", 4, "r", "l2"),
            node("d", 2, "r", "l2"),
            node("e", 8, "r", "l3"),
        )
        self.pool = Pool(self.machine)
        self.held: list[set[AtomId]] = []

    @rule(target=placements, size=st.integers(1, 20))
    def start(self, size: int) -> object:
        found = self.pool.find(size)
        if found is None:
            assert self.pool.num_free < size
            return multiple()
        self.pool.take(found.atoms)
        self.held.append(set(found.atoms))
        return found.atoms

    @rule(target=placements, atoms=consumes(placements), size=st.integers(1, 20))
    def resize(self, atoms: tuple[AtomId, ...], size: int) -> object:
        found = self.pool.find(size, held=atoms)
        if found is None:
            return atoms
        self.pool.give(atoms)
        self.pool.take(found.atoms)
        self.held.remove(set(atoms))
        self.held.append(set(found.atoms))
        return found.atoms

    @rule(atoms=consumes(placements))
    def end(self, atoms: tuple[AtomId, ...]) -> None:
        self.pool.give(atoms)
        self.held.remove(set(atoms))

    @invariant()
    def nothing_is_lost_or_held_twice(self) -> None:
        taken = [atom for atoms in self.held for atom in atoms]
        assert len(taken) == len(set(taken))
        assert self.pool.num_free == len(self.machine.atoms) - len(taken)
        assert {a.atom_id for a in self.machine.atoms if self.pool.is_free(a.atom_id)}.isdisjoint(taken)

    @invariant()
    def the_index_is_that_of_a_new_pool(self) -> None:
        fresh = Pool(self.machine)
        fresh.take(sorted(atom for atoms in self.held for atom in atoms))
        for size in (1, 2, 5, 8, 12):
            assert self.pool.find(size) == fresh.find(size)


TestTakeAndGive = TakeAndGive.TestCase
TestTakeAndGive.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_taking_what_is_taken_is_a_fault_of_ours() -> None:
    pool = Pool(TEST_CLUSTER)
    pool.take(ids("3"))
    with pytest.raises(AssertionError, match="n1 taken twice"):
        pool.take(ids("3"))
    pool.give(ids("3"))
    with pytest.raises(AssertionError, match="n1 given back twice"):
        pool.give(ids("3"))
