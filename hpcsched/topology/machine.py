"""What the driver knows of the machine: nodes, atoms, placements. Values only.

An *atom* is ``gpus_per_atom`` GPUs of one node with their share of its cores and memory: the smallest
thing that is handed out. GPU ids are strings (an index in the list of GPUs that the job holds on the node,
in PCI order); core ids are the node's own numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType

import msgspec

AtomId = NewType("AtomId", int)
"""Position of an atom in ``Machine.atoms``; 0 .. num_atoms - 1."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one GPU (or MIG instance) besides its name in placements."""

    gpu: str
    uuid: str | None = None
    model: str | None = None
    memory_mb: int | None = None
    cores: tuple[int, ...] = ()
    """Cores of the job that are near it; empty where unknown."""
    numa: int | None = None
    nics: tuple[str, ...] = ()
    """The nearest NICs; empty where unknown."""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node of the allocation, as far as the job may use it."""

    name: str
    gpus: tuple[str, ...]
    cores: tuple[int, ...]
    memory_mb: int | None = None
    """Memory of the job on this node; None where the site does not count it."""
    switches: tuple[str, ...] = ()
    """Switches from the spine down to the leaf, such as ("spine", "leaf1"); empty where unknown."""
    islands: tuple[tuple[str, ...], ...] = ()
    """GPUs best linked to each other (NVLink islands); empty where unknown: the node is one island."""
    address: str | None = None
    """Address that other nodes reach it by; None: its name."""
    devices: tuple[Device, ...] = ()
    """In the order of `gpus`; empty where nothing more is known."""
    core_groups: tuple[tuple[int, ...], ...] = ()
    """Hardware threads that share a physical core, which no two atoms should share; empty: each core is its own."""
    links: dict[str, str] = {}
    """"0-1" -> "NV12", "PIX", ...: the path between two GPUs; empty where unknown."""


class Atom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The smallest thing handed out: GPUs of one node, with their share of cores and memory."""

    atom_id: AtomId
    node: str
    gpus: tuple[str, ...]
    cores: tuple[int, ...]
    memory_mb: int | None = None
    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes of its cores, where its ranks take their memory; empty: anywhere."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All nodes and atoms of one allocation. ``atoms[i].atom_id == i``; atoms of a node are adjacent."""

    nodes: tuple[Node, ...]
    atoms: tuple[Atom, ...]
    gpus_per_atom: int = 1
    source: str = ""
    """Which rule gave the number of GPUs, for `hpcsched check`."""
    max_trial_atoms: int | None = None
    """The most atoms that a trial can work on, where the devices set a limit; None: they set none."""


class NodeShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a placement on one node. Ranks are numbered share after share, GPU after GPU."""

    node: str
    gpus: tuple[str, ...]
    gpu_cores: tuple[tuple[int, ...], ...]
    """Cores of each of `gpus`, out of its atom's."""
    memory_mb: int | None = None
    memory_nodes: tuple[int, ...] = ()

    @property
    def cores(self) -> tuple[int, ...]:
        """All of them, in order."""
        return tuple(sorted({core for cores in self.gpu_cores for core in cores}))


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which atoms a trial holds, and why these. One rank a GPU: world_size = num_gpus."""

    atoms: tuple[AtomId, ...]
    because: str = ""


def shares_of(machine: Machine, placement: Placement) -> tuple[NodeShare, ...]:
    """The placement by node, nodes in the machine's order, atoms of a node in atom order."""
    by_node: dict[str, list[Atom]] = {}
    for atom_id in sorted(placement.atoms):
        atom = machine.atoms[atom_id]
        by_node.setdefault(atom.node, []).append(atom)
    nodes = {node.name: node for node in machine.nodes}
    return tuple(
        NodeShare(
            node=node,
            gpus=tuple(gpu for atom in atoms for gpu in atom.gpus),
            gpu_cores=tuple(cores for atom in atoms for cores in cores_of_gpus(nodes[node], atom)),
            memory_mb=None
            if any(atom.memory_mb is None for atom in atoms)
            else sum(atom.memory_mb or 0 for atom in atoms),
            memory_nodes=tuple(sorted({numa for atom in atoms for numa in atom.memory_nodes}))
            if all(atom.memory_nodes for atom in atoms)
            else (),
        )
        for node, atoms in by_node.items()
    )


