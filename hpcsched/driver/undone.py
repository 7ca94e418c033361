"""What a driver that died may not have finished tidying up, so that the next one looks there and nowhere else.

A run of a week has launched tens of thousands of incarnations and deleted as many checkpoints; to ask a network file system for each of
them costs minutes at every resume. Deletions are begun when they are decided and unfinished saves are deleted when their incarnation is
gone; either takes seconds. So what counts is what was decided, or ended, within `LATELY_S` of a life's last record, and whatever had not ended.
"""

from __future__ import annotations

from hpcsched.core.actions import CheckpointRef, DeleteCheckpoint, StartTrial
from hpcsched.core.events import ExperimentResumed, TrialExited
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.eventlog.records import Step

LATELY_S = 600.0
"""A thousand times what a deletion takes; of a disk that was away for longer, files may stay behind, which harms nobody."""


class Undone:
    """Folded from the journal's steps, in order."""

    def __init__(self) -> None:
        self._now = 0.0
        self._incarnations: dict[tuple[TrialId, Incarnation], float | None] = {}
        """When it ended; None: it has not, or ranks of it may live on."""
        self._deletions: dict[CheckpointRef, float] = {}

    def take(self, step: Step) -> None:
        event = step.event
        match event:
            case ExperimentResumed(time=time):
                # The life that begins here does what is open now: whether it came to that we do not know.
                incarnations, deletions = self.incarnations(), self.deletions()
                self._incarnations = dict.fromkeys(incarnations, time)
                self._deletions = dict.fromkeys(deletions, time)
            case TrialExited() if (event.trial_id, event.incarnation) in self._incarnations:
                ended_at = None if event.unproven else event.time
                self._incarnations[(event.trial_id, event.incarnation)] = ended_at
            case _:
                pass
        self._now = max(self._now, event.time)
        for action in step.actions:
            if isinstance(action, StartTrial):
                self._incarnations[(action.trial_id, action.incarnation)] = None
            elif isinstance(action, DeleteCheckpoint):
                self._deletions[action.checkpoint] = event.time

    def incarnations(self) -> list[tuple[TrialId, Incarnation]]:
        """In whose folders a save may have been left unfinished."""
        since = self._now - LATELY_S
        return [key for key, ended_at in self._incarnations.items() if ended_at is None or ended_at >= since]

    def deletions(self) -> list[CheckpointRef]:
        """Checkpoints that were to be deleted and may still be there."""
        since = self._now - LATELY_S
        return [ref for ref, at in self._deletions.items() if at >= since]
