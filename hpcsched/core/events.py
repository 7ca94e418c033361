"""What has happened, in the past tense: the only way anything gets into the core.

All carry `time` (float seconds since the experiment began); events of a trial also `trial_id` and
`incarnation`. An event of an incarnation that is no longer the trial's current one is logged and ignored.
Encoded as tagged JSON objects (`kind`) by msgspec.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from hpcsched.core.actions import CheckpointRef
from hpcsched.core.enums import Outcome, PreemptReason, TimerKind  # noqa: F401  (PreemptReason: re-export for readers)
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.topology.machine import AtomId, Machine

Config: TypeAlias = dict[str, Any]
"""One hyperparameter configuration: JSON values by name."""


class _Event(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    time: float


class _TrialEvent(_Event, frozen=True):
    trial_id: TrialId
    incarnation: Incarnation


class ExperimentBegan(_Event, frozen=True, tag=True):
    machine: Machine
    deadline_s: float | None
    """Seconds since the experiment began; None: no deadline."""


class ExperimentResumed(_Event, frozen=True, tag=True):
    """A new driver life goes on with this experiment. Every incarnation that was alive is gone (the driver has
    ended what was left of it before it says so); the machine may be another one."""

    machine: Machine
    deadline_s: float | None


class MachineChanged(_Event, frozen=True, tag=True):
    """Atoms were set aside or came back for a reason that is not a node's failure (a mismatch, a stranger on a GPU)."""

    down: tuple[AtomId, ...] = ()
    up: tuple[AtomId, ...] = ()
    why: str = ""


class TrialSubmitted(_Event, frozen=True, tag=True):
    """The sampler (or a user) gave a configuration; `trial_id` is the next number."""

    trial_id: TrialId
    config: Config


class SearchExhausted(_Event, frozen=True, tag=True):
    """The sampler has no more configurations."""


class TrialStarted(_TrialEvent, frozen=True, tag=True):
    """All ranks are up and the process group stands; `setup_time_s` is from the StartTrial action to here."""

    setup_time_s: float
    warm: bool = False
    """Its ranks were forked by a spare that had imported everything."""
    state_bytes: int = 0
    """About what rank 0 has to write of a checkpoint; 0: not known."""


class ResultReported(_TrialEvent, frozen=True, tag=True):
    """One iteration is done. `metric` is the raw value in the user's sign, None when missing or not finite."""

    training_iteration: int
    metric: float | None
    time_this_iter_s: float
    problem: str | None = None
    """"nan", "inf", "-inf" or "missing" when metric is None."""


class CheckpointSaved(_TrialEvent, frozen=True, tag=True):
    training_iteration: int
    save_time_s: float
    num_bytes: int = 0
    blocked_s: float | None = None
    """How long training waited for it; None: all of `save_time_s`. A trial that saves in the background and is asked to leave
    finishes that save first, and then makes its last one."""


class CheckpointFailed(_TrialEvent, frozen=True, tag=True):
    training_iteration: int
    why: str


class CheckpointLost(_TrialEvent, frozen=True, tag=True):
    """The incarnation was to go on from this checkpoint, which is not there any more or was damaged; it has gone on from the next
    older one that its trial has, or from scratch. Comes before its TrialStarted."""

    checkpoint: CheckpointRef
    why: str


class TrialExited(_TrialEvent, frozen=True, tag=True):
    """An incarnation is over. `unproven` are atoms whose node did not confirm that the ranks are gone:
    they go into quarantine; all others are free now."""

    outcome: Outcome
    why: str = ""
    unproven: tuple[AtomId, ...] = ()


class LaunchRefused(_TrialEvent, frozen=True, tag=True):
    """Slurm (or a port in use) refused the launch and nothing runs; try again not before `retry_at`."""

    retry_at: float
    why: str


class AtomsReturned(_Event, frozen=True, tag=True):
    """A quarantined step is proven gone."""

    atoms: tuple[AtomId, ...]


class NodeDown(_Event, frozen=True, tag=True):
    node: str
    why: str = ""


class NodeUp(_Event, frozen=True, tag=True):
    node: str


class DeadlineChanged(_Event, frozen=True, tag=True):
    deadline_s: float | None
    why: str = ""


class AllocationEnding(_Event, frozen=True, tag=True):
    """A warning: the allocation ends at `at`; save everything and leave."""

    at: float
    why: str = ""


class TimerFired(_Event, frozen=True, tag=True):
    """A timer that the core has set went off. Timers of a trial carry its id and incarnation."""

    timer: TimerKind
    trial_id: TrialId | None = None
    incarnation: Incarnation | None = None


class TrialStopRequested(_Event, frozen=True, tag=True):
    trial_id: TrialId
    why: str = "the user asked"


class ShutdownRequested(_Event, frozen=True, tag=True):
    """End the experiment. `save`: ask the trials for a last checkpoint first; else kill them now.
    `suspend`: it is to be resumed later (state suspended, exit code 75)."""

    save: bool
    suspend: bool = False
    why: str = ""


Event: TypeAlias = (
    ExperimentBegan
    | ExperimentResumed
    | MachineChanged
    | TrialSubmitted
    | SearchExhausted
    | TrialStarted
    | ResultReported
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointLost
    | TrialExited
    | LaunchRefused
    | AtomsReturned
    | NodeDown
    | NodeUp
    | DeadlineChanged
    | AllocationEnding
    | TimerFired
    | TrialStopRequested
    | ShutdownRequested
)
