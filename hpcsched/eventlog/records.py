"""What the journal holds: one record a line, tagged by `kind`.

A segment (`journal/000N.jsonl`) begins with its driver life's `Header`; then come `Step` records, one for each
event that the core handled, in that order, with what it answered; `Note` records are facts of the driver that are
no events of the core (parts of a set-up, further metrics, warnings); `End` says that the life ended in order.
The steps of all segments, one segment after another, are the whole history: numbered from 1 without a gap.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from hpcsched.core.actions import Action
from hpcsched.core.enums import ExperimentState
from hpcsched.core.events import Event
from hpcsched.core.settings import Settings

SCHEMA_VERSION = 1
"""Of journal and log.h5. A reader refuses what is newer than itself."""


class _Record(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class SegmentEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a new life has read the segment of an earlier one: whatever that one writes later does not count."""

    life: int
    num_bytes: int
    num_records: int


class Header(_Record, frozen=True, tag="header"):
    """First record of each segment. Everything but `life`, `deadline_s`, `provenance`, `argv` and `earlier` is the
    same in each life of an experiment."""

    life: int
    """From 1."""
    experiment: str
    """The text of the experiment file."""
    name: str
    metric: str
    settings: Settings
    began_at: float
    """UNIX seconds of the experiment's time 0."""
    deadline_s: float | None = None
    """Seconds since the experiment began, as known when this life began."""
    provenance: dict[str, Any] = {}
    """Versions of hpcsched, python, torch and Slurm; git commit; names of nodes and GPUs; JSON values."""
    argv: tuple[str, ...] = ()
    earlier: tuple[SegmentEnd, ...] = ()
    schema_version: int = SCHEMA_VERSION


class Step(_Record, frozen=True, tag="step"):
    """One event and the core's answer to it: the unit in which the driver writes."""

    n: int
    """From 1, over all lives."""
    event: Event
    actions: tuple[Action, ...] = ()
    order_id: str | msgspec.UnsetType = msgspec.UNSET
    """Of the user's order that this carries out; it is carried out once. Not written where there is none."""


class Note(_Record, frozen=True, tag="note"):
    """A fact of the driver that the core does not see."""

    time: float
    """Seconds since the experiment began."""
    topic: str
    """One word such as "warning", "setup", "metrics", "scaling", "channel"."""
    text: str = ""
    trial_id: int | None = None
    incarnation: int | None = None
    data: dict[str, Any] = {}


class End(_Record, frozen=True, tag="end"):
    """This life ended in order; nothing follows in its segment."""

    time: float
    state: ExperimentState
    exit_code: int
    why: str = ""


Record: TypeAlias = Header | Step | Note | End
