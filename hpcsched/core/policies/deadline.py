"""`deadline`: at every event, whatever lets the best model at the deadline be expected to be best.

A scout on all atoms shows first how long an iteration takes; then trials run side by side, on one atom each where there is
time. What follows depends on which of two things decides how good the best model will be, and the first iterations of the
trials show it (`deadline_evidence`):

- *choice*: trials differ by more than a doubling of the training brings. Their early ranks foretell much, so many are tried
  and most of them go again soon, until nobody new could catch up; then the best ones grow (`deadline_turnover`).
- *training*: a doubling brings more than trials differ by. Early ranks foretell little, so nobody is stopped for them; but
  where the deadline is short, the field is narrowed to so few that those can be trained far enough. How few, and when, is the
  plan of the highest expected score (`deadline_outlook`), looked for every `PLAN_SHARE` of the deadline. The kept ones get
  their size in one step, at their next report; the others are paused. With a long deadline nobody is.

Nothing is thrown away: paused trials come back when no new ones are left.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.percentile import RunningPercentile
from hpcsched.core.policies.deadline_evidence import Evidence
from hpcsched.core.policies.deadline_outlook import Field, Outlook, Plan, best_plan, width
from hpcsched.core.policies.deadline_turnover import Turnover
from hpcsched.core.policies.queue import StartQueue
from hpcsched.core.resize import Gain, gain_of
from hpcsched.core.settings import DeadlineSettings, Settings
from hpcsched.core.view import Decision, Drop, Pause, Resize, Start, Stop, TrialView, View
from hpcsched.core.words import atoms

PLAN_SHARE = 0.02
"""Of the deadline: time between two plans."""
MARGIN = 1.1
"""A resize brings at least so many times the work (resize.gain_of)."""


class Deadline:
    """State of the policy."""

    def __init__(self, settings: Settings, options: DeadlineSettings) -> None:
        self._options = options
        self._most = settings.max_iterations
        self._evidence = Evidence(growth=options.growth, prior_weight=options.prior_weight)
        self._turnover = Turnover(settings, leap=options.leap)
        self._best_score = -math.inf
        self._best_at = 0
        """Iterations of the best result so far."""
        self._choice = False
        """Choice outweighs training: turnover, instead of narrowing."""
        self._queue = StartQueue()
        self._iteration = RunningPercentile(1, 2)
        self._completed = RunningPercentile(1, 2)
        """Iterations of trials that ended by themselves."""
        self._paused: list[tuple[float, TrialId]] = []
        """A heap: the best first."""
        self._grow: dict[TrialId, int] = {}
        """Contenders that wait for their size."""
        self._kept: set[TrialId] = set()
        """Contenders of a narrowed field."""
        self._scouts = options.scouts
        """Trials that start larger, so that the time of an iteration is known soon; 0: it is."""
        self._start_size = 1
        self._plan_at = 0.0
        self._because = ""
        self._decided: list[Decision] = []

    # ---- trials come and go

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._queue.add(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        self._turnover.started(trial)
        if trial.num_atoms == self._grow.get(trial.trial_id, 0):
            self._grow.pop(trial.trial_id, None)

    def trial_left(self, view: View, trial: TrialView) -> None:
        trial_id = trial.trial_id
        self._turnover.left(view, trial)
        if trial.state is TrialState.PENDING:
            self._queue.add_interrupted(trial)
            return
        self._grow.pop(trial_id, None)
        if trial_id in self._kept:
            self._kept.remove(trial_id)
            self._plan_at = view.now
        if trial.state is TrialState.PAUSED:
            heappush(self._paused, (-self._evidence.best(trial_id), trial_id))
        elif trial.state is TrialState.COMPLETED and trial.training_iteration:
            self._completed.add(float(trial.training_iteration))

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
        wanted = self._grow.get(trial_id)
        if wanted is not None:
            return self._grown(view, trial, wanted)
        if not self._choice or trial_id in self._kept:
            return ()
        if objection is not None and self._somebody_waits(view, trial):
            return (Pause(trial_id, objection.because),)
        return self._turned(view, trial)

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

    def _grown(self, view: View, trial: TrialView, wanted: int) -> Sequence[Decision]:
        """A contender takes its size as soon as the atoms are there."""
        size = trial.num_atoms
        if wanted == size:
            self._grow.pop(trial.trial_id)
            return ()
        if wanted < size:
            return (Resize(trial.trial_id, wanted, self._because),)
        if view.num_free < wanted - size:
            return ()
        gain = self._gain(view, trial, size, wanted)
        if not gain.pays:
            self._grow.pop(trial.trial_id)
            return ()
        return (
            Resize(
                trial.trial_id,
                wanted,
                f"{self._because}; {size} -> {atoms(wanted)}: {gain.after:.6g} > {MARGIN:g} x {gain.before:.6g}",
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
        left = view.time_left_s()
        self._scouts = 0
        if left is None:
            plan_size = 1
        else:
            outlook = self._outlook(view, left)
            assert outlook is not None
            plan = self._width(view, outlook, view.num_atoms)
            plan_size = plan.size
            self._because = (
                f"an iteration takes {outlook.iteration_s:.6g} s on one atom and {left:.6g} s are left: trials on "
                f"{atoms(plan.size)} promise most"
            )
        self._start_size = plan_size
        for trial in view.live():
            if trial.num_atoms > plan_size:
                self._grow[trial.trial_id] = plan_size

    def _width(self, view: View, outlook: Outlook, num_atoms: int) -> Plan:
        return width(
            outlook,
            num_atoms,
            size_for=lambda num: self._useful(view, num_atoms // num),
            scaling=view.planned_scaling,
            restart_s=lambda size: view.restart_cost_s(size) or 0.0,
        )

    def _outlook(self, view: View, left_s: float) -> Outlook | None:
        iteration = self._iteration.value()
        if iteration is None:
            return None
        most = self._most
        if self._completed.num >= 3:
            most = min(most, math.ceil(self._completed.value() or most))
        return Outlook(
            left_s, iteration, most, self._options.rho, self._options.growth, self._options.saturation
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

    def _plan(self, view: View) -> list[Decision]:
        deadline = view.deadline_s
        left = view.time_left_s()
        if deadline is None or left is None or left <= 0:
            return []
        outlook = self._outlook(view, left)
        if outlook is None:
            return []
        self._choice = (
            self._options.turnover and not self._kept and self._evidence.choice_outweighs_training()
        )
        if self._choice:
            self._plan_at = view.now + PLAN_SHARE * deadline
            self._start_size = 1
            return []
        free = view.num_free
        if free > 1:
            self._start_size = self._width(view, outlook, free).size
        elif self._start_size > 1 and view.now > 0:
            self._start_size = 1
        running = [trial for trial in view.live() if trial.state is TrialState.RUNNING]
        known = [trial for trial in running if trial.training_iteration]
        if not known:
            return []
        self._plan_at = view.now + PLAN_SHARE * deadline
        ranked = sorted(known, key=lambda trial: self._evidence.best(trial.trial_id), reverse=True)
        first = ranked[0]
        num = len(view.live())
        seen = max(num, self._evidence.num_seen)
        field = Field(num, min(trial.num_atoms for trial in running), first.training_iteration, seen)
        if self._scouts:
            return []
        best, never = best_plan(
            outlook,
            field,
            size_for=lambda n: self._useful(view, view.num_atoms // n),
            scaling=view.planned_scaling,
            restart_s=lambda size: view.restart_cost_s(size) or 0.0,
            seen_per_s=max(0.0, (seen - view.num_atoms) / max(view.now, 1e-9)),
        )
        if not self._options.narrow or best.wait_s > 0 or best.num >= num or len(known) < num:
            return []
        self._because = (
            f"{best.num} of {num} contenders on {atoms(best.size)} can be expected to reach {best.value:.3f}, all of them "
            f"{never.value:.3f} (in spreads; the ranks of now and then correlate by "
            f"{outlook.foretold(first.training_iteration, best.iterations):.2f})"
        )
        kept = ranked[: best.num]
        self._kept = {trial.trial_id for trial in kept}
        self._grow = {trial.trial_id: best.size for trial in kept if trial.num_atoms < best.size}
        return [
            Pause(trial.trial_id, self._because) for trial in view.live() if trial.trial_id not in self._kept
        ]

    # ---- who gets a free atom?

    def _spare(self, view: View) -> int:
        """Free atoms that no contender waits for."""
        reserved = sum(size - view.trial(trial_id).num_atoms for trial_id, size in self._grow.items())
        return view.num_free - reserved

    def next_start(self, view: View) -> Start | Drop | None:
        if view.now >= self._plan_at and view.num_free:
            self._decided.extend(self._plan(view))
        if not view.num_free:
            return None
        interrupted = self._queue.next_interrupted(view)
        if interrupted is not None:
            return interrupted
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
                else Start(start.trial_id, size, f"{start.because}; {atoms(size)} each promise most")
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
            return self._useful(view, max(1, view.num_atoms // self._scouts))
        return self._start_size

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
        return max(0, self._spare(view))

    def idle_moves(self, view: View) -> Sequence[Decision]:
        if view.now >= self._plan_at:
            self._decided.extend(self._plan(view))
        decided, self._decided = self._decided, []
        return decided

    def finished(self, view: View) -> str | None:
        self._forget_ended(view)
        if view.search_exhausted and self._queue.is_empty(view) and not self._paused:
            return "every trial has ended"
        return None
