"""PENDING trials in the order in which they shall start."""

from __future__ import annotations

from collections import deque

from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.view import Start, TrialView, View
from hpcsched.core.words import atoms, atoms_are


class StartQueue:
    """Interrupted trials first (they have already been given atoms once), then new ones in order of creation.

    Entries whose trial is not PENDING any more (a user stopped it) are skipped when met.
    """

    __slots__ = ("_interrupted", "_new")

    def __init__(self) -> None:
        self._interrupted: deque[TrialId] = deque()
        self._new: deque[TrialId] = deque()

    def add(self, trial: TrialView) -> None:
        self._new.append(trial.trial_id)

    def add_interrupted(self, trial: TrialView) -> None:
        self._interrupted.append(trial.trial_id)

    def next_interrupted(self, view: View) -> Start | None:
        """At its last size, or at what is free now if that is less: waiting for more could be for ever."""
        if not view.num_free:
            return None
        trial = _first_pending(self._interrupted, view)
        if trial is None:
            return None
        self._interrupted.popleft()
        size = view.sizes.floor(min(trial.last_num_atoms, view.num_free))
        return Start(
            trial.trial_id,
            size,
            f"it was interrupted at {atoms(trial.last_num_atoms)} and {view.num_free} are free",
        )

    def next_new(self, view: View) -> Start | None:
        """One atom for the first trial that has never run."""
        if not view.num_free:
            return None
        trial = _first_pending(self._new, view)
        if trial is None:
            return None
        self._new.popleft()
        return Start(trial.trial_id, 1, f"next in line and {atoms_are(view.num_free)} free")

    def drop_new(self, view: View) -> TrialView | None:
        """Take the first trial that has never run out of the queue."""
        trial = _first_pending(self._new, view)
        if trial is not None:
            self._new.popleft()
        return trial

    def is_empty(self, view: View) -> bool:
        return _first_pending(self._interrupted, view) is None and _first_pending(self._new, view) is None

    def has_new(self, view: View) -> bool:
        return _first_pending(self._new, view) is not None


def _first_pending(queue: deque[TrialId], view: View) -> TrialView | None:
    while queue:
        trial = view.trial(queue[0])
        if trial.state is TrialState.PENDING:
            return trial
        queue.popleft()
    return None
