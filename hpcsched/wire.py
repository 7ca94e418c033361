"""Messages between a trial's rank 0, its node supervisors and the driver: bytes <-> typed values, no sockets.

One frame a message: a msgspec-tagged MessagePack map. `decode_*` raise MessageError for bytes that are no message
(malformed, unknown kind, longer than MAX_BYTES). Every message names trial and incarnation, so that whatever
comes from an old one can be told apart.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import msgspec

from hpcsched.errors import MessageError

MAX_BYTES = 1 << 20
"""Longest message taken, 1 MiB."""


class _Message(msgspec.Struct, frozen=True, tag_field="t", forbid_unknown_fields=True):
    trial_id: int
    incarnation: int


# ---- rank 0 -> driver


class RankHello(_Message, frozen=True, tag="rank_hello"):
    """First word of rank 0; once the process group stands. `setup_s` splits the way there."""

    pid: int
    world_size: int
    setup_s: dict[str, float]
    restored_iteration: int
    """0: from scratch."""
    state_bytes: int = 0
    """About what rank 0 has to write of a checkpoint; 0: not known."""
    lost: tuple[tuple[str, str], ...] = ()
    """(path, why) of each checkpoint that it should have gone on from and could not."""


class Report(_Message, frozen=True, tag="report"):
    """One iteration is done; answered by Reply(seq). Sent again unchanged after a reconnect: `seq` tells."""

    seq: int
    training_iteration: int
    metrics: dict[str, float | None]
    time_this_iter_s: float
    extra: dict[str, float] = {}
    """Throughput, data-wait share and the like."""
    problems: dict[str, str] = {}
    """Metric name -> "nan", "inf" or "-inf" for each that is None in `metrics`."""
    unread: tuple[str, ...] = ()
    """With the first report: hyperparameters that the script has not looked at by then."""


class SavedCheckpoint(_Message, frozen=True, tag="saved"):
    """A checkpoint is complete: its manifest has been renamed."""

    training_iteration: int
    save_s: float
    num_bytes: int
    blocked_s: float | None = None
    """How long training waited for it; None: all of `save_s`."""


class CheckpointTrouble(_Message, frozen=True, tag="save_failed"):
    training_iteration: int
    why: str


class Leaving(_Message, frozen=True, tag="leaving"):
    """Goodbye of rank 0. "completed": the script's loop has ended; "preempted": because it was asked to."""

    how: Literal["completed", "preempted", "failed"]
    training_iteration: int
    why: str = ""
    early: bool = False
    """The script has left its loop by itself, before the last iteration, and was not asked to: what it ends with tells whether that
    was meant."""


# ---- supervisor -> driver


class SupervisorHello(_Message, frozen=True, tag="sup_hello"):
    """The step is there. `step_id`: "JOB.STEP" or ""."""

    node: str
    pid: int
    step_id: str
    devices: tuple[str, ...]
    cores: tuple[int, ...]
    uuids: tuple[str, ...] = ()
    """Of the devices, where NVML tells them."""
    picked: bool = False
    """Slurm chose devices and cores: they are not those of the placement."""


class Heartbeat(_Message, frozen=True, tag="heartbeat"):
    node: str


class RankNow(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank is, as its supervisor sees it. `still_s`: since when it has come no further."""

    rank: int
    iteration: int
    num_collectives: int
    still_s: float
    doing: Literal["stopped", "sleeps", "computes", "data"]


class RankProgress(_Message, frozen=True, tag="progress"):
    """Every few seconds, of the ranks that write down where they are."""

    node: str
    ranks: tuple[RankNow, ...]


class RanksStarted(_Message, frozen=True, tag="ranks_started"):
    node: str
    pids: dict[int, int]
    """rank -> pid."""


class RankExited(_Message, frozen=True, tag="rank_exited"):
    node: str
    rank: int
    code: int
    """Exit code; negative: the signal that ended it."""
    tail: str = ""
    """End of its log when it failed."""
    out_of_memory: bool = False
    gpu_failure: str = ""
    """What its log says of a GPU that has failed by itself; "": nothing."""


class SupervisorGoodbye(_Message, frozen=True, tag="sup_goodbye"):
    """Every rank of this node is proven gone."""

    node: str
    exits: dict[int, int]


class SupervisorRefuses(_Message, frozen=True, tag="sup_refuses"):
    """The ranks cannot be started here: the devices or cores are not the promised ones, or the port is in use."""

    node: str
    problem: Literal["mismatch", "port", "error"]
    why: str
    gpus: tuple[str, ...] = ()
    """GPUs of the placement that are at fault; empty: all of this node."""


class SpareReady(_Message, frozen=True, tag="spare_ready"):
    """A spare (trial_id is its number, incarnation is 0) has preloaded. `cold`: why its ranks will start cold."""

    node: str
    pid: int
    cold: str | None
    preload_s: float


# ---- driver -> rank 0


class Reply(_Message, frozen=True, tag="reply"):
    """Answer to Report(seq). `leave`: None to go on, else the reason."""

    seq: int
    leave: str | None = None


class LeaveOrder(_Message, frozen=True, tag="leave"):
    """Unasked: leave at the next boundary."""

    reason: str


# ---- driver -> supervisor


class SupervisorWelcome(_Message, frozen=True, tag="welcome"):
    """The driver knows it (also the answer to each heartbeat: the driver lives)."""


class KillRanks(_Message, frozen=True, tag="kill"):
    why: str


class TakeTrial(_Message, frozen=True, tag="take_trial"):
    """To a spare: be the supervisor of this incarnation from now on."""

    launch_file: str


ToDriver: TypeAlias = (
    RankHello
    | Report
    | SavedCheckpoint
    | CheckpointTrouble
    | Leaving
    | SupervisorHello
    | Heartbeat
    | RanksStarted
    | RankProgress
    | RankExited
    | SupervisorGoodbye
    | SupervisorRefuses
    | SpareReady
)
FromDriver: TypeAlias = Reply | LeaveOrder | SupervisorWelcome | KillRanks | TakeTrial

_T = TypeVar("_T")

_encoder = msgspec.msgpack.Encoder()
_to_driver: msgspec.msgpack.Decoder[ToDriver] = msgspec.msgpack.Decoder(ToDriver)
_from_driver: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)


def encode(message: ToDriver | FromDriver) -> bytes:
    data = _encoder.encode(message)
    if len(data) > MAX_BYTES:
        raise MessageError(f"message of {len(data)} bytes: at most {MAX_BYTES} are sent")
    return data


def decode_to_driver(data: bytes) -> ToDriver:
    """Raises MessageError."""
    return _decode(_to_driver, data)


def decode_from_driver(data: bytes) -> FromDriver:
    """Raises MessageError."""
    return _decode(_from_driver, data)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    if len(data) > MAX_BYTES:
        raise MessageError(f"message of {len(data)} bytes: at most {MAX_BYTES} are taken")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:  # ValidationError is a DecodeError
        raise MessageError(f"not a message: {error}") from error
