"""How much faster a trial trains where it is, where it would be placed now, or on this machine if it were alone.

`scaling` knows s(atoms, span); the ledger knows which atoms are free, `spans` how far apart they are. Together they answer what policies
ask. Where the scaling knows no distance nothing is looked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcsched.core.ledger import Ledger
from hpcsched.core.prospects import Prospects
from hpcsched.core.scaling import Measurements, scaling_of
from hpcsched.core.settings import ScalingSettings
from hpcsched.core.trial import Trial
from hpcsched.topology.machine import AtomId
from hpcsched.topology.span import Span, Spans


class Speeds:
    """On one machine; `move_to` another when the experiment is resumed elsewhere, which keeps what was measured."""

    __slots__ = ("_ledger", "_prospects", "_scaling", "_spans", "measured")

    def __init__(self, settings: ScalingSettings, ledger: Ledger) -> None:
        self.measured = Measurements()
        """As reported; kept whatever is assumed."""
        self._scaling = scaling_of(settings, self.measured)
        self.move_to(ledger)

    def move_to(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._spans = Spans(ledger.machine)
        self._prospects: tuple[int, Prospects] | None = None
        """With the ledger's number of changes when it was made."""

    @property
    def knows_distance(self) -> bool:
        return self._scaling.knows_distance

    def span_of(self, atoms: Sequence[AtomId]) -> Span:
        return self._spans.of(atoms)

    def at(self, size: int, span: Span | None) -> float:
        """s(size, span); without a span the best that so many atoms can give."""
        return self._scaling(size, span)

    def alone(self, size: int) -> float:
        """Of a trial that has the machine to itself."""
        if not self._scaling.knows_distance:
            return self._scaling(size)
        return self._scaling(size, self._planned().nearest(size))

    def planned(self, size: int, num: int) -> float:
        """The mean of `num` trials of that size side by side."""
        if size == 1 or not self._scaling.knows_distance:
            return self._scaling(size)
        spans = self._planned().spans(size, num)
        if not spans:
            return self._scaling(size)
        total = sum(self._scaling(size, span) * placed for span, placed in spans.items())
        return total / sum(spans.values())

    def now(self, trial: Trial, size: int) -> float:
        """Where it is or would be placed now. Costs one look for a placement when distance counts and `size` is not its own."""
        span = self.span_now(trial, size)
        return self.alone(size) if span is None else self._scaling(size, span)

    def span_now(self, trial: Trial | None, size: int) -> Span | None:
        """Of the placement that the trial (None: a new one) has, or would get now; None: it does not matter, or there are too few atoms."""
        if not self._scaling.knows_distance:
            return None
        held = () if trial is None else trial.atoms
        if held and size == len(held):
            return trial.span if trial is not None else None
        placement = self._ledger.find(size, held=held)
        return None if placement is None else self._spans.of(placement.atoms)

    def after(self, giver: Trial, keeps: int, taker: Trial, size: int) -> tuple[float, float]:
        """Of both, when `giver` has shrunk to `keeps` atoms and `taker` has grown to `size` with what became free."""
        if not self._scaling.knows_distance:
            return self._scaling(keeps), self._scaling(size)
        left = self._ledger.find(keeps, held=giver.atoms)
        assert left is not None, "a trial can shrink on its own atoms"
        grown = self._ledger.find_after(
            size,
            held=taker.atoms,
            given=[atom_id for atom_id in giver.atoms if atom_id not in left.atoms],
            taken=[atom_id for atom_id in left.atoms if atom_id not in giver.atoms],
        )
        return (
            self._scaling(keeps, self._spans.of(left.atoms)),
            self.alone(size) if grown is None else self._scaling(size, self._spans.of(grown.atoms)),
        )

    def measure(self, trial: Trial, size: int, took_s: float) -> None:
        """An iteration of the trial on its `size` atoms: how fast it is, compared with itself on one atom."""
        if size == 1:
            trial.one_atom_iter_s = took_s
            trial.compared_with = None
        elif not took_s:
            return
        elif trial.one_atom_iter_s:
            if trial.compared_with != (size, trial.span):
                self.measured.observe(size, trial.span, trial.one_atom_iter_s / took_s)
        elif (speedup := self.measured.at(size, trial.span)) is not None:
            # It never ran on one atom, but others did who ran here, too.
            trial.one_atom_iter_s = took_s * speedup
            trial.compared_with = (size, trial.span)

    def _planned(self) -> Prospects:
        known = self._prospects
        if known is None or known[0] != self._ledger.num_changes:
            prospects = Prospects(self._ledger.machine, self._ledger.unusable(), self._spans)
            known = self._prospects = (self._ledger.num_changes, prospects)
        return known[1]
