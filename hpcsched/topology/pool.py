"""Which atoms are free, and which of them a trial of a given size should get.

The rule, in this order:

1. inside one island (the GPUs of a node that are best linked), else on one node, else under one switch, else under the
   fewest leaf switches below the lowest common one;
2. over several nodes: on the fewest nodes (below the fewest switches), and evenly where that is possible
   (ranks per node differ by at most one);
3. keeping as many atoms as possible of those that the trial holds already;
4. such that the free atoms stay in the largest aligned blocks (`blocks`), and, where that is equal too, where the
   fewest other atoms are free around it: full nodes stay full, empty switches stay empty;
5. the first in the machine's order.

`Pool.find` decides and changes nothing; `take` and `give` keep the count. To be fast with ten thousand GPUs, nodes
are kept by switch and by state: nodes of one layout with the same free mask are interchangeable, so a decision looks
at the distinct states and at the switches, not at the nodes, and a change touches only the nodes it is about.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from itertools import combinations, groupby
from math import comb

from hpcsched.topology.blocks import Layout, choose
from hpcsched.topology.machine import AtomId, Machine, Node, Placement

_EXACT_COMBINATIONS = 64
"""Sets of switches tried one by one when a trial spans several; above, the emptiest are taken."""

State = tuple[Layout, int]
"""Layout of a node and mask of its free atoms."""


class _Leaf:
    """The nodes under one leaf switch (all nodes, where none is known)."""

    __slots__ = ("by_count", "by_state", "name", "num_free", "number", "path")

    def __init__(self, number: int, path: tuple[str, ...]) -> None:
        self.number = number
        self.path = path
        self.name = path[-1] if path else "the only switch"
        self.num_free = 0
        self.by_state: dict[State, list[int]] = {}
        """Nodes (their numbers, ascending) by state; full nodes are left out."""
        self.by_count: dict[int, int] = {}
        """Number of nodes by number of free atoms, without 0."""

    def add(self, node: int, state: State) -> None:
        free = state[1].bit_count()
        if free:
            insort(self.by_state.setdefault(state, []), node)
            self.by_count[free] = self.by_count.get(free, 0) + 1
            self.num_free += free

    def remove(self, node: int, state: State) -> None:
        free = state[1].bit_count()
        if free:
            nodes = self.by_state[state]
            del nodes[bisect_left(nodes, node)]
            if not nodes:
                del self.by_state[state]
            self.by_count[free] -= 1
            if not self.by_count[free]:
                del self.by_count[free]
            self.num_free -= free

    def num_nodes_for(self, size: int) -> int | None:
        """Fewest nodes that hold `size` free atoms; None when there are too few."""
        if self.num_free < size:
            return None
        num = 0
        for free in sorted(self.by_count, reverse=True):
            here = self.by_count[free]
            if free * here >= size:
                return num + -(-size // free)
            num += here
            size -= free * here
        raise AssertionError("num_free and by_count disagree")

    def goes_evenly(self, size: int, num_nodes: int) -> bool:
        """Whether `size` atoms can be had as size/num_nodes on each of `num_nodes` nodes, give or take one."""
        few, more = divmod(size, num_nodes)
        with_few = sum(num for free, num in self.by_count.items() if free >= few)
        with_more = sum(num for free, num in self.by_count.items() if free > few)
        return with_few >= num_nodes and with_more >= more


class Pool:
    """The free atoms of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._num_free = 0
        self._nodes: tuple[Node, ...] = machine.nodes
        number_of = {node.name: number for number, node in enumerate(machine.nodes)}
        self._node_of: list[int] = [number_of[atom.node] for atom in machine.atoms]
        """Atom -> its node's number."""
        self._bit_of: list[int] = [0] * len(machine.atoms)
        self._first_atom: list[int] = [0] * len(machine.nodes)
        self._layouts: list[Layout] = _layouts(machine, number_of)
        seen = [0] * len(machine.nodes)
        for atom in machine.atoms:
            node = self._node_of[atom.atom_id]
            if not seen[node]:
                self._first_atom[node] = atom.atom_id
            assert atom.atom_id == self._first_atom[node] + seen[node], "atoms of a node are adjacent"
            self._bit_of[atom.atom_id] = 1 << seen[node]
            seen[node] += 1
        self._free: list[int] = [0] * len(machine.nodes)
        leaves: dict[tuple[str, ...], _Leaf] = {}
        for each in machine.nodes:
            leaves.setdefault(each.switches, _Leaf(len(leaves), each.switches))
        self._leaves: list[_Leaf] = list(leaves.values())
        self._leaf_of: list[_Leaf] = [leaves[each.switches] for each in machine.nodes]
        self._above: list[tuple[int, tuple[str, ...], tuple[_Leaf, ...]]] = _switches_above(self._leaves)
        self._leaves_with: dict[State, set[int]] = {}
        """State -> numbers of the leaves that have nodes in it."""
        self.give(atom.atom_id for atom in machine.atoms)

    @property
    def num_free(self) -> int:
        return self._num_free

    def is_free(self, atom_id: AtomId) -> bool:
        return bool(self._free[self._node_of[atom_id]] & self._bit_of[atom_id])

    # ---- change

    def take(self, atoms: Iterable[AtomId]) -> None:
        """Atoms are no longer free. They must have been."""
        for node, mask in self._by_node(atoms).items():
            assert self._free[node] & mask == mask, f"atoms of {self._nodes[node].name} taken twice"
            self._set(node, self._free[node] & ~mask)

    def give(self, atoms: Iterable[AtomId]) -> None:
        """Atoms are free again. They must not have been."""
        for node, mask in self._by_node(atoms).items():
            assert not self._free[node] & mask, f"atoms of {self._nodes[node].name} given back twice"
            self._set(node, self._free[node] | mask)

    def _by_node(self, atoms: Iterable[AtomId]) -> dict[int, int]:
        masks: dict[int, int] = {}
        for atom_id in atoms:
            node = self._node_of[atom_id]
            bit = self._bit_of[atom_id]
            before = masks.get(node, 0)
            assert not before & bit, f"atom {atom_id} named twice"
            masks[node] = before | bit
        return masks

    def _set(self, node: int, free: int) -> None:
        leaf = self._leaf_of[node]
        layout = self._layouts[node]
        before = self._free[node]
        if before:
            state = (layout, before)
            leaf.remove(node, state)
            if state not in leaf.by_state:
                self._leaves_with[state].discard(leaf.number)
                if not self._leaves_with[state]:
                    del self._leaves_with[state]
        if free:
            state = (layout, free)
            leaf.add(node, state)
            self._leaves_with.setdefault(state, set()).add(leaf.number)
        self._free[node] = free
        self._num_free += free.bit_count() - before.bit_count()

    # ---- find

    def find(self, size: int, *, held: Collection[AtomId] = ()) -> Placement | None:
        """A placement of `size` atoms from the free ones and those in `held` (the trial's own), or None."""
        if size < 1 or self._num_free + len(held) < size:
            return None
        if not held:
            return self._find(size, {})
        # What the trial holds counts as free for it: give it back for the time of the search.
        mine = self._by_node(held)
        before = {node: self._free[node] for node in mine}
        self.give(held)
        try:
            return self._find(size, mine)
        finally:
            for node, free in before.items():
                self._set(node, free)

    def _find(self, size: int, mine: dict[int, int]) -> Placement:
        return self._on_one_node(size, mine) or self._under_one_switch(size, mine) or self._beyond(size, mine)

    def _on_one_node(self, size: int, mine: dict[int, int]) -> Placement | None:
        best: tuple[tuple[bool, int, tuple[int, ...], int, int, int], int, int, int] | None = None
        for node, held in mine.items():
            free = self._free[node]  # with what the trial holds, for now
            choice = choose(self._layouts[node], free & ~held, held, size)
            if choice is None:
                continue
            leaf = self._leaf_of[node]
            key = (choice.num_islands > 1, -choice.num_kept, choice.loss, leaf.num_free, leaf.number, node)
            if best is None or key < best[0]:
                best = (key, node, choice.mask, choice.num_islands)
        fits: list[tuple[tuple[bool, int, tuple[int, ...]], State, int, int]] = []
        for state in self._leaves_with:
            choice = choose(state[0], state[1], 0, size)
            if choice is not None:
                fits.append(
                    ((choice.num_islands > 1, 0, choice.loss), state, choice.mask, choice.num_islands)
                )
        if fits:
            least = min(fit[0] for fit in fits)
            if best is None or least < best[0][:3]:
                for front, state, mask, num_islands in fits:
                    if front != least:
                        continue
                    number = min(self._leaves_with[state], key=lambda n: (self._leaves[n].num_free, n))
                    leaf = self._leaves[number]
                    node = leaf.by_state[state][0]
                    key = (*front, leaf.num_free, leaf.number, node)
                    if best is None or key < best[0]:
                        best = (key, node, mask, num_islands)
        if best is None:
            return None
        _, node, mask, num_islands = best
        name = self._nodes[node].name
        if num_islands > 1:
            why = f"on one node, {name}, over {num_islands} islands: no island has {size} atoms free"
        elif len(self._layouts[node].islands) > 1:
            why = f"inside one island of {name}"
        else:
            why = f"on one node, {name}"
        return self._placed({node: mask}, mine, why)

    def _under_one_switch(self, size: int, mine: dict[int, int]) -> Placement | None:
        held_in: dict[int, int] = {}
        for node, mask in mine.items():
            number = self._leaf_of[node].number
            held_in[number] = held_in.get(number, 0) + mask.bit_count()
        best: tuple[tuple[int, ...], _Leaf] | None = None
        for leaf in self._leaves:
            num_nodes = leaf.num_nodes_for(size)
            if num_nodes is None:
                continue
            even = leaf.goes_evenly(size, num_nodes)
            key = (num_nodes, not even, -min(size, held_in.get(leaf.number, 0)), leaf.num_free, leaf.number)
            if best is None or key < best[0]:
                best = (key, leaf)
        if best is None:
            return None
        num_nodes, leaf = best[0][0], best[1]
        masks = self._over_nodes(size, num_nodes, self._nodes_of([leaf]), mine)
        under = f"under {leaf.name}" if leaf.path else "of this machine"
        return self._placed(
            masks, mine, f"no node has {size} atoms free: on {num_nodes} nodes {under}, the fewest"
        )

    def _beyond(self, size: int, mine: dict[int, int]) -> Placement:
        """Over several leaves: below the lowest switch that has enough, on the fewest leaves, then on the fewest nodes."""
        best: tuple[tuple[int, ...], tuple[str, ...], list[_Leaf]] | None = None
        for depth, path, below in self._above:
            if best is not None and -depth > best[0][0]:
                break  # sorted by depth, deepest first
            full = [leaf for leaf in below if leaf.num_free]
            if sum(leaf.num_free for leaf in full) < size:
                continue
            leaves = _fewest_leaves(full, size)
            num_nodes = _fewest_nodes(leaves, size)
            key = (-depth, len(leaves), num_nodes, sum(leaf.num_free for leaf in full))
            if best is None or key < best[0]:
                best = (key, path, leaves)
        assert best is not None, "the root holds every free atom"
        (_, num_leaves, num_nodes, _), path, leaves = best
        masks = self._over_nodes(size, num_nodes, self._nodes_of(leaves), mine)
        under = f"below {path[-1]}" if path else "with no switch in common"
        return self._placed(
            masks,
            mine,
            f"no switch has {size} atoms free: on {num_nodes} nodes under {num_leaves} switches {under}, the fewest",
        )

    def _nodes_of(self, leaves: Iterable[_Leaf]) -> list[int]:
        return [node for leaf in leaves for nodes in leaf.by_state.values() for node in nodes]

    def _over_nodes(
        self, size: int, num_nodes: int, nodes: list[int], mine: dict[int, int]
    ) -> dict[int, int]:
        """`size` atoms on `num_nodes` of `nodes`, as evenly as they allow. node -> mask."""
        free = [self._free[node].bit_count() for node in nodes]
        shares = _even_shares(size, num_nodes, sorted(free, reverse=True))
        alike: dict[tuple[State, int], list[int]] = {}
        """State and what the trial holds there -> nodes, in reverse order: the first is popped first."""
        for node in sorted(nodes, reverse=True):
            state = (self._layouts[node], self._free[node])
            alike.setdefault((state, mine.get(node, 0)), []).append(node)
        masks: dict[int, int] = {}
        # The largest share first: the fewest nodes can carry it.
        for share, equal in groupby(shares):
            ranked: list[tuple[int, int, tuple[int, ...], int, int, int, list[int]]] = []
            for ((layout, usable), held), members in alike.items():
                choice = choose(layout, usable & ~held, held, share) if members else None
                if choice is not None:
                    ranked.append(
                        (
                            -choice.num_kept,
                            choice.num_islands,
                            choice.loss,
                            usable.bit_count(),
                            members[-1],
                            choice.mask,
                            members,
                        )
                    )
            ranked.sort(key=lambda item: item[:5])
            wanted = len(list(equal))
            for *_, mask, members in ranked:
                while wanted and members:
                    masks[members.pop()] = mask
                    wanted -= 1
            assert not wanted, "shares were cut to what the nodes have"
        return masks

    def _placed(self, masks: dict[int, int], mine: dict[int, int], why: str) -> Placement:
        atoms: list[AtomId] = []
        kept = 0
        for node in sorted(masks):
            first, mask = self._first_atom[node], masks[node]
            kept += (mask & mine.get(node, 0)).bit_count()
            while mask:
                low = mask & -mask
                atoms.append(AtomId(first + low.bit_length() - 1))
                mask ^= low
        if mine:
            held = sum(mask.bit_count() for mask in mine.values())
            why = f"{why}; keeps {kept} of its {held} atoms"
        return Placement(tuple(atoms), why)


