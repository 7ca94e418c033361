"""`deadline`: at every event, whatever lets the best model at the deadline be expected to be best.

Trials start on one atom each, and three questions are asked again and again. Each is answered by comparing expected
scores, in units of the spread among trials (`deadline_evidence`, `deadline_outlook`):

1. *Does a trial stay?* Asked when it reaches a rung (half a doubling apart). It is paused when a newcomer in its place would
   do more: when its expected improvement over the best, a unit of the time it still needs, is less than `stay` times that
   of a newcomer. Nobody is paused for a newcomer that does not exist or cannot mature.
2. *Is the field to be narrowed?* Asked a few times a minute (every `PLAN_SHARE` of the deadline). Plans differ in how many
   contenders are kept and when; the field is narrowed to n at once when no plan is worth more than that one. The kept ones
   get the size that is useful, in one step, at their next report; the others are paused.
3. *Who gets a free atom?* The contenders, for as long as they wait for more; then paused trials or newcomers, whichever
   can be expected to improve more.

So a long deadline (one atom is enough to mature) stops few and grows nobody; a short one jumps a few trials to their
final size at once; and where early ranks say much the field turns over quickly until the best can just be finished.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.percentile import RunningPercentile
from hpcsched.core.policies.deadline_evidence import DOUBLING, Evidence, deviate
from hpcsched.core.policies.deadline_outlook import Field, Outlook, Plan, best_plan, improvement, width
from hpcsched.core.policies.queue import StartQueue
from hpcsched.core.resize import Gain, gain_of
from hpcsched.core.settings import DeadlineSettings, Settings
from hpcsched.core.view import Decision, Drop, Pause, Resize, Start, TrialView, View
from hpcsched.core.words import atoms

PLAN_SHARE = 0.02
"""Of the deadline: time between two plans."""
MARGIN = 1.1
"""A resize brings at least so many times the work (resize.gain_of)."""


class _Course(NamedTuple):
    """What the last plan says."""

    outlook: Outlook
    per_s: float
    """Iterations a second of the best, from now to the deadline, by the plan."""
    reached: float
    best: float
    """Expected standing of the best at the deadline."""


class Deadline:
    """State of the policy."""

    def __init__(self, settings: Settings, options: DeadlineSettings) -> None:
        self._options = options
        self._most = settings.max_iterations
        self._evidence = Evidence(
            settings.max_iterations,
            rho=options.rho,
            growth=options.growth,
            prior_weight=options.prior_weight,
        )
        self._queue = StartQueue()
        self._iteration = RunningPercentile(1, 2)
        self._completed = RunningPercentile(1, 2)
        """Iterations of trials that ended by themselves."""
        self._paused: list[tuple[float, TrialId]] = []
        """A heap: most promising first, by the worth at which they were paused."""
        self._grow: dict[TrialId, int] = {}
        """Contenders that wait for their size."""
        self._kept: set[TrialId] = set()
        """Contenders of a narrowed field."""
        self._scouts = options.scouts
        """Trials that start larger, so that the time of an iteration is known soon; 0: it is."""
        self._start_size = 1
        self._rising = 0.0
        self._leader: TrialId | None = None
        """The best of the running ones, when last planned."""
        self._plan_at = 0.0
        self._course: _Course | None = None
        self._because = ""
        self._decided: list[Decision] = []

    # ---- trials come and go

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._queue.add(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        self._evidence.came_back(trial.trial_id)
        if trial.num_atoms == self._grow.get(trial.trial_id, 0):
            self._grow.pop(trial.trial_id, None)

    def trial_left(self, view: View, trial: TrialView) -> None:
        trial_id = trial.trial_id
        self._evidence.left(trial_id)
        if trial.state is TrialState.PENDING:
            self._queue.add_interrupted(trial)
            return
        self._grow.pop(trial_id, None)
        if trial_id in self._kept:
            self._kept.remove(trial_id)
            self._plan_at = view.now
        if trial.state is TrialState.PAUSED:
            heappush(self._paused, (-self._worth(view, trial), trial_id))
        elif trial.state is TrialState.COMPLETED and trial.training_iteration:
            self._completed.add(float(trial.training_iteration))

    # ---- a result

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        trial_id = trial.trial_id
        if trial.last_iter_s:
            self._iteration.add(trial.last_iter_s * view.scaling(trial.num_atoms))
            if self._scouts:
                self._scouts_are_back(view)
        rung = self._evidence.report(trial_id, trial.training_iteration, trial.score)
        wanted = self._grow.get(trial_id)
        if wanted is not None:
            return self._grown(view, trial, wanted)
        if rung is not None and trial_id not in self._kept:
            return self._stays(view, trial)
        return ()

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

    # ---- 0. how wide is the field?

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
            scaling=view.scaling,
            restart_s=lambda size: view.restart_cost_s(size) or 0.0,
        )

    # ---- 1. does it stay?

    def _index(self, course: _Course, z: float, seen: float, done: float, left_s: float) -> float:
        """Expected improvement over the best, a unit of the training that is still needed."""
        outlook = course.outlook
        reached = min(float(outlook.max_iterations), done + course.per_s * left_s)
        if reached < done + 1:
            return 0.0
        rho = outlook.foretold(seen, reached) if seen else 0.0
        behind = outlook.growth * (outlook.maturity(course.reached) - outlook.maturity(reached))
        gain = improvement(rho * z - behind, math.sqrt(1 - rho * rho), course.best)
        return gain / (reached - done)

    def _newcomer(self, view: View, course: _Course) -> float:
        left = view.time_left_s()
        assert left is not None
        worth = self._index(course, 0.0, 0.0, 0.0, left - (view.restart_cost_s(1) or 0.0))
        if self._options.early_stop:
            early = course.outlook.foretold(1.0, 16.0)
            worth /= 1.0 - self._options.cheap * early * early
        return worth

    def _worth(self, view: View, trial: TrialView) -> float:
        course = self._course
        left = view.time_left_s()
        z, seen = self._evidence.z(trial.trial_id)
        if course is None or left is None:
            return z
        return self._index(course, z, seen, trial.training_iteration, left)

    def _stays(self, view: View, trial: TrialView) -> Sequence[Decision]:
        course = self._course
        if (
            course is None
            or not self._options.early_stop
            or trial.training_iteration < view.settings.grace_period
        ):
            return ()
        if view.search_exhausted and not self._queue.has_new(view):
            return ()
        z, seen = self._evidence.z(trial.trial_id)
        if not seen or trial.trial_id == self._leader:
            return ()
        keep = self._options.keep * (1.0 - self._rising) + self._options.keep_rising * self._rising
        if self._evidence.behind(trial.trial_id, seen) < keep ** (1 / DOUBLING):
            return ()
        worth = self._worth(view, trial)
        newcomer = self._newcomer(view, course)
        stay = self._options.stay * (1.0 - self._rising) + self._options.stay_rising * self._rising
        if worth >= stay * newcomer:
            return ()
        return (
            Pause(
                trial.trial_id,
                f"at iteration {seen} it stands {z:+.2f} spreads from the mean: it can be expected to improve on the best by "
                f"{worth:.3g} an iteration, a newcomer by {newcomer:.3g}",
            ),
        )

    # ---- 2. is the field to be narrowed?

    def _outlook(self, view: View, left_s: float) -> Outlook | None:
        iteration = self._iteration.value()
        if iteration is None:
            return None
        most = self._most
        if self._completed.num >= 3:
            most = min(most, math.ceil(self._completed.value() or most))
        growth, seen_at = self._evidence.growth()
        return Outlook(
            left_s,
            iteration,
            most,
            self._evidence.rungs,
            self._evidence.rho(),
            growth,
            self._saturation(),
            seen_at,
        )

    def _saturation(self) -> float:
        """L: the assumed one, moved towards R as far as scores are still rising with every doubling."""
        assumed = self._options.saturation
        rising = self._rising = self._evidence.rising() if self._options.rising else 0.0
        return assumed * math.pow(max(1.0, self._most / assumed), rising)

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
        free = view.num_free
        if free > 1:
            self._start_size = self._width(view, outlook, free).size
        elif self._start_size > 1 and view.now > 0:
            self._start_size = 1
        running = [trial for trial in view.live() if trial.state is TrialState.RUNNING]
        known = [trial for trial in running if self._evidence.num_rungs(trial.trial_id)]
        if not known:
            return []
        self._plan_at = view.now + PLAN_SHARE * deadline
        ripe = self._options.ripe * max(trial.training_iteration for trial in known)
        ranked = sorted(
            known, key=lambda trial: (trial.training_iteration >= ripe, self._order_of(trial)), reverse=True
        )
        first = ranked[0]
        self._leader = first.trial_id
        num = len(view.live())
        seen = max(num, self._evidence.num_seen)
        field = Field(num, min(trial.num_atoms for trial in running), first.training_iteration, seen)
        if self._scouts:
            return []
        best, never = best_plan(
            outlook,
            field,
            size_for=lambda n: self._useful(view, view.num_atoms // n),
            scaling=view.scaling,
            restart_s=lambda size: view.restart_cost_s(size) or 0.0,
            seen_per_s=max(0.0, (seen - view.num_atoms) / max(view.now, 1e-9)),
        )
        self._course = _Course(
            outlook,
            max(1e-9, (best.iterations - first.training_iteration) / left),
            best.iterations,
            deviate(1, max(2, seen)),
        )
        waits = best.wait_s > 0 or best.num >= num or len(known) < min(num, 2)
        if waits or not self._options.narrow:
            return []
        self._because = (
            f"{best.num} of {num} contenders on {atoms(best.size)} can be expected to reach {best.value:.3f}, all of them "
            f"{never.value:.3f} (in spreads; rho {outlook.foretold(first.training_iteration, best.iterations):.2f}, growth {outlook.growth:.2f} a doubling)"
        )
        kept = ranked[: best.num]
        self._kept = {trial.trial_id for trial in kept}
        self._grow = {trial.trial_id: best.size for trial in kept if trial.num_atoms < best.size}
        return [
            Pause(trial.trial_id, self._because) for trial in view.live() if trial.trial_id not in self._kept
        ]

    def _order_of(self, trial: TrialView) -> tuple[float, float]:
        z, seen = self._evidence.z(trial.trial_id)
        course = self._course
        rho = 0.999 if course is None or not seen else course.outlook.foretold(seen, course.reached)
        return (rho * z, self._evidence.best(trial.trial_id))

    # ---- 3. who gets a free atom?

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
        size = view.sizes.floor(min(spare, self._size_to_start(view)))
        course = self._course
        if self._paused and course is not None:
            trial = view.trial(self._paused[0][1])
            worth = self._worth(view, trial)
            has_new = self._queue.has_new(view) or (not view.search_exhausted and self.num_wanted(view) > 0)
            newcomer = self._newcomer(view, course) if has_new else 0.0
            if worth > newcomer:
                heappop(self._paused)
                return Start(
                    trial.trial_id,
                    size,
                    f"it goes on: {worth:.3g} an iteration can be expected of it, {newcomer:.3g} of a newcomer",
                )
        start = self._queue.next_new(view)
        if start is None or size == 1:
            return start
        return Start(start.trial_id, size, f"{start.because}; {atoms(size)} each promise most")

    def _size_to_start(self, view: View) -> int:
        if self._scouts:
            return self._useful(view, max(1, view.num_atoms // self._scouts))
        return self._start_size

    def _forget_ended(self, view: View) -> None:
        while self._paused and view.trial(self._paused[0][1]).state is not TrialState.PAUSED:
            heappop(self._paused)

    def num_wanted(self, view: View) -> int:
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
