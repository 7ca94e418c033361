"""Who has which atom, and where the atom-seconds went.

Each atom is in exactly one state: FREE, HELD by an incarnation, RESERVED for a trial that grows, QUARANTINED (its
node did not prove that the ranks are gone) or DOWN (its node is down, or it was set aside). An atom that becomes
unusable while it is in use keeps its state until it is given back, and is DOWN then. The sum over the states is the
number of atoms at every event; it is checked by counters, so the check costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from hpcsched.core.enums import AtomState
from hpcsched.core.ids import TrialId
from hpcsched.topology.machine import AtomId, Machine, Placement
from hpcsched.topology.pool import Pool


class AtomSeconds(msgspec.Struct, frozen=True):
    """Atoms times seconds since the experiment began."""

    training: float = 0.0
    """Held by RUNNING trials."""
    restart: float = 0.0
    """Held by trials that start or leave, or reserved for a resize."""
    idle: float = 0.0
    quarantined: float = 0.0
    down: float = 0.0


class Ledger:
    """The atoms of one machine."""

    __slots__ = (
        "_aside", "_down_nodes", "_holder", "_nodes", "_pool", "_state", "_sums", "_time", "machine", "num_changes",
        "num_down", "num_free", "num_held", "num_quarantined", "num_reserved", "num_total", "num_training",
    )  # fmt: skip

    def __init__(
        self,
        machine: Machine,
        *,
        time: float = 0.0,
        sums: AtomSeconds | None = None,
        make_pool: Callable[[Machine], Pool] = Pool,
    ) -> None:
        self.machine = machine
        self._pool = make_pool(machine)
        self.num_total = len(machine.atoms)
        self._state = [AtomState.FREE] * self.num_total
        self._holder: list[TrialId | None] = [None] * self.num_total
        self._nodes: dict[str, list[AtomId]] = {node.name: [] for node in machine.nodes}
        for atom in machine.atoms:
            self._nodes[atom.node].append(atom.atom_id)
        self._down_nodes: set[str] = set()
        self._aside: set[AtomId] = set()
        self.num_free = self.num_total
        self.num_held = 0
        self.num_reserved = 0
        self.num_quarantined = 0
        self.num_down = 0
        self.num_training = 0
        """Of the held atoms, those of RUNNING trials; kept by the engine."""
        self.num_changes = 0
        """How often atoms may have gone out of use or come back."""
        self._time = time
        sums = sums or AtomSeconds()
        self._sums = [sums.training, sums.restart, sums.idle, sums.quarantined, sums.down]

    # ---- what is

    @property
    def num_usable(self) -> int:
        """Neither down nor quarantined."""
        return self.num_total - self.num_down - self.num_quarantined

    def state(self, atom_id: AtomId) -> AtomState:
        return self._state[atom_id]

    def holder(self, atom_id: AtomId) -> TrialId | None:
        """The trial that holds the atom, for whom it is reserved, or whose ranks may still be on it."""
        return self._holder[atom_id]

    def atoms_of(self, node: str) -> tuple[AtomId, ...]:
        """Atoms of a node; empty when the machine has no such node."""
        return tuple(self._nodes.get(node, ()))

    def is_usable(self, atom_id: AtomId) -> bool:
        """Its node is up and it is not set aside; says nothing about who has it."""
        return atom_id not in self._aside and self.machine.atoms[atom_id].node not in self._down_nodes

    def node_is_down(self, atom_id: AtomId) -> bool:
        return self.machine.atoms[atom_id].node in self._down_nodes

    def unusable(self) -> list[AtomId]:
        """Atoms that are down or quarantined, or will be down when they are given back. O(atoms)."""
        return [
            atom.atom_id
            for atom in self.machine.atoms
            if self._state[atom.atom_id] is AtomState.QUARANTINED or not self.is_usable(atom.atom_id)
        ]

    def find(self, size: int, *, held: Collection[AtomId] = ()) -> Placement | None:
        """A placement of `size` atoms out of the free ones and those in `held`."""
        return self._pool.find(size, held=held)

    def find_after(
        self,
        size: int,
        *,
        held: Collection[AtomId],
        given: Collection[AtomId],
        taken: Collection[AtomId],
    ) -> Placement | None:
        """As `find`, once `given` (not free now) have become free and `taken` (free now) have not stayed so."""
        self._pool.give(given)
        self._pool.take(taken)
        try:
            return self._pool.find(size, held=held)
        finally:
            self._pool.give(taken)
            self._pool.take(given)

    # ---- moves

    def hold(self, trial_id: TrialId, atoms: Iterable[AtomId]) -> None:
        """FREE, or RESERVED for this trial, or HELD by it already -> HELD."""
        taken: list[AtomId] = []
        for atom_id in atoms:
            state = self._state[atom_id]
            if state is AtomState.HELD and self._holder[atom_id] == trial_id:
                continue
            if state is AtomState.FREE:
                taken.append(atom_id)
                self.num_free -= 1
            else:
                assert state is AtomState.RESERVED, f"atom {atom_id} is {state}"
                assert self._holder[atom_id] == trial_id, f"atom {atom_id} is reserved for another trial"
                self.num_reserved -= 1
            self._state[atom_id] = AtomState.HELD
            self._holder[atom_id] = trial_id
            self.num_held += 1
        self._pool.take(taken)

    def reserve(self, trial_id: TrialId, atoms: Iterable[AtomId]) -> None:
        """FREE -> RESERVED."""
        taken: list[AtomId] = []
        for atom_id in atoms:
            assert self._state[atom_id] is AtomState.FREE, f"atom {atom_id} is {self._state[atom_id]}"
            taken.append(atom_id)
            self.num_free -= 1
            self.num_reserved += 1
            self._state[atom_id] = AtomState.RESERVED
            self._holder[atom_id] = trial_id
        self._pool.take(taken)

    def release(self, atoms: Iterable[AtomId]) -> None:
        """HELD or RESERVED -> FREE, or DOWN where it cannot be used."""
        freed: list[AtomId] = []
        for atom_id in atoms:
            state = self._state[atom_id]
            if state is AtomState.HELD:
                self.num_held -= 1
            else:
                assert state is AtomState.RESERVED, f"atom {atom_id} is {state}"
                self.num_reserved -= 1
            self._settle(atom_id, freed)
        self._pool.give(freed)

    def quarantine(self, atoms: Iterable[AtomId]) -> None:
        """HELD -> QUARANTINED; the holder is remembered."""
        self.num_changes += 1
        for atom_id in atoms:
            assert self._state[atom_id] is AtomState.HELD, f"atom {atom_id} is {self._state[atom_id]}"
            self.num_held -= 1
            self.num_quarantined += 1
            self._state[atom_id] = AtomState.QUARANTINED

    def end_quarantine(self, atoms: Iterable[AtomId]) -> None:
        """QUARANTINED -> FREE, or DOWN; others stay as they are (word of them has come before)."""
        self.num_changes += 1
        freed: list[AtomId] = []
        for atom_id in atoms:
            if 0 <= atom_id < self.num_total and self._state[atom_id] is AtomState.QUARANTINED:
                self.num_quarantined -= 1
                self._settle(atom_id, freed)
        self._pool.give(freed)

    def node_down(self, node: str) -> None:
        self._down_nodes.add(node)
        self._look_again(self.atoms_of(node))

    def node_up(self, node: str) -> None:
        self._down_nodes.discard(node)
        self._look_again(self.atoms_of(node))

    def set_aside(self, atoms: Iterable[AtomId]) -> None:
        atoms = [atom_id for atom_id in atoms if 0 <= atom_id < self.num_total]
        self._aside.update(atoms)
        self._look_again(atoms)

    def take_back(self, atoms: Iterable[AtomId]) -> None:
        atoms = [atom_id for atom_id in atoms if 0 <= atom_id < self.num_total]
        self._aside.difference_update(atoms)
        self._look_again(atoms)

    def _settle(self, atom_id: AtomId, freed: list[AtomId]) -> None:
        """Nobody has the atom any more, and it is in no counter. The caller gives what is `freed` to the pool, at once."""
        self._holder[atom_id] = None
        if self.is_usable(atom_id):
            self._state[atom_id] = AtomState.FREE
            freed.append(atom_id)
            self.num_free += 1
        else:
            self._state[atom_id] = AtomState.DOWN
            self.num_down += 1

    def _look_again(self, atoms: Iterable[AtomId]) -> None:
        self.num_changes += 1
        lost: list[AtomId] = []
        won: list[AtomId] = []
        for atom_id in atoms:
            state = self._state[atom_id]
            usable = self.is_usable(atom_id)
            if state is AtomState.FREE and not usable:
                lost.append(atom_id)
                self.num_free -= 1
                self.num_down += 1
                self._state[atom_id] = AtomState.DOWN
            elif state is AtomState.DOWN and usable:
                won.append(atom_id)
                self.num_down -= 1
                self.num_free += 1
                self._state[atom_id] = AtomState.FREE
        self._pool.take(lost)
        self._pool.give(won)

    # ---- accounts

    def advance(self, time: float) -> None:
        """Time has passed with everything as it is."""
        passed = time - self._time
        if passed <= 0.0:
            return
        self._time = time
        sums = self._sums
        sums[0] += passed * self.num_training
        sums[1] += passed * (self.num_held - self.num_training + self.num_reserved)
        sums[2] += passed * self.num_free
        sums[3] += passed * self.num_quarantined
        sums[4] += passed * self.num_down

    def seconds(self, now: float) -> AtomSeconds:
        """The accounts at `now`, which is not before the last event."""
        passed = max(0.0, now - self._time)
        training, restart, idle, quarantined, down = self._sums
        return AtomSeconds(
            training + passed * self.num_training,
            restart + passed * (self.num_held - self.num_training + self.num_reserved),
            idle + passed * self.num_free,
            quarantined + passed * self.num_quarantined,
            down + passed * self.num_down,
        )

    def is_conserved(self) -> bool:
        """The counters add up. O(1)."""
        counted = self.num_free + self.num_held + self.num_reserved + self.num_quarantined + self.num_down
        return counted == self.num_total and 0 <= self.num_training <= self.num_held

    def check(self) -> None:
        """Counters, pool and the atoms themselves agree. O(atoms): for tests and after a resume."""
        found = {state: self._state.count(state) for state in AtomState}
        expected = {
            AtomState.FREE: self.num_free,
            AtomState.HELD: self.num_held,
            AtomState.RESERVED: self.num_reserved,
            AtomState.QUARANTINED: self.num_quarantined,
            AtomState.DOWN: self.num_down,
        }
        assert found == expected, f"atoms by state {found}, counted {expected}"
        assert self._pool.num_free == self.num_free, f"pool {self._pool.num_free}, counted {self.num_free}"
