"""Moving trials to make room: `hypersched` with moves, as a study (see `analysis.topology`).

When a trial is to grow and no aligned block is free, others may be moved out of one: those that are ranked below it or would be smaller
than it. Also a trial may move by itself, at the same size, to where it trains faster. Done when

    s(new place) (T_left - S) - weight sum over the moved (s(old) T_left - s(their new place) (T_left - S))

is more than `margin` times what the trial does until the deadline without it (its usual resize, or nothing). What becomes free of the
block is reserved for it at once; it goes there with its next report. A moved trial gets its new atoms reserved before it leaves, so a move
can lose nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from hpcsched.core.enums import AtomState, Outcome, PreemptReason, TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.policies.hypersched import HyperSched
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import HyperSchedSettings, Settings
from hpcsched.core.trial import Trial
from hpcsched.core.view import Decision, Resize, TrialView, View
from hpcsched.topology.machine import AtomId, Machine, Placement
from hpcsched.topology.pool import Pool
from hpcsched.topology.span import Span

MOST_BLOCKS = 6
"""Blocks that are looked at for one size: those from which the fewest atoms have to be moved."""
AGAIN = 5
"""Reports until a trial for whom nothing was found is looked at again."""


class Rule(NamedTuple):
    """How readily trials are moved."""

    weight: float = 1.0
    """Of the work that the moved trials lose, against that of the one that grows."""
    margin: float = 1.1
    first: int | None = None
    """Only the so many best running trials have others moved; None: all."""
    others: bool = True
    """False: a trial moves itself only."""


class Move(NamedTuple):
    """A running trial goes on elsewhere, on as many atoms."""

    trial_id: TrialId
    placement: Placement


class Plan(NamedTuple):
    block: tuple[AtomId, ...]
    moves: tuple[Move, ...]
    work: float


def blocks_of(machine: Machine) -> dict[Span, list[tuple[AtomId, ...]]]:
    """The atoms of each island, node and leaf switch."""
    by_node: dict[str, list[AtomId]] = {}
    for atom in machine.atoms:
        by_node.setdefault(atom.node, []).append(atom.atom_id)
    found: dict[Span, list[tuple[AtomId, ...]]] = {Span.ISLAND: [], Span.NODE: [], Span.SWITCH: []}
    leaves: dict[tuple[str, ...], list[AtomId]] = {}
    for node in machine.nodes:
        mine = by_node.get(node.name, [])
        found[Span.NODE].append(tuple(mine))
        leaves.setdefault(node.switches, []).extend(mine)
        for island in node.islands or (node.gpus,):
            found[Span.ISLAND].append(tuple(a for a in mine if machine.atoms[a].gpus[0] in island))
    found[Span.SWITCH] = [tuple(atoms) for atoms in leaves.values()]
    return found


class MovingPolicy(HyperSched):
    """HyperSched that may ask for moves. It looks into the engine, as no policy of the product does."""

    def __init__(self, settings: Settings, options: HyperSchedSettings, rule: Rule) -> None:
        super().__init__(settings, options)
        self._rule = rule
        self._blocks: dict[Span, list[tuple[AtomId, ...]]] = {}
        self._wait: dict[TrialId, int] = {}
        self._moves: list[Move] = []

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        decisions = super().result_reported(view, trial)
        moves, self._moves = self._moves, []
        assert isinstance(view, MovingScheduler)
        for move in moves:
            view.move(move)
        return decisions

    def _resize(self, view: View, trial: TrialView) -> Resize | None:
        assert isinstance(view, MovingScheduler)
        trial_id = trial.trial_id
        block = view.pledged.get(trial_id)
        if block is not None:
            return Resize(trial_id, len(block), "its block is free") if view.is_ready(trial_id) else None
        usual = super()._resize(view, trial)
        left = view.time_left_s()
        if left is None or left <= 0 or (usual is not None and usual.size < trial.num_atoms):
            return usual
        wait = self._wait.get(trial_id, 0)
        if wait:
            self._wait[trial_id] = wait - 1
            return usual
        plan = self._plan(view, trial, usual, left)
        if plan is None:
            self._wait[trial_id] = AGAIN
            return usual
        view.pledge(trial_id, plan.block)
        self._moves = list(plan.moves)
        if plan.moves:
            view.num_moved += len(plan.moves)
            return None
        view.num_migrated += 1
        return Resize(trial_id, len(plan.block), "a nearer place is free")

    def _plan(
        self, view: MovingScheduler, trial: TrialView, usual: Resize | None, left: float
    ) -> Plan | None:
        restart_s = max(0.0, self._entrance.overhead_s)
        size = trial.num_atoms
        base = view.speedup(trial, size) * left
        if usual is not None:
            base = max(base, view.speedup(trial, usual.size) * (left - restart_s))
        wanted, position, _ = self._desired_size(view, trial)
        if self._rule.first is not None and position >= self._rule.first:
            return None
        desired = max(size, wanted)
        if not self._blocks:
            self._blocks = blocks_of(view.machine)
        widths = {span: max(map(len, blocks)) for span, blocks in self._blocks.items()}
        best: Plan | None = None
        candidates = {desired, size, *(view.sizes.floor(min(desired, width)) for width in widths.values())}
        for candidate in sorted(candidates):
            span = next((each for each, width in widths.items() if candidate <= width), None)
            if span is None:
                continue
            gain = view.at(candidate, span) * (left - restart_s)
            if gain <= self._rule.margin * base or (best is not None and gain <= best.work):
                continue
            found = self._cheapest(view, trial, candidate, span, gain, left, restart_s)
            if (
                found is not None
                and found.work > self._rule.margin * base
                and (best is None or found.work > best.work)
            ):
                best = found
        return best

    def _cheapest(
        self,
        view: MovingScheduler,
        trial: TrialView,
        size: int,
        span: Span,
        gain: float,
        left: float,
        restart_s: float,
    ) -> Plan | None:
        """The block of that span from which moving trials away costs least."""
        ranked: list[tuple[int, int]] = []
        for number, block in enumerate(self._blocks[span]):
            open_ = sum(view.is_open_to(trial.trial_id, atom) for atom in block)
            if len(block) >= size and (self._rule.others or open_ >= size):
                ranked.append((max(0, size - open_), number))
        ranked.sort()
        best: Plan | None = None
        for missing, number in ranked[:MOST_BLOCKS]:
            block = self._blocks[span][number]
            movers = self._movers(view, trial, block, size, missing)
            if movers is None:
                continue
            found = view.targets(movers, block)
            if found is None:
                continue
            lost = sum(
                view.speedup(each, each.num_atoms) * left
                - view.at(each.num_atoms, view.span_of(move.placement)) * (left - restart_s)
                for each, move in zip(movers, found, strict=True)
            )
            work = gain - self._rule.weight * max(0.0, lost)
            if best is None or work > best.work:
                gone = {atom for each in movers for atom in each.atoms}
                usable = [a for a in block if view.is_open_to(trial.trial_id, a) or a in gone]
                own = [a for a in usable if a in trial.atoms]  # type: ignore[attr-defined]
                rest = [a for a in usable if a not in own]
                best = Plan(tuple(sorted([*own, *rest][:size])), found, work)
        return best

    def _movers(
        self, view: MovingScheduler, trial: TrialView, block: Sequence[AtomId], size: int, missing: int
    ) -> list[Trial] | None:
        """Worse or smaller trials on the block that hold `missing` atoms of it, cheapest first; None: they hold fewer."""
        if not missing:
            return []
        own = self._ranked_by.get(trial.trial_id, float("inf"))
        here: dict[TrialId, int] = {}
        for atom in block:
            holder = view.holder(atom)
            if holder is not None and holder != trial.trial_id:
                here[holder] = here.get(holder, 0) + 1
        may: list[tuple[float, TrialId]] = []
        for holder, num in here.items():
            other = view.trials[holder]
            worse = self._ranked_by.get(holder, float("inf")) < own
            if (
                other.state is TrialState.RUNNING
                and not other.finishing
                and holder not in view.pledged
                and (worse or other.num_atoms < size)
            ):
                may.append((view.speedup(other, other.num_atoms) / num, holder))
        may.sort()
        chosen: list[TrialId] = []
        got = 0
        for _, holder in may:
            if got >= missing:
                break
            chosen.append(holder)
            got += here[holder]
        if got < missing:
            return None
        for holder in sorted(chosen, key=lambda each: here[each]):
            if got - here[holder] >= missing:
                chosen.remove(holder)
                got -= here[holder]
        return [view.trials[each] for each in chosen]


class MovingScheduler(Scheduler):
    """The core, which can also move a trial to atoms that are named."""

    def __init__(self, settings: Settings, rule: Rule, make_pool: Callable[[Machine], Pool] = Pool) -> None:
        assert isinstance(settings.policy, HyperSchedSettings)
        super().__init__(settings, policy=MovingPolicy(settings, settings.policy, rule), make_pool=make_pool)
        self.pledged: dict[TrialId, tuple[AtomId, ...]] = {}
        """Trial -> the block that it waits for; what is free of it is reserved for it."""
        self.num_moved = 0
        self.num_migrated = 0

    @property
    def machine(self) -> Machine:
        return self._ledger.machine

    def at(self, size: int, span: Span) -> float:
        return self._scaling(size, span)

    def span_of(self, placement: Placement) -> Span:
        return self._spans.of(placement.atoms)

    def is_open_to(self, trial_id: TrialId, atom: AtomId) -> bool:
        """Free, or the trial's own."""
        return self.atom_state(atom) is AtomState.FREE or self.holder(atom) == trial_id

    def targets(self, movers: Sequence[Trial], block: Collection[AtomId]) -> tuple[Move, ...] | None:
        """Where they could go outside of the block; None: not all of them."""
        pool = self._ledger._pool
        taken = [atom for atom in block if pool.is_free(atom)]
        pool.take(taken)
        found: list[Move] = []
        try:
            for mover in sorted(movers, key=lambda each: -each.num_atoms):
                outside = [atom for atom in mover.atoms if atom not in block]
                placement = pool.find(mover.num_atoms, held=outside)
                if placement is None:
                    return None
                new = [atom for atom in placement.atoms if atom not in mover.atoms]
                pool.take(new)
                taken += new
                found.append(Move(mover.trial_id, placement))
        finally:
            pool.give(taken)
        order = {move.trial_id: move for move in found}
        return tuple(order[mover.trial_id] for mover in movers)

    def pledge(self, trial_id: TrialId, block: tuple[AtomId, ...]) -> None:
        self.pledged[trial_id] = block
        self._reserve_pledges()

    def is_ready(self, trial_id: TrialId) -> bool:
        return all(self.holder(atom) == trial_id for atom in self.pledged[trial_id])

    def move(self, move: Move) -> None:
        trial = self.trials[move.trial_id]
        assert trial.state is TrialState.RUNNING
        new = tuple(atom for atom in move.placement.atoms if atom not in trial.atoms)
        self._ledger.reserve(trial.trial_id, new)
        trial.reserved = new
        trial.next_placement = move.placement
        trial.resize_because = "it makes room"
        self._preempt(trial, PreemptReason.RESIZE, "it makes room")

    def _reserve_pledges(self) -> None:
        for trial_id, block in list(self.pledged.items()):
            trial = self.trials[trial_id]
            free = tuple(atom for atom in block if self.atom_state(atom) is AtomState.FREE)
            self._ledger.reserve(trial_id, free)
            trial.reserved += free

    def _resize(self, trial: Trial, size: int, because: str) -> None:
        block = self.pledged.get(trial.trial_id)
        if block is None:
            super()._resize(trial, size, because)
            return
        del self.pledged[trial.trial_id]
        if not self._deadline_allows(trial, size):
            self._unreserve(trial)
            return
        trial.next_placement = Placement(block, because)
        trial.resize_because = because
        trial.last_num_atoms = size
        self._preempt(trial, PreemptReason.RESIZE, because)

    def _preempt(self, trial: Trial, reason: PreemptReason, because: str) -> None:
        self.pledged.pop(trial.trial_id, None)
        super()._preempt(trial, reason, because)

    def _settle(self, trial: Trial, outcome: Outcome, why: str, *, unproven: Sequence[AtomId], wanted_gone: bool = False) -> None:  # fmt: skip
        self.pledged.pop(trial.trial_id, None)
        super()._settle(trial, outcome, why, unproven=unproven, wanted_gone=wanted_gone)
        self._reserve_pledges()
