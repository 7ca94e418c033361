"""`fixed_split`: explore for a fixed share of the time, then everything to the best (algorithms.md section 4).

The naive baseline. Until f T (f: `explore_fraction`, T: the deadline) trials run on one atom each. With `num_trials` = n
and N atoms each may use the same time, f T / ceil(n / N) (the f T N / n of the formula when N divides n): it is paused at
the report after which one more iteration would exceed it, and the next one begins. Without `num_trials` nobody is paused; a trial that ends makes room for a new
one.

The split comes at the first event at or after f T, or as soon as everybody has had its share. The best then is who has
the best last score among the trials that can still go on (ties to the earlier; missing and non-finite scores last;
nobody with a score yet: exploration goes on while anybody can). All others are stopped for good; when they have left, the best one goes on
at the largest allowed size that fits, whether that pays or not. It grows once. If it fails there is no second.

Policies are asked when something happens, so the split waits for the next event (a report, mostly) after f T, and the
growth for the others' iterations under way. Without a deadline there is no f T: everybody runs until it ends.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.policies.queue import StartQueue
from hpcsched.core.settings import FixedSplitSettings, Settings
from hpcsched.core.transitions import ENDED
from hpcsched.core.view import Decision, Drop, Pause, Resize, Start, Stop, TrialView, View
from hpcsched.core.words import IN_WORDS, atoms, atoms_are


class FixedSplit:
    """Exploration, then one trial."""

    def __init__(self, settings: Settings, options: FixedSplitSettings) -> None:
        self._fraction = options.explore_fraction
        self._num_trials = options.num_trials
        if self._num_trials is not None and settings.num_trials is not None:
            self._num_trials = min(self._num_trials, settings.num_trials)
        self._queue = StartQueue()
        self._num_added = 0
        self._candidates: dict[TrialId, None] = {}
        """Trials that have not ended."""
        self._used_s: dict[TrialId, float] = {}
        """Time with an atom in incarnations that are over."""
        self._holding: set[TrialId] = set()
        """Trials that hold atoms."""
        self._paused: set[TrialId] = set()
        self._best: TrialId | None = None
        """Since the split."""
        self._best_waits = False
        """It holds no atoms and is to be started."""
        self._to_drop: deque[TrialId] = deque()
        self._has_grown = False

    # ---- when and who

    def _split_at_s(self, view: View) -> float | None:
        return None if view.deadline_s is None else self._fraction * view.deadline_s

    def _share_s(self, view: View) -> float | None:
        """Time that each trial may use; None: until the split."""
        split_at = self._split_at_s(view)
        if split_at is None or self._num_trials is None:
            return None
        turns = -(-self._num_trials // max(1, view.num_atoms))
        return split_at / turns

    def _is_due(self, view: View) -> bool:
        split_at = self._split_at_s(view)
        if (split_at is None or view.now < split_at) and not self._all_had_their_share(view):
            return False
        return self._choose(view) is not None

    def _all_had_their_share(self, view: View) -> bool:
        return (
            bool(self._paused)
            and not self._holding
            and not self._num_missing(view)
            and self._queue.is_empty(view)
        )

    def _num_missing(self, view: View) -> int:
        """Configurations of the exploration that are still to come."""
        if view.search_exhausted:
            return 0
        if self._num_trials is None:
            return view.num_free
        return max(0, self._num_trials - self._num_added)

    def _choose(self, view: View) -> TrialView | None:
        """The best of those that can go on. Without a score a trial is chosen only when nobody has anything left to do."""
        any_score = self._all_had_their_share(view)
        most = view.settings.max_iterations
        ranked = [
            (trial.score is None, -(trial.score or 0.0), trial.trial_id)
            for trial in map(view.trial, self._candidates)
            if trial.training_iteration < most and (any_score or trial.score is not None)
        ]
        return view.trial(min(ranked)[2]) if ranked else None

    # ---- trials come and go

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._num_added += 1
        if self._best is not None:
            self._to_drop.append(trial.trial_id)
            return
        self._candidates[trial.trial_id] = None
        self._queue.add(trial)

    def trial_started(self, view: View, trial: TrialView) -> None:
        self._holding.add(trial.trial_id)
        self._paused.discard(trial.trial_id)

    def trial_left(self, view: View, trial: TrialView) -> None:
        trial_id = trial.trial_id
        if trial_id in self._holding:
            self._holding.remove(trial_id)
            if trial.started_at is not None:
                self._used_s[trial_id] = self._used_s.get(trial_id, 0.0) + view.now - trial.started_at
        self._paused.discard(trial_id)
        if trial.state in ENDED:
            self._candidates.pop(trial_id, None)
        elif trial_id == self._best:
            self._best_waits = True
        elif self._best is not None:
            self._to_drop.append(trial_id)
        elif trial.state is TrialState.PAUSED:
            self._paused.add(trial_id)
        else:
            self._queue.add_interrupted(trial)

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if self._best is not None:
            return ()  # the others were told at the split
        share = self._share_s(view)
        if share is None or trial.started_at is None or self._is_due(view):
            return ()
        used = self._used_s.get(trial.trial_id, 0.0) + view.now - trial.started_at
        iteration = trial.last_iter_s or 0.0
        if used + iteration <= share:
            return ()
        because = f"it has used {used:.6g} s of its {share:.6g} s and an iteration takes {iteration:.6g} s"
        return (Pause(trial.trial_id, because),)

    # ---- starts

    def num_wanted(self, view: View) -> int:
        if self._best is not None or self._is_due(view):
            return 0
        return min(view.num_free, self._num_missing(view))

    def next_start(self, view: View) -> Start | Drop | None:
        if self._best is None and self._is_due(view):
            if self._holding:
                return None  # the split is among the moves: there are trials to stop
            self._to_drop.extend(decision.trial_id for decision in self._split(view))
        if self._to_drop:
            return Drop(self._to_drop.popleft(), f"trial {self._best} is the best and gets all atoms")
        if self._best is not None:
            return self._restart_best(view, self._best)
        return self._queue.next_interrupted(view) or self._queue.next_new(view)

    def _restart_best(self, view: View, best: TrialId) -> Start | None:
        """It was paused when it was chosen, or interrupted since: as large as possible once the others have left."""
        size = view.sizes.floor(view.num_free)
        if not self._best_waits or self._holding or not size:
            return None
        self._best_waits = False
        self._has_grown = True
        return Start(best, size, f"exploration is over, it is the best: {atoms_are(view.num_free)} free")

    # ---- the split

    def idle_moves(self, view: View) -> Sequence[Decision]:
        if self._best is None:
            return self._split(view) if self._is_due(view) else ()
        trial = view.trial(self._best)
        if self._has_grown or trial.state is not TrialState.RUNNING or self._holding != {self._best}:
            return ()
        self._has_grown = True
        size = view.sizes.floor(trial.num_atoms + view.num_free)
        if size <= trial.num_atoms:
            return ()
        return (Resize(self._best, size, f"exploration is over, it is the best: it gets {atoms(size)}"),)

    def _split(self, view: View) -> list[Decision]:
        best = self._choose(view)
        if best is None:
            return []
        self._best = best.trial_id
        self._best_waits = best.trial_id not in self._holding
        score = "no score" if best.score is None else IN_WORDS[view.settings.mode](best.score)
        because = (
            f"exploration ended at {view.now:.6g} s: trial {best.trial_id} is the best of {len(self._candidates)} with "
            f"{score}"
        )
        decisions: list[Decision] = []
        for trial_id in self._candidates:
            if trial_id != best.trial_id:
                kind = Stop if trial_id in self._holding else Drop
                decisions.append(kind(trial_id, because))
        return decisions

    def finished(self, view: View) -> str | None:
        if self._best is not None:
            state = view.trial(self._best).state
            return (
                f"trial {self._best}, the best of the exploration, has ended: {state}"
                if state in ENDED
                else None
            )
        if not self._num_missing(view) and self._queue.is_empty(view) and not self._paused:
            return "every trial has ended"
        return None
