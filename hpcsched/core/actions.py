"""What is to be done, in the imperative: the only thing that comes out of the core.

"Continue" is the absence of an action. Every action carries `because`: one short sentence with the numbers
that were compared, for `hpcsched explain`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from hpcsched.core.enums import ExperimentState, PreemptReason, TimerKind
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.topology.machine import Placement


class CheckpointRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A complete checkpoint: `trials/ID/INCARNATION/checkpoint-ITERATION/`."""

    trial_id: TrialId
    incarnation: Incarnation
    training_iteration: int


class _Action(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    because: str


class RequestTrial(_Action, frozen=True, tag=True):
    """Ask the sampler for `num` configurations; answered by TrialSubmitted or SearchExhausted."""

    num: int


class StartTrial(_Action, frozen=True, tag=True):
    trial_id: TrialId
    incarnation: Incarnation
    placement: Placement
    checkpoint: CheckpointRef | None = None


class PreemptTrial(_Action, frozen=True, tag=True):
    """Ask all ranks to leave at the next boundary with a checkpoint."""

    trial_id: TrialId
    incarnation: Incarnation
    reason: PreemptReason


class KillTrial(_Action, frozen=True, tag=True):
    trial_id: TrialId
    incarnation: Incarnation


class SetTimer(_Action, frozen=True, tag=True):
    """Fire `TimerFired` at `at`. One timer a (kind, trial_id): setting it again moves it; at = None drops it."""

    timer: TimerKind
    at: float | None
    trial_id: TrialId | None = None
    incarnation: Incarnation | None = None


class PublishBest(_Action, frozen=True, tag=True):
    """This checkpoint is now the best complete one: `best/` shall hold it."""

    checkpoint: CheckpointRef
    metric: float
    """The windowed score in the user's sign."""


class DeleteCheckpoint(_Action, frozen=True, tag=True):
    """Neither a restart nor the best needs it any more."""

    checkpoint: CheckpointRef


class SuspendExperiment(_Action, frozen=True, tag=True):
    """Everything is saved and gone; the experiment wants to be resumed."""


class FinishExperiment(_Action, frozen=True, tag=True):
    state: ExperimentState
    best_trial_id: TrialId | None


Action: TypeAlias = (
    RequestTrial
    | StartTrial
    | PreemptTrial
    | KillTrial
    | SetTimer
    | PublishBest
    | DeleteCheckpoint
    | SuspendExperiment
    | FinishExperiment
)