def _layouts(machine: Machine, number_of: dict[str, int]) -> list[Layout]:
    """Islands of each node in atoms. An atom that lies in no island, or in several, ends up in one of its own kind."""
    islands: list[list[tuple[int, int]]] = [[] for _ in machine.nodes]
    last: list[int | None] = [None] * len(machine.nodes)
    counts = [0] * len(machine.nodes)
    where = [
        {gpu: number for number, island in enumerate(node.islands) for gpu in island}
        for node in machine.nodes
    ]
    for atom in machine.atoms:
        node = number_of[atom.node]
        inside = {where[node].get(gpu, -1) for gpu in atom.gpus}
        island = inside.pop() if len(inside) == 1 else -2
        if not machine.nodes[node].islands:
            island = 0
        if islands[node] and last[node] == island:
            first, size = islands[node][-1]
            islands[node][-1] = (first, size + 1)
        else:
            islands[node].append((counts[node], 1))
        last[node] = island
        counts[node] += 1
    same: dict[Layout, Layout] = {}
    layouts = [Layout(tuple(groups)) for groups in islands]
    return [same.setdefault(layout, layout) for layout in layouts]


def _switches_above(leaves: list[_Leaf]) -> list[tuple[int, tuple[str, ...], tuple[_Leaf, ...]]]:
    """(depth, path, leaves below) of every switch over several leaves, deepest first; the root is ()."""
    below: dict[tuple[str, ...], list[_Leaf]] = {}
    for leaf in leaves:
        for depth in range(max(1, len(leaf.path))):
            below.setdefault(leaf.path[:depth], []).append(leaf)
    return sorted(
        ((len(path), path, tuple(members)) for path, members in below.items()),
        key=lambda item: (-item[0], item[1]),
    )


