"""`rasda`: trials that survive a rung get more workers (Aach et al. 2024; algorithms.md section 3).

Two schemes at the same rungs. In time: ASHA that stops, decided once on arrival (`brackets.StoppingBracket`). In space:
a trial begins with w0 atoms and, having survived the milestone m_i = r f^i, wants w0 f^(i+1) of them (T20), f being the
reduction factor unless set: if one of f survives and grows by f, the atoms in use stay the same.

The size wanted is rounded down to an allowed one and is never more than the atoms that are up, so no trial waits for
what cannot come. Where the published program stops a trial for its resize, queues it behind all new ones and blocks
the queue until its full size is free, a trial here trains on meanwhile:

- it grows when the wanted size fits; else to the largest size that fits now, if that is at least twice its own (so
  that slowly freed atoms cost log2(atoms) restarts at most, besides the one a rung); else it goes on as it is
  and the wish stands until its next result asks again;
- atoms that come free go to interrupted trials first (those that have trained longest before the others, at the wanted
  size or what fits), then to standing wishes (largest wish first, then best score, then earliest), then to new trials
  of w0 atoms, which may fill what no wish can use;
- milestones count when they are passed, not only when hit.

As published there is no test whether growing pays, and no shrinking. Ties at a rung go on; missing and non-finite
metrics are as in `brackets`; a repeated report changes nothing. Mode min needs nothing here.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

from collections.abc import Sequence

from hpcsched.core.brackets import StoppingBracket
from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.policies.queue import StartQueue
from hpcsched.core.rungs import milestones_of
from hpcsched.core.settings import RasdaSettings, Settings
from hpcsched.core.view import Decision, Drop, Resize, Start, Stop, TrialView, View
from hpcsched.core.words import atoms


class ResourceFunction:
    """How many workers a trial wants after an iteration (3.2, T20)."""

    __slots__ = ("_factor", "_initial", "_milestones")

    def __init__(self, *, initial: int, factor: int, grace_period: int, max_iterations: int) -> None:
        self._initial = initial
        self._factor = factor
        self._milestones = milestones_of(grace_period, max_iterations, factor)

    def __call__(self, training_iteration: int) -> int:
        """w0 f^(number of milestones passed); neither rounded nor capped."""
        passed = sum(milestone <= training_iteration for milestone in self._milestones)
        workers: int = self._initial * self._factor**passed
        return workers

    def asked_at(self, training_iteration: int) -> int | None:
        """As published: the workers asked for by a result exactly at a milestone; None at others."""
        return self(training_iteration) if training_iteration in self._milestones else None


class Rasda:
    """ASHA in time, doubling in space."""

    def __init__(self, settings: Settings, options: RasdaSettings) -> None:
        self._initial = options.initial_atoms
        self._workers = ResourceFunction(
            initial=options.initial_atoms,
            factor=options.scaling_factor or settings.reduction_factor,
            grace_period=settings.grace_period,
            max_iterations=settings.max_iterations,
        )
        self._bracket = StoppingBracket(
            grace_period=settings.grace_period,
            max_iterations=settings.max_iterations,
            reduction_factor=settings.reduction_factor,
            mode=settings.mode,
        )
        self._new = StartQueue()
        self._interrupted: set[TrialId] = set()
        self._wishes: set[TrialId] = set()
        """Trials that run on fewer atoms than they want."""

    # ---- sizes

    def _wanted(self, view: View, trial: TrialView) -> int:
        return view.sizes.floor(min(self._workers(trial.training_iteration), view.num_atoms))

    def _growth(self, view: View, trial: TrialView, num_free: int) -> int | None:
        """The size to which a trial may grow on so many free atoms; None: it goes on as it is."""
        size = trial.num_atoms
        wanted = self._wanted(view, trial)
        if wanted <= size:
            return None
        if wanted <= size + num_free:
            return wanted
        partial = view.sizes.floor(size + num_free)
        return partial if partial >= 2 * size else None

    def _because(self, view: View, trial: TrialView, size: int) -> str:
        wanted = self._wanted(view, trial)
        some = "" if size == wanted else f", {size} fit now"
        return f"it has survived to iteration {trial.training_iteration} and wants {atoms(wanted)}{some}"

    def _growths(self, view: View) -> list[Resize]:
        """Which standing wishes the free atoms grant, and how far."""
        num_free = view.num_free
        if not num_free or not self._wishes:
            return []
        trials = [view.trial(trial_id) for trial_id in self._wishes]
        trials.sort(key=lambda trial: (-self._wanted(view, trial), -_score(trial), trial.trial_id))
        growths = []
        for trial in trials:
            size = self._growth(view, trial, num_free)
            if size is not None and trial.state is TrialState.RUNNING:
                num_free -= size - trial.num_atoms
                growths.append(Resize(trial.trial_id, size, self._because(view, trial, size)))
        return growths

    def _num_spare(self, view: View) -> int:
        """Free atoms that no wish can use."""
        growths = self._growths(view)
        return view.num_free - sum(move.size - view.trial(move.trial_id).num_atoms for move in growths)

    def _start_size(self, view: View) -> int:
        return view.sizes.floor(min(self._initial, view.num_atoms))

    # ---- trials come and go

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._new.add(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        self._wishes.discard(trial.trial_id)

    def trial_left(self, view: View, trial: TrialView) -> None:
        self._wishes.discard(trial.trial_id)
        if trial.state is not TrialState.PENDING:
            self._interrupted.discard(trial.trial_id)
        elif trial.incarnation:
            self._interrupted.add(trial.trial_id)
        else:
            self._new.add(trial)

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        trial_id = trial.trial_id
        objection = self._bracket.judge(trial_id, trial.training_iteration, trial.score, trial.problem)
        if objection is not None:
            self._wishes.discard(trial_id)
            return (Stop(trial_id, objection.because),)
        size = self._growth(view, trial, view.num_free)
        if size is not None:
            return (Resize(trial_id, size, self._because(view, trial, size)),)
        if self._wanted(view, trial) > trial.num_atoms:
            self._wishes.add(trial_id)
        return ()

    # ---- starts

    def num_wanted(self, view: View) -> int:
        size = self._start_size(view)
        return self._num_spare(view) // size if size else 0

    def next_start(self, view: View) -> Start | Drop | None:
        if not view.num_free:
            return None
        return self._next_interrupted(view) or self._next_new(view)

    def _next_interrupted(self, view: View) -> Start | None:
        if not self._interrupted:
            return None
        trial = min(
            (view.trial(trial_id) for trial_id in self._interrupted),
            key=lambda trial: (-trial.training_iteration, trial.trial_id),
        )
        self._interrupted.remove(trial.trial_id)
        wanted = self._wanted(view, trial)
        size = view.sizes.floor(min(wanted, view.num_free))
        return Start(
            trial.trial_id, size, f"it was interrupted, wants {atoms(wanted)} and {view.num_free} are free"
        )

    def _next_new(self, view: View) -> Start | None:
        size = self._start_size(view)
        if not size or self._num_spare(view) < size:
            return None
        start = self._new.next_new(view)
        return None if start is None else Start(start.trial_id, size, start.because)

    def idle_moves(self, view: View) -> Sequence[Decision]:
        growths = self._growths(view)
        # What the engine does not do now (the deadline is too near for a restart) is not asked again before the next
        # result, so that it holds no atoms back from new trials.
        self._wishes.difference_update(move.trial_id for move in growths)
        return growths

    def finished(self, view: View) -> str | None:
        if view.search_exhausted and not self._interrupted and not self._new.has_new(view):
            return "the search is exhausted and every trial has ended"
        return None


def _score(trial: TrialView) -> float:
    return float("-inf") if trial.score is None else trial.score
