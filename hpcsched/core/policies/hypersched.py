"""`hypersched`: the rules of the 2020 program (algorithms.md section 1, the code column of 1.16).

Four parts, each in its own file: a rung rule that lets first arrivals go on and pauses whoever falls below the cut
later (`brackets.SpeculativeBracket`), an entrance that closes when a newcomer could not catch up any more
(`entrance`), a uniform share of the atoms for everyone who runs (`allocation`), and the test whether a resize pays
for its restart (`resize`). Freed atoms go to promotions and new trials first; a trial grows only at its own next
result, at the earliest at its sixth since it was (re)started.

Where it keeps to integers and allowed sizes it differs from the program on purpose (1.6 and 1.10). The options of
`HyperSchedSettings` switch parts off, as the paper's ablations do, or mend what 1.15 lists.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TypedDict

from hpcsched.core.allocation import at_random, softmax, top, uniform_size
from hpcsched.core.brackets import Bracket, PromotionBracket, SpeculativeBracket
from hpcsched.core.entrance import Entrance, Gate, fixed_gate
from hpcsched.core.enums import Mode, TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.policies.queue import StartQueue
from hpcsched.core.resize import gain_of
from hpcsched.core.settings import HyperSchedSettings, Settings
from hpcsched.core.view import Decision, Drop, Pause, Resize, Start, Stop, TrialView, View
from hpcsched.core.words import atoms

MOST_SIZES = 8
"""Sizes that are compared when a trial may grow and distance counts."""
OPEN = Gate(True, "new trials start until the deadline")


class RungArguments(TypedDict):
    mode: Mode
    grace_period: int
    max_iterations: int
    reduction_factor: int


class HyperSched:
    """State of the policy: rungs, entrance, cool-downs, and who waits."""

    def __init__(self, settings: Settings, options: HyperSchedSettings) -> None:
        self._options = options
        rungs: RungArguments = {
            "mode": settings.mode,
            "grace_period": settings.grace_period,
            "max_iterations": settings.max_iterations,
            "reduction_factor": settings.reduction_factor,
        }
        self._bracket: Bracket = (
            SpeculativeBracket(**rungs, protect_leader=options.protect_leader)
            if options.speculation
            else PromotionBracket(**rungs)
        )
        self._entrance = Entrance(
            eta=settings.reduction_factor,
            max_iterations=settings.max_iterations,
            ignore_overhead=options.ignore_overhead,
            expected_overhead_s=profiled[min(profiled)] if (profiled := settings.scaling.restart_s) else None,
        )
        self._queue = StartQueue()
        self._rng = random.Random(settings.seed)
        self._cool_down: dict[TrialId, int] = {}
        """Results until the trial may be resized, counted down below zero; only trials that hold atoms."""
        self._ranked_by: dict[TrialId, float] = {}
        """Score by which a trial is ranked when atoms are shared out: of the result before the one being handled."""
        self._paused: list[tuple[float, TrialId]] = []
        """A heap by creation, or best first (`last_resort`); entries of trials that do not wait any more are skipped when met."""
        self._queued: set[TrialId] = set()
        self._has_closed = False
        self._oldest: TrialView | None = None
        """The running trial that has trained longest (`entrance = "reversible"`, `keep_paused`)."""

    # ---- trials come and go

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._queue.add(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        self._cool_down[trial.trial_id] = self._options.cool_down
        self._note_age(trial)

    def trial_left(self, view: View, trial: TrialView) -> None:
        trial_id = trial.trial_id
        self._cool_down.pop(trial_id, None)
        if trial is self._oldest:
            self._oldest = None
            for other in view.live():
                self._note_age(other)
        if trial.state is TrialState.PAUSED:
            self._bracket.paused(trial_id)
            if trial_id not in self._queued:
                self._queued.add(trial_id)
                heappush(self._paused, (self._turn(trial), trial_id))
            return
        self._bracket.resumed(trial_id)
        if trial.state is TrialState.PENDING:
            self._queue.add_interrupted(trial)
        elif trial.state is TrialState.COMPLETED:
            self._entrance.observe_training(trial.training_s)

    def _turn(self, trial: TrialView) -> float:
        """Its place among the paused ones for the last resort; smaller is earlier. A paused trial's score stays."""
        if self._options.last_resort == "first":
            return float(trial.trial_id)
        return float("inf") if trial.score is None else -trial.score

    def _note_age(self, trial: TrialView) -> None:
        if self._oldest is None or trial.training_s > self._oldest.training_s:
            self._oldest = trial

    # ---- a result

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        trial_id = trial.trial_id
        objection = self._bracket.judge(trial_id, trial.training_iteration, trial.score, trial.problem)
        if trial.score is None and objection is None:
            return ()
        if trial.setup_time_s is not None:
            self._entrance.observe_setup(trial.setup_time_s, warm=trial.warm)
        if trial.num_atoms == 1 and trial.last_iter_s is not None:
            self._entrance.observe_one_atom_iteration(trial.last_iter_s)
        self._entrance.observe_training(trial.training_s)
        self._note_age(trial)
        if objection is not None:
            self._cool_down.pop(trial_id, None)
            self._remember_score(trial)
            if objection.for_good:
                return (Stop(trial_id, objection.because),)
            return (Pause(trial_id, objection.because),)
        cool_down = self._cool_down.get(trial_id, self._options.cool_down) - 1
        self._cool_down[trial_id] = cool_down
        resize = self._resize(view, trial) if cool_down < 0 else None
        self._remember_score(trial)
        return () if resize is None else (resize,)

    def _remember_score(self, trial: TrialView) -> None:
        if trial.score is not None:
            self._ranked_by[trial.trial_id] = trial.score

    # ---- resizes (1.8 to 1.10)

    def _resize(self, view: View, trial: TrialView) -> Resize | None:
        size = trial.num_atoms
        free = view.num_free - view.num_requested
        if self._options.allocation == "none" or (free <= 0 and size == 1):
            return None
        desired, position, num = self._desired_size(view, trial)
        if desired == size:
            return None
        time_left = view.time_left_s()
        if time_left is not None and time_left < 0:
            return None
        share = f"number {position + 1} of {num} running trials shares {atoms(view.num_atoms)}"
        if desired < size:
            if self._options.shrink_pays and not self._shrink_pays(view, trial, desired, time_left):
                return None
            return Resize(trial.trial_id, desired, f"{share}: {desired} of its {atoms(size)} stay")
        if free < desired - size:
            return None
        if view.knows_distance:
            desired = self._worth_most(view, trial, desired)
            if desired == size:
                return None
        overhead = self._restart_s(view, desired)
        gain = gain_of(
            speedup_now=self._speedup(view, trial, size),
            speedup_new=self._speedup(view, trial, desired),
            time_left_s=time_left,
            restart_s=overhead,
            margin=self._options.margin,
        )
        if not gain.pays:
            return None
        return Resize(
            trial.trial_id,
            desired,
            f"{share}: {size} -> {atoms(desired)} pays, {gain.after:.6g} > {self._options.margin:g} x {gain.before:.6g} "
            f"(restart {overhead:.6g} s)",
        )

    def _restart_s(self, view: View, size: int) -> float:
        """What a resize to `size` costs: S of the entrance, as in 2020; with a profile that knows it, that of the size."""
        if view.settings.scaling.restart_s and not self._options.ignore_overhead:
            known = view.restart_cost_s(size)
            if known is not None:
                return known
        return self._entrance.overhead_s

    def _speedup(self, view: View, trial: TrialView, size: int) -> float:
        return float(size) if self._options.assume_linear else view.speedup(trial, size)

    def _worth_most(self, view: View, trial: TrialView, desired: int) -> int:
        """The size up to the desired one at which the trial would train fastest where it would be placed now; the smaller of
        equals. Five atoms on two nodes may be slower than four on one. Looks at MOST_SIZES sizes at most."""
        size = trial.num_atoms
        step = max(view.sizes.multiple_of, -(-(desired - size) // MOST_SIZES))
        best, fastest = size, self._speedup(view, trial, size)
        for candidate in sorted({view.sizes.floor(each) for each in range(desired, size, -step)}):
            if candidate > size and (speedup := self._speedup(view, trial, candidate)) > fastest:
                best, fastest = candidate, speedup
        return best

    def _desired_size(self, view: View, trial: TrialView) -> tuple[int, int, int]:
        """(size, position among the running trials, their number). O(running)."""
        rule = self._options.allocation
        if rule == "uniform":
            own = self._ranked_by.get(trial.trial_id, float("inf"))
            position = num = 0
            before = True
            for other in view.live():
                if other is trial:
                    before = False
                else:
                    score = self._ranked_by.get(other.trial_id, float("inf"))
                    position += score > own or (before and score == own)
                num += 1
            return uniform_size(view.num_atoms, num, position, view.sizes), position, num
        ranked = sorted(
            view.live(), key=lambda other: self._ranked_by.get(other.trial_id, float("inf")), reverse=True
        )
        position = ranked.index(trial)
        num = len(ranked)
        if rule == "top":
            shares = top(view.num_atoms, num, view.sizes)
        elif rule == "softmax":
            shares = softmax(
                view.num_atoms, [self._ranked_by.get(other.trial_id) for other in ranked], view.sizes
            )
        else:
            shares = at_random(view.num_atoms, num, view.sizes, self._rng)
        return shares[position], position, num

    def _shrink_pays(self, view: View, trial: TrialView, desired: int, time_left: float | None) -> bool:
        """`shrink_pays`: is the work of both trials together more when the best other one gets the atoms?"""
        others = [other for other in view.live() if other is not trial and other.state is TrialState.RUNNING]
        if not others:
            return False
        best = max(others, key=lambda other: self._ranked_by.get(other.trial_id, float("-inf")))
        larger = view.sizes.floor(best.num_atoms + trial.num_atoms - desired)
        if self._options.assume_linear:
            after = float(desired + larger)
        else:
            after = sum(view.speedups_after(trial, desired, best, larger))
        return gain_of(
            speedup_now=self._speedup(view, trial, trial.num_atoms)
            + self._speedup(view, best, best.num_atoms),
            speedup_new=after,
            time_left_s=time_left,
            restart_s=self._restart_s(view, larger),
            margin=self._options.margin,
        ).pays

    # ---- starts (1.7)

    def _gate(self, view: View, *, reversible: bool) -> Gate:
        time_left = view.time_left_s()
        options = self._options
        if options.explore_fraction is not None:
            return fixed_gate(
                time_left_s=time_left, deadline_s=view.deadline_s, explore_fraction=options.explore_fraction
            )
        if options.entrance == "none":
            return OPEN
        longest = self._entrance.longest_s
        if reversible:
            longest = None if self._oldest is None else self._oldest.training_s
        return self._entrance.gate(time_left_s=time_left, longest_s=longest)

    def next_start(self, view: View) -> Start | Drop | None:
        options = self._options
        interrupted = self._queue.next_interrupted(view)
        if interrupted is not None:
            return interrupted
        gate = self._gate(view, reversible=options.entrance == "reversible")
        if not gate.is_open:
            self._has_closed = True
            if options.entrance != "reversible":
                dropped = self._queue.drop_new(view)
                if dropped is not None:
                    return Drop(dropped.trial_id, gate.because)
            if not options.keep_paused:
                return self._drop_paused(view, gate)
            if options.entrance == "reversible" or not self._may_resume(view):
                return None
        if not view.num_free:
            return None
        promotion = self._bracket.promotion(lambda trial_id: self._resume_size(view, trial_id) is not None)
        if promotion is not None:
            return self._start(view, promotion.trial_id, promotion.because)
        if gate.is_open:
            start = self._queue.next_new(view)
            if start is not None:
                return start
            if view.num_requested or (self.num_wanted(view) and not view.search_exhausted):
                return None
        return self._resume_any(view)

    def _may_resume(self, view: View) -> bool:
        """`keep_paused`, the entrance closed for good: may paused trials come back? When they could overtake those who
        still run; with a fixed exploration, when nobody does."""
        if self._options.explore_fraction is not None:
            return not view.live()
        return self._gate(view, reversible=True).is_open

    def _resume_size(self, view: View, trial_id: TrialId) -> int | None:
        """The size at which a paused trial may start now; None: it does not fit, or does not wait."""
        trial = view.trial(trial_id)
        if trial.state is not TrialState.PAUSED:
            return None
        wanted = view.sizes.floor(min(trial.last_num_atoms, view.num_atoms))
        if wanted <= view.num_free:
            return wanted
        return view.sizes.floor(view.num_free) or None if self._options.keep_paused else None

    def _start(self, view: View, trial_id: TrialId, because: str) -> Start:
        size = self._resume_size(view, trial_id)
        assert size is not None
        return Start(trial_id, size, because)

    def _resume_any(self, view: View) -> Start | None:
        """Tune's last resort: any paused trial in order of creation, whatever its rank; with `last_resort = "best"` by score."""
        too_big = []
        found: Start | None = None
        while self._paused:
            turn, trial_id = heappop(self._paused)
            if view.trial(trial_id).state is not TrialState.PAUSED:
                self._queued.discard(trial_id)
                continue
            if self._resume_size(view, trial_id) is not None:
                self._queued.discard(trial_id)
                self._bracket.resumed(trial_id)
                which = self._options.last_resort
                found = self._start(view, trial_id, f"nothing else waits: the {which} paused trial goes on")
                break
            too_big.append((turn, trial_id))
        for entry in too_big:
            heappush(self._paused, entry)
        return found

    def _has_paused(self, view: View) -> bool:
        while self._paused:
            if view.trial(self._paused[0][1]).state is TrialState.PAUSED:
                return True
            self._queued.discard(heappop(self._paused)[1])
        return False

    def _drop_paused(self, view: View, gate: Gate) -> Drop | None:
        while self._paused:
            _, trial_id = heappop(self._paused)
            self._queued.discard(trial_id)
            if view.trial(trial_id).state is TrialState.PAUSED:
                return Drop(trial_id, gate.because)
        return None

    def num_wanted(self, view: View) -> int:
        if self._has_closed and self._options.entrance != "reversible":
            return 0
        if not self._gate(view, reversible=self._options.entrance == "reversible").is_open:
            return 0
        return view.num_free

    def idle_moves(self, view: View) -> Sequence[Decision]:
        return ()

    def finished(self, view: View) -> str | None:
        if self._has_closed and self._options.entrance != "reversible" and not self._has_paused(view):
            return "the entrance has closed and nobody runs any more"
        if view.search_exhausted and self._queue.is_empty(view) and not self._has_paused(view):
            return "the search is exhausted and nobody waits"
        return None
