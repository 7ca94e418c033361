"""Which checkpoints stay, and which one is the best.

A trial keeps its latest (it restarts from there, and an incarnation that is starting restores from there) and, while it
lives, its best. The published best is kept wherever it is. A PAUSED trial keeps its
latest, a COMPLETED one its best and latest, a STOPPED or FAILED one nothing but the published best.
"""

from __future__ import annotations

import msgspec

from hpcsched.core.actions import CheckpointRef
from hpcsched.core.enums import TrialState
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.snapshots import ORIGIN, Snapshot
from hpcsched.core.trial import Trial


class Best(msgspec.Struct, frozen=True):
    """The best complete checkpoint."""

    trial_id: TrialId
    incarnation: Incarnation
    training_iteration: int
    metric: float
    """The windowed score in the user's sign."""
    score: float
    """Higher is better."""
    saved_s: float
    """When, in seconds since the experiment began."""

    @property
    def checkpoint(self) -> CheckpointRef:
        return CheckpointRef(self.trial_id, self.incarnation, self.training_iteration)


def better_than(best: Best | None, trial_id: TrialId, training_iteration: int, score: float) -> str | None:
    """What a new complete checkpoint is better than, in words; None: it is not. Better is higher; or equal, of the same trial, and
    trained further: another trial that is only equal does not replace it."""
    if best is None:
        return "there was none"
    if score > best.score:
        return f"better than {best.metric:.6g} of trial {best.trial_id}"
    if score == best.score and trial_id == best.trial_id and training_iteration > best.training_iteration:
        return f"as good as at iteration {best.training_iteration}, and trained further"
    return None


def keep_new(trial: Trial, ref: CheckpointRef, snapshot: Snapshot) -> None:
    """`ref` is complete: the trial restarts from here from now on."""
    trial.restart = snapshot
    trial.restart_ref = ref
    trial.snapshots.forget_until(ref.training_iteration)
    if ref not in trial.kept:
        trial.kept.append(ref)
    trial.kept_snapshots[ref] = snapshot
    if snapshot.score is not None and (
        trial.best_kept_score is None or snapshot.score >= trial.best_kept_score
    ):
        trial.best_kept = ref
        trial.best_kept_score = snapshot.score


def superfluous(trial: Trial, best: Best | None) -> list[CheckpointRef]:
    """Checkpoints of the trial that nobody needs any more; they are struck off its list."""
    needed: set[CheckpointRef | None] = set()
    if best is not None and best.trial_id == trial.trial_id:
        needed.add(best.checkpoint)
    if trial.state not in {TrialState.STOPPED, TrialState.FAILED}:
        needed.add(trial.restart_ref)
        if trial.state is not TrialState.PAUSED:
            needed.add(trial.best_kept)
    gone = [ref for ref in trial.kept if ref not in needed]
    if gone:
        trial.kept = [ref for ref in trial.kept if ref in needed]
        for ref in gone:
            trial.kept_snapshots.pop(ref, None)
        if trial.best_kept in gone:
            trial.best_kept, trial.best_kept_score = None, None
    return gone


def older_than_restart(trial: Trial) -> list[CheckpointRef]:
    """What a trial goes on from when the checkpoint that it restarts from cannot be used: its others, the newest first."""
    others = [ref for ref in trial.kept if ref != trial.restart_ref]
    return sorted(others, key=lambda ref: (ref.training_iteration, ref.incarnation), reverse=True)


def forget(trial: Trial, ref: CheckpointRef) -> None:
    """It cannot be used. A trial that would restart from it does so from the next older one, or from scratch."""
    older = older_than_restart(trial)
    trial.kept = [each for each in trial.kept if each != ref]
    trial.kept_snapshots.pop(ref, None)
    if trial.best_kept == ref:
        trial.best_kept, trial.best_kept_score = None, None
    if trial.restart_ref == ref:
        trial.restart_ref = older[0] if older else None
        trial.restart = ORIGIN if trial.restart_ref is None else trial.kept_snapshots[trial.restart_ref]
