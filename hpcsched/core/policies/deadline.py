"""`deadline`: at every event, whatever lets the best model at the deadline be expected to be best.

The first trials are scouts, each on the root of half of all atoms: they show how long an iteration takes. What follows depends on
which of two things decides how good the best model will be, and the first iterations of the trials show it
(`deadline_evidence`):

- *choice*: trials differ by more than a doubling of the training brings. Their early ranks foretell much, so many are tried
  and most of them go again soon, until nobody new could catch up; then the best ones grow (`deadline_turnover`).
- *training*: a doubling brings more than trials differ by. Early ranks foretell little, so nobody is stopped for them; but
  where the deadline is too short to train every trial on one atom, the field is narrowed once, to as many as can be trained to
  their end (`deadline_field`). Each contender leaves at the end of the iteration that is nearest to that time; the best ones
  come back on their final size. A trial that improves no more makes room for a newcomer.

Nothing is thrown away: paused trials come back when no new ones are left.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from heapq import heappop, heappush

from hpcsched.core.brackets import Objection
from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.percentile import SampledPercentile
from hpcsched.core.policies.deadline_evidence import Evidence
from hpcsched.core.policies.deadline_field import Reach
from hpcsched.core.policies.deadline_turnover import Turnover
from hpcsched.core.policies.queue import StartQueue
from hpcsched.core.resize import Gain, gain_of
from hpcsched.core.settings import DeadlineSettings, Settings
from hpcsched.core.view import Decision, Drop, Pause, Resize, Start, Stop, TrialView, View
from hpcsched.core.words import atoms

PLAN_SHARE = 0.02
"""Of the deadline: time between two plans."""
LEAST_PATIENCE = 10
"""Iterations."""
MARGIN = 1.1
"""A resize brings at least so many times the work (resize.gain_of)."""


class _Cut:
    """The field is narrowed at about the time `at`: contenders leave at the end of the iteration that is nearest, and the best `num`
    come back on `size` atoms when all are judged."""

    __slots__ = ("at", "because", "members", "num", "size", "waiting")

    def __init__(self, num: int, size: int, at: float, because: str, members: list[TrialId]) -> None:
        self.num = num
        self.size = size
        self.at = at
        self.because = because
        self.members = members
        self.waiting: set[TrialId] = set(members)


class Deadline:
    """State of the policy."""

    def __init__(self, settings: Settings, options: DeadlineSettings) -> None:
        self._options = options
        self._most = settings.max_iterations
        self._grace = settings.grace_period
        self._evidence = Evidence(growth=options.growth, prior_weight=options.prior_weight)
        self._turnover = Turnover(settings, leap=options.leap)
        self._best_score = -math.inf
        self._best_at = 0
        """Iterations of the best result so far."""
        self._choice = False
        """Choice outweighs training: turnover, instead of narrowing."""
        self._queue = StartQueue()
        self._iteration = SampledPercentile(1, 2)
        self._paused: list[tuple[float, TrialId]] = []
        """A heap: the best first."""
        self._shrinks: set[TrialId] = set()
        """Scouts that take `_start_size` at their next report."""
        self._kept: set[TrialId] = set()
        """Contenders of a narrowed field."""
        self._cut: _Cut | None = None
        self._back: list[TrialId] = []
        """Contenders of a narrowed field that wait for their atoms, the best last."""
        self._back_size = 1
        self._decided_for: float | None = None
        """The deadline for which it is decided whether the field is narrowed."""
        self._scouts = options.scouts
        """Trials start larger, so that the time of an iteration is known soon."""
        self._start_size = 1
        self._waits_for_growth = False
        """Scouts keep their size until the growth is known: where choice matters more, they need not shrink."""
        self._plan_at = 0.0
        self._field_at = 0.0
        """When to look again whether the field is to be narrowed."""
        self._because = ""

    # ---- trials come and go

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._queue.add(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        self._turnover.started(trial)

    def trial_left(self, view: View, trial: TrialView) -> None:
        trial_id = trial.trial_id
        self._turnover.left(view, trial)
        if trial.state is TrialState.PENDING:
            self._queue.add_interrupted(trial)
            return
        self._shrinks.discard(trial_id)
        if trial_id in self._back and trial.state is not TrialState.PAUSED:
            self._back.remove(trial_id)
        cut = self._cut
        if cut is not None and trial_id in cut.members:
            if trial.state is not TrialState.PAUSED:
                cut.members.remove(trial_id)
            if trial_id in cut.waiting:
                self._judged(cut, trial_id)
        elif trial_id in self._kept and trial_id not in self._back:
            self._kept.remove(trial_id)
            self._plan_at = view.now
        if trial.state is TrialState.PAUSED:
            heappush(self._paused, (-self._evidence.best(trial_id), trial_id))

    # ---- a result

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        trial_id = trial.trial_id
        if trial.last_iter_s and trial.training_iteration > self._options.untypical:
            self._iteration.add(trial.last_iter_s * view.speedup(trial, trial.num_atoms))
            if self._scouts:
                self._scouts_are_back(view)
        self._evidence.report(trial_id, trial.training_iteration, trial.score)
        if trial.score is not None and trial.score > self._best_score:
            self._best_score, self._best_at = trial.score, trial.training_iteration
        objection = self._turnover.judge(trial)
        if objection is not None and objection.for_good:
            return (Stop(trial_id, objection.because),)
        cut = self._cut
        if cut is not None and trial_id in cut.waiting:
            if view.now + 0.5 * (trial.last_iter_s or 0.0) < cut.at:
                return ()
            self._judged(cut, trial_id)
            return (Pause(trial_id, cut.because),)
        if trial_id in self._shrinks:
            return self._shrunk(trial, objection)
        if not self._choice or trial_id in self._kept:
            return self._saturated(view, trial)
        if objection is not None and self._somebody_waits(view, trial):
            return (Pause(trial_id, objection.because),)
        return self._turned(view, trial)

    def _shrunk(self, trial: TrialView, objection: Objection | None) -> Sequence[Decision]:
        """A scout takes the size of the others; where choice matters more, not before it has passed the first rung."""
        if self._choice and trial.training_iteration <= self._grace:
            return ()
        self._shrinks.remove(trial.trial_id)
        if self._choice and objection is not None:
            return (Pause(trial.trial_id, objection.because),)
        if trial.num_atoms <= self._start_size:
            return ()
        return (Resize(trial.trial_id, self._start_size, self._because),)

    def _saturated(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """A trial that improves no more makes room for a newcomer that can come as far."""
        best_at = self._evidence.best_at(trial.trial_id)
        patience = self._options.patience
        if not patience or trial.training_iteration - best_at < max(LEAST_PATIENCE, patience * best_at):
            return ()
        iteration = self._iteration.value()
        left = view.time_left_s()
        if not iteration or left is None or not self._has_new(view):
            return ()
        reach = left * view.speedup(trial, trial.num_atoms) / iteration
        if reach < best_at:
            return ()
        because = f"no improvement since iteration {best_at}, and a newcomer can reach {reach:.6g}"
        return (Pause(trial.trial_id, because),)

    def _somebody_waits(self, view: View, trial: TrialView) -> bool:
        """Could the atoms of a paused trial be used better?"""
        if self._has_new(view) and self._turnover.can_be_caught(view, trial):
            return True
        return self._turnover.kept_for_leader(view, self._useful(view, view.num_atoms)) > 0

    def _has_new(self, view: View) -> bool:
        return self._queue.has_new(view) or not view.search_exhausted

    def _turned(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """A trial grows when no newcomer can use the free atoms, unless it stays far behind the best result anyway."""
        if not view.num_free or (self._has_new(view) and self._turnover.gate(view).is_open):
            return ()
        growth = self._turnover.growth(view, trial, lambda most: self._useful(view, most))
        if growth is None:
            return ()
        size = trial.num_atoms
        gain = self._gain(view, trial, size, growth.size)
        if not gain.pays:
            return ()
        iteration = self._iteration.value()
        if (
            iteration
            and trial.training_iteration + gain.after / iteration < self._options.reach * self._best_at
        ):
            return ()
        return (
            Resize(
                trial.trial_id,
                growth.size,
                f"{growth.because}; {size} -> {atoms(growth.size)}: {gain.after:.6g} > {MARGIN:g} x {gain.before:.6g}",
            ),
        )

    def _gain(self, view: View, trial: TrialView, size: int, wanted: int) -> Gain:
        return gain_of(
            speedup_now=view.speedup(trial, size),
            speedup_new=view.speedup(trial, wanted),
            time_left_s=view.time_left_s(),
            restart_s=view.restart_cost_s(wanted) or 0.0,
            margin=MARGIN,
        )

    # ---- training: how wide is the field?

    def _scouts_are_back(self, view: View) -> None:
        """The time of an iteration is known: is the field to be wide, of trials on one atom, or narrow from the start?"""
        self._scouts = False
        self._start_size = 1
        reach = self._reach(view)
        if reach is not None:
            num = self._width(view, reach, _usable(view))
            self._start_size = size = reach.size_for(num)
            self._because = (
                f"an iteration takes {reach.iteration_s:.6g} s on one atom and {reach.left_s:.6g} s are left: {num} trials on "
                f"{atoms(size)} each"
            )
            self._waits_for_growth = num == _usable(view) > self._scout_size(view)
        if not self._waits_for_growth:
            self._shrink(view)

    def _shrink(self, view: View) -> None:
        """Scouts take the size of the others."""
        self._waits_for_growth = False
        self._shrinks = {trial.trial_id for trial in view.live() if trial.num_atoms > self._start_size}

    def _scout_size(self, view: View) -> int:
        """The root of half of all atoms, so that there are twice as many scouts; fewer than eight atoms have none."""
        return self._useful(view, 1 << (max(0, _usable(view).bit_length() - 2) // 2))

    def _width(self, view: View, reach: Reach, num_atoms: int) -> int:
        """Of a new field."""
        if reach.all_are_trained(num_atoms):
            return num_atoms
        left = self._explore_s(view)
        num = reach.contenders(num_atoms, self._options.wide, left)
        return min(num_atoms, self._options.wide * num) if left > 0 else num

    def _explore_s(self, view: View) -> float:
        """Time until the field is narrowed."""
        deadline = view.deadline_s
        if deadline is None or not self._options.narrow:
            return 0.0
        return max(0.0, self._options.explore * deadline - view.now)

    def _reach(self, view: View, num_atoms: int | None = None) -> Reach | None:
        iteration = self._iteration.value()
        left = view.time_left_s()
        if iteration is None or left is None or left <= 0:
            return None
        return Reach(
            left,
            iteration,
            self._most,
            self._options.trained,
            self._options.enough,
            lambda num: self._useful(view, (num_atoms or _usable(view)) // num),
            view.planned_scaling,
            lambda size: view.restart_cost_s(size) or 0.0,
        )

    def _useful(self, view: View, most: int) -> int:
        """The smallest allowed size up to `most` that is nearly as fast as any."""
        best = 1
        size: int | None = view.sizes.floor(1)
        while size is not None and size <= most:
            if view.scaling(size) > 1.02 * view.scaling(best):
                best = size
            size = view.sizes.floor(2 * size) if view.sizes.floor(2 * size) > size else None
        last = view.sizes.floor(most)
        return last if view.scaling(last) > 1.02 * view.scaling(best) else best

    def _plan(self, view: View) -> None:
        """Does choice or training matter more? Is it time to narrow the field?"""
        reach = self._reach(view)
        deadline = view.deadline_s
        if reach is None or deadline is None or self._cut is not None or self._back:
            return
        self._choice = (
            self._options.turnover and not self._kept and self._evidence.choice_outweighs_training()
        )
        known = self._evidence.is_growth_known()
        self._plan_at = view.now + PLAN_SHARE * deadline if known else view.now
        if self._waits_for_growth and known:
            self._shrink(view)
        if self._choice:
            self._start_size = 1
            return
        if self._scouts or not self._options.narrow or self._decided_for == deadline:
            return
        if view.now < self._field_at:
            return
        self._field_at = view.now + PLAN_SHARE * deadline
        live = view.live()
        if not live:
            return
        size = min(trial.num_atoms for trial in live)
        begins = self._options.explore * deadline - reach.iteration_s / view.planned_scaling(size, len(live))
        if view.now >= begins:
            self._decided_for = deadline
            self._cut = self._narrowed(view, reach, live)
        else:
            self._field_at = min(self._field_at, begins)
            self._plan_at = min(self._plan_at, self._field_at)

    def _narrowed(self, view: View, reach: Reach, live: Collection[TrialView]) -> _Cut | None:
        """How many of the field go on? Those who do are known when all have ended an iteration at about the time to narrow it."""
        assert view.deadline_s is not None
        num = len(live)
        done = sorted(trial.training_iteration for trial in live)[num // 2]
        if reach.all_are_trained(_usable(view), done):
            return None
        kept = reach.contenders(_usable(view), 1, 0.0, done)
        if kept >= num:
            return None
        size = reach.size_for(kept)
        then, now = (done + reach.iterations(n, reach.left_s) for n in (kept, num))
        self._shrinks.clear()
        return _Cut(
            kept,
            size,
            self._options.explore * view.deadline_s,
            f"{kept} of {num} contenders go on, on {atoms(size)} each: each can reach {then:.6g} iterations, of all of them "
            f"{now:.6g}",
            [trial.trial_id for trial in live],
        )

    def _judged(self, cut: _Cut, trial_id: TrialId) -> None:
        """A contender has ended its iteration (or itself). When all have, the best of them are known."""
        cut.waiting.remove(trial_id)
        if cut.waiting:
            return
        self._cut = None
        ranked = sorted(cut.members, key=self._evidence.best)
        self._back = ranked[-cut.num :]
        self._back_size = cut.size
        self._because = cut.because
        self._kept = set(self._back)

    # ---- who gets a free atom?

    def _spare(self, view: View) -> int:
        """Free atoms that no contender waits for."""
        return 0 if self._cut is not None or self._back else view.num_free

    def next_start(self, view: View) -> Start | Drop | None:
        if view.now >= self._plan_at and view.num_free:
            self._plan(view)
        if not view.num_free:
            return None
        interrupted = self._queue.next_interrupted(view)
        if interrupted is not None:
            return interrupted
        if self._back:
            return self._come_back(view)
        spare = self._spare(view)
        if spare < 1:
            return None
        self._forget_ended(view)
        if self._choice:
            return self._turnover_start(view)
        start = self._queue.next_new(view)
        if start is not None:
            size = view.sizes.floor(min(spare, self._size_to_start(view)))
            return (
                start
                if size == 1
                else Start(start.trial_id, size, f"{start.because}; {self._because or 'a scout'}")
            )
        if (
            self._paused
            and not view.num_requested
            and not (self.num_wanted(view) and not view.search_exhausted)
        ):
            _, trial_id = heappop(self._paused)
            size = view.sizes.floor(min(spare, self._size_to_start(view)))
            return Start(trial_id, size, "nothing new waits: the best of the paused trials goes on")
        return None

    def _come_back(self, view: View) -> Start | None:
        """The contenders of a narrowed field, the best first, each on its atoms."""
        trial_id = self._back[-1]
        if view.num_free < self._back_size or view.trial(trial_id).state is not TrialState.PAUSED:
            return None
        self._back.pop()
        return Start(trial_id, self._back_size, self._because)

    def _turnover_start(self, view: View) -> Start | None:
        """Newcomers first: a paused trial comes back when there are none, for that costs a restart."""
        if not self._turnover.gate(view).is_open and view.num_free <= self._turnover.kept_for_leader(
            view, self._useful(view, view.num_atoms)
        ):
            return None
        start = self._queue.next_new(view)
        if start is not None:
            return start
        if not view.search_exhausted:
            return None
        promotion = self._turnover.promotion(view)
        if promotion is not None:
            return Start(promotion.trial_id, 1, promotion.because)
        if not self._paused:
            return None
        _, trial_id = heappop(self._paused)
        return Start(trial_id, 1, "nothing else waits: the best of the paused trials goes on")

    def _size_to_start(self, view: View) -> int:
        if self._scouts:
            return self._scout_size(view)
        if self._decided_for is None or self._choice:
            return self._start_size
        reach = self._reach(view, view.num_free)
        return 1 if reach is None else reach.size_for(self._width(view, reach, view.num_free))

    def _forget_ended(self, view: View) -> None:
        while self._paused and view.trial(self._paused[0][1]).state is not TrialState.PAUSED:
            heappop(self._paused)

    def num_wanted(self, view: View) -> int:
        if not view.num_free:
            return 0
        if self._choice and not self._turnover.gate(view).is_open:
            return max(
                0, view.num_free - self._turnover.kept_for_leader(view, self._useful(view, view.num_atoms))
            )
        return self._spare(view)

    def idle_moves(self, view: View) -> Sequence[Decision]:
        if view.now >= self._plan_at:
            self._plan(view)
        return ()

    def finished(self, view: View) -> str | None:
        self._forget_ended(view)
        if view.search_exhausted and self._queue.is_empty(view) and not self._paused:
            return "every trial has ended"
        return None


def _usable(view: View) -> int:
    """Atoms that are not down; at least one, so that shares of them can be taken."""
    return max(1, view.num_atoms)
