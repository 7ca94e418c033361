"""Atoms on which a launch found something else than was promised: when are they looked at again? Pure: no clock, no processes.

Whoever was there may be gone (a process that took long to end, a neighbour's that should not have been there), so the check that a
launch makes before its ranks start is made again by a short step: after `FIRST_S`, then ever more seldom. A node that is fine again
gives its atoms back. That costs the trial that finds them wrong once more a launch, so after `NUM_CHECKS` checks, however they ended, they stay
aside until the driver is started again.
"""

from __future__ import annotations

import msgspec

from hpcsched.launchspec import LaunchNode
from hpcsched.topology.machine import AtomId

FIRST_S, LONGEST_S = 5.0, 600.0
NUM_CHECKS = 8
"""5 s, 10 s, ... 600 s: twenty minutes."""


class Kept(msgspec.Struct, frozen=True):
    """Atoms of one node that are set aside together."""

    node: LaunchNode
    """Their GPUs and cores, as a launch on them would be told."""
    atoms: tuple[AtomId, ...]
    next_at: float

    @property
    def name(self) -> str:
        return f"{self.node.node} GPU {','.join(self.node.gpus)}"


class Aside:
    """One driver life's atoms. Changed by the loop alone; `due` may be asked by any thread."""

    def __init__(self) -> None:
        self._kept: dict[tuple[AtomId, ...], Kept] = {}
        self._num_checks: dict[AtomId, int] = {}
        """Kept when atoms come back."""

    def put(self, node: LaunchNode, atoms: tuple[AtomId, ...], now: float) -> float | None:
        """They are set aside now. When they are looked at again; None: they are not."""
        num = self._num(atoms)
        if num >= NUM_CHECKS:
            return None
        next_at = now + min(LONGEST_S, FIRST_S * float(2**num))
        self._kept = self._kept | {atoms: Kept(node, atoms, next_at)}
        return next_at

    def due(self, now: float) -> list[Kept]:
        return [kept for kept in self._kept.values() if kept.next_at <= now]

    def checked(self, kept: Kept, *, fine: bool, now: float) -> float | None:
        """The check has been made. When the next one is to come; None: there is none."""
        if self._kept.get(kept.atoms) is not kept:
            return None  # they have been set aside anew since
        for atom_id in kept.atoms:
            self._num_checks[atom_id] = self._num_checks.get(atom_id, 0) + 1
        self._kept = {atoms: other for atoms, other in self._kept.items() if other is not kept}
        return None if fine else self.put(kept.node, kept.atoms, now)

    def knows(self, kept: Kept) -> bool:
        """Whether the check was of what is set aside now."""
        return self._kept.get(kept.atoms) is kept

    def _num(self, atoms: tuple[AtomId, ...]) -> int:
        return max((self._num_checks.get(atom_id, 0) for atom_id in atoms), default=0)