def atoms_of_nodes(nodes: tuple[Node, ...], gpus_per_atom: int, *, source: str = "") -> Machine:
    """Cut each node's GPUs into atoms, islands first; cores and memory are shared out evenly.

    An atom gets cores near its GPUs where that is known and leaves nobody with less than half of an even share.
    Islands name their GPUs such that better linked ones stand together, so NVLink pairs come first.
    GPUs that do not fill an atom are left unused. Where a node has fewer cores than atoms, atoms share cores.
    """
    assert gpus_per_atom >= 1
    atoms: list[Atom] = []
    for node in nodes:
        islands = node.islands or (node.gpus,)
        groups = [
            tuple(island[i : i + gpus_per_atom])
            for island in islands
            for i in range(0, len(island) - gpus_per_atom + 1, gpus_per_atom)
        ]
        used = {gpu for group in groups for gpu in group}
        rest = [gpu for gpu in node.gpus if gpu not in used]
        groups += [
            tuple(rest[i : i + gpus_per_atom]) for i in range(0, len(rest) - gpus_per_atom + 1, gpus_per_atom)
        ]
        cores = cores_of_groups(node, groups)
        for gpus, mine in zip(groups, cores, strict=True):
            atoms.append(
                Atom(
                    atom_id=AtomId(len(atoms)),
                    node=node.name,
                    gpus=gpus,
                    cores=mine,
                    memory_mb=None if node.memory_mb is None else node.memory_mb // len(groups),
                )
            )
    return Machine(nodes=nodes, atoms=tuple(atoms), gpus_per_atom=gpus_per_atom, source=source)


def cores_of_gpus(node: Node, atom: Atom) -> tuple[tuple[int, ...], ...]:
    """The atom's cores, for each of its GPUs: as `cores_of_groups` shares out a node's."""
    if len(atom.gpus) == 1:
        return (atom.cores,)
    own = msgspec.structs.replace(node, cores=atom.cores)
    return tuple(cores_of_groups(own, [(gpu,) for gpu in atom.gpus]))


def cores_of_groups(node: Node, groups: list[tuple[str, ...]]) -> list[tuple[int, ...]]:
    """The cores of each group of GPUs of a node: disjoint, all of one physical core together, near ones where they suffice."""
    units = _physical_cores(node.cores, node.core_groups)
    even = share_evenly(node.cores, node.core_groups, len(groups))
    near_of = {device.gpu: frozenset(device.cores) for device in node.devices}
    near = [frozenset().union(*(near_of.get(gpu, frozenset()) for gpu in group)) for group in groups]
    if not groups or not all(near) or len(units) < len(groups):
        return even
    result: list[tuple[int, ...]] = [() for _ in groups]
    taken: set[tuple[int, ...]] = set()
    for pool in dict.fromkeys(near):
        members = [number for number, cores in enumerate(near) if cores == pool]
        mine = [unit for unit in units if unit not in taken and pool.issuperset(unit)]
        taken.update(mine)
        for position, number in enumerate(members):
            if len(mine) >= len(members):
                result[number] = _share(mine, position, len(members))
    least = min(map(len, even))
    return result if all(2 * len(cores) >= least and cores for cores in result) else even


def share_evenly(
    cores: Sequence[int], core_groups: Sequence[tuple[int, ...]], num_shares: int
) -> list[tuple[int, ...]]:
    """Even shares: disjoint where there are enough cores, all of one physical core together where there are enough of those."""
    units = _physical_cores(cores, core_groups)
    return [_share(units, number, num_shares) for number in range(num_shares)]


def _physical_cores(cores: Sequence[int], core_groups: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The cores by physical core, in order of the lowest."""
    usable = set(cores)
    units: list[tuple[int, ...]] = []
    for group in (*core_groups, *((core,) for core in cores)):
        unit = tuple(core for core in group if core in usable)
        if unit:
            units.append(unit)
            usable.difference_update(unit)
    return sorted(units)


def _share(units: list[tuple[int, ...]], number: int, num_shares: int) -> tuple[int, ...]:
    if len(units) < num_shares:
        # Whole physical cores do not go round: single threads may, else cores are shared.
        units = [(core,) for unit in units for core in unit]
    if len(units) < num_shares:
        return units[number % len(units)] if units else ()
    first = number * len(units) // num_shares
    last = (number + 1) * len(units) // num_shares
    return tuple(sorted(core for unit in units[first:last] for core in unit))
