"""Which atoms are free, and which of them a trial of a given size should get.

`Pool.find` decides and changes nothing; `take` and `give` keep the count. The rule: on as few nodes as
possible, then under as few switches; among equals the tightest fit, so that large blocks stay free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hpcsched.topology.machine import AtomId, Machine, Placement


class Pool:
    """The free atoms of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._free: dict[str, set[AtomId]] = {node.name: set() for node in machine.nodes}
        for atom in machine.atoms:
            self._free[atom.node].add(atom.atom_id)
        self._num_free = len(machine.atoms)

    @property
    def num_free(self) -> int:
        return self._num_free

    def find(self, size: int, *, held: Collection[AtomId] = ()) -> Placement | None:
        """A placement of `size` atoms from the free ones and those in `held` (the trial's own), or None."""
        held_by_node: dict[str, set[AtomId]] = {}
        for atom_id in held:
            held_by_node.setdefault(self._machine.atoms[atom_id].node, set()).add(atom_id)
        usable = {
            node.name: self._free[node.name] | held_by_node.get(node.name, set())
            for node in self._machine.nodes
        }
        if sum(map(len, usable.values())) < size:
            return None

        def pick(node: str, num: int) -> list[AtomId]:
            mine = held_by_node.get(node, set())
            return sorted(usable[node], key=lambda atom_id: (atom_id not in mine, atom_id))[:num]

        fitting = [node for node in usable if len(usable[node]) >= size]
        if fitting:
            node = min(fitting, key=lambda name: (-len(held_by_node.get(name, ())), len(usable[name])))
            return Placement(tuple(sorted(pick(node, size))), f"fits on node {node}")
        switch_of = {node.name: node.switches for node in self._machine.nodes}
        groups: dict[tuple[str, ...], list[str]] = {}
        for node in usable:
            groups.setdefault(switch_of[node], []).append(node)
        enough = [g for g in groups.values() if sum(len(usable[node]) for node in g) >= size]
        nodes = min(enough, key=lambda g: sum(len(usable[node]) for node in g)) if enough else list(usable)
        chosen: list[AtomId] = []
        used: list[str] = []
        for node in sorted(nodes, key=lambda name: (-len(usable[name]), name)):
            need = size - len(chosen)
            if not need or not usable[node]:
                continue
            chosen += pick(node, need)
            used.append(node)
        return Placement(
            tuple(sorted(chosen)), f"no node has {size} atoms free: spread over {', '.join(used)}"
        )

    def take(self, atoms: Iterable[AtomId]) -> None:
        """Atoms are no longer free. They must have been."""
        for atom_id in atoms:
            free = self._free[self._machine.atoms[atom_id].node]
            assert atom_id in free, f"atom {atom_id} taken twice"
            free.remove(atom_id)
            self._num_free -= 1

    def give(self, atoms: Iterable[AtomId]) -> None:
        """Atoms are free again. They must not have been."""
        for atom_id in atoms:
            free = self._free[self._machine.atoms[atom_id].node]
            assert atom_id not in free, f"atom {atom_id} given back twice"
            free.add(atom_id)
            self._num_free += 1