def _fewest_leaves(leaves: list[_Leaf], size: int) -> list[_Leaf]:
    """The fewest leaves that hold `size` free atoms; of those sets, one on the fewest nodes, then the tightest."""
    ranked = sorted(leaves, key=lambda leaf: (-leaf.num_free, leaf.number))
    total = 0
    num = 0
    while total < size:
        total += ranked[num].num_free
        num += 1
    if comb(len(ranked), num) <= _EXACT_COMBINATIONS:
        sets = [
            list(chosen)
            for chosen in combinations(ranked, num)
            if sum(leaf.num_free for leaf in chosen) >= size
        ]
        return min(
            sets,
            key=lambda chosen: (
                _fewest_nodes(chosen, size),
                sum(leaf.num_free for leaf in chosen),
                [leaf.number for leaf in chosen],
            ),
        )
    first = ranked[: num - 1]
    left = size - sum(leaf.num_free for leaf in first)
    last = min(
        (leaf for leaf in ranked[num - 1 :] if leaf.num_free >= left),
        key=lambda leaf: (leaf.num_nodes_for(left), leaf.num_free, leaf.number),
    )
    return [*first, last]


def _fewest_nodes(leaves: Iterable[_Leaf], size: int) -> int:
    counts: dict[int, int] = {}
    for leaf in leaves:
        for free, num in leaf.by_count.items():
            counts[free] = counts.get(free, 0) + num
    num_nodes = 0
    for free in sorted(counts, reverse=True):
        if free * counts[free] >= size:
            return num_nodes + -(-size // free)
        num_nodes += counts[free]
        size -= free * counts[free]
    raise AssertionError("the leaves hold fewer than size")


def _even_shares(size: int, num_nodes: int, free: list[int]) -> list[int]:
    """Atoms per node, largest first: equal (give or take one) where the nodes allow it, else as equal as they do.

    `free` holds the free atoms of the nodes, descending; the first `num_nodes` hold at least `size`.
    """
    caps = free[:num_nodes]
    # Raise the water level until the nodes hold `size`: the smallest fill up first.
    shares: list[int] = []
    left = size
    for position, cap in enumerate(reversed(caps)):
        share = min(cap, left // (num_nodes - position))
        shares.append(share)
        left -= share
    assert left == 0, "the nodes hold fewer than size"
    return sorted(shares, reverse=True)
