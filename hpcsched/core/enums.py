"""The closed vocabularies of the core. Values are what the journal holds."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    MAX = "max"
    MIN = "min"


class TrialState(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    PREEMPTING = "preempting"
    PAUSED = "paused"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"


class Outcome(StrEnum):
    """How an incarnation ended."""

    COMPLETED = "completed"
    """The script said it was done (iteration R or its own end) and every rank ended with code 0."""
    PREEMPTED = "preempted"
    """It left at a boundary because it was asked to."""
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    """We ended it: it did not answer, did not leave in time, or had to go at once."""
    NODE_FAILED = "node_failed"
    LAUNCH_FAILED = "launch_failed"
    """No rank ran: the step could not be created, or the devices were not the promised ones."""


class PreemptReason(StrEnum):
    RESIZE = "resize"
    PAUSE = "pause"
    STOP = "stop"
    DEADLINE = "deadline"


class TimerKind(StrEnum):
    START_TIMEOUT = "start_timeout"
    SILENCE_TIMEOUT = "silence_timeout"
    PREEMPT_GRACE = "preempt_grace"
    KILL_WAIT = "kill_wait"
    DRAIN = "drain"
    """Time to ask those still running for their last checkpoint."""
    DEADLINE = "deadline"
    """Nothing counts from here on: what still runs is killed and the experiment finishes."""
    RETRY = "retry"
    """A refused launch may be tried again."""


class AtomState(StrEnum):
    FREE = "free"
    HELD = "held"
    RESERVED = "reserved"
    QUARANTINED = "quarantined"
    DOWN = "down"


class ExperimentState(StrEnum):
    RUNNING = "running"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    FAILED = "failed"
