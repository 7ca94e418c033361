"""Which killed incarnations have atoms in quarantine: nobody has proved that nothing of them runs there any more."""

from __future__ import annotations

from collections.abc import Collection

from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.topology.machine import AtomId


class Quarantine:
    """By incarnation. The ledger knows the atoms' state, this knows whose word gives them back."""

    __slots__ = ("_atoms",)

    def __init__(self) -> None:
        self._atoms: dict[tuple[TrialId, Incarnation], tuple[AtomId, ...]] = {}

    def put(self, trial_id: TrialId, incarnation: Incarnation, atoms: tuple[AtomId, ...]) -> None:
        self._atoms[trial_id, incarnation] = atoms

    def of(self, trial_id: TrialId, incarnation: Incarnation) -> tuple[AtomId, ...]:
        return self._atoms.get((trial_id, incarnation), ())

    def forget(self, atoms: Collection[AtomId]) -> None:
        """They are back."""
        for key, kept in list(self._atoms.items()):
            rest = tuple(atom_id for atom_id in kept if atom_id not in atoms)
            if rest:
                self._atoms[key] = rest
            else:
                del self._atoms[key]

    def clear(self) -> None:
        self._atoms.clear()
