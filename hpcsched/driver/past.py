"""What a run folder's journal says about the driver lives before: the core as it stood, by handling every event again."""

from __future__ import annotations

import msgspec

from hpcsched.core import events as ev
from hpcsched.core.actions import PublishBest
from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver.painter import Painter
from hpcsched.driver.told import tell_sampler
from hpcsched.driver.undone import Undone
from hpcsched.errors import LogError, ReplayDiffersError
from hpcsched.eventlog.reader import JournalReader
from hpcsched.eventlog.records import End, Header, SegmentEnd, Step
from hpcsched.runfolder import RunFolder
from hpcsched.search.samplers import Sampler


class Past(msgspec.Struct):
    """The lives before, folded into what the next one goes on from."""

    header: Header
    """Of the first life."""
    scheduler: Scheduler
    painter: Painter
    """Has taken in all records."""
    end: End | None = None
    """The last life's last word; None: it had none."""
    last_n: int = 0
    """Number of the last step."""
    last_time_s: float = 0.0
    """Seconds since the experiment began, of the latest event."""
    best: PublishBest | None = None
    """The last word on the best; it may not have been carried out."""
    undone: Undone = msgspec.field(default_factory=Undone)
    """What it may not have tidied up any more."""
    told: dict[TrialId, tuple[int, TrialState]] = msgspec.field(default_factory=dict)
    """What the sampler was told (see `tell_sampler`)."""
    order_ids: set[str] = msgspec.field(default_factory=set)
    """Users' orders that have been carried out."""
    ends: tuple[SegmentEnd, ...] = ()
    """How far each segment was read, for the next header."""


def read_past(folder: RunFolder, sampler: Sampler) -> Past:
    """Replay the journal into a core and a fresh sampler.

    Raises LogError without a header, JournalDamagedError, and ReplayDiffersError when this version's core answers an event
    otherwise than the log says.
    """
    reader = JournalReader(folder)
    past: Past | None = None
    for record in reader.poll():
        match record:
            case Header():
                if past is None:
                    scheduler = Scheduler(record.settings)
                    past = Past(record, scheduler, Painter(folder, record, scheduler))
            case Step():
                assert past is not None, "the reader checks that a header comes first"
                _replay(folder, past, record, sampler)
            case _:
                pass
        assert past is not None, "the reader checks that a header comes first"
        past.end = record if isinstance(record, End) else None
        past.painter.take(record)
    if past is None:
        raise LogError(f"{folder.journal}: the journal has no header: nothing was ever begun here")
    past.ends = reader.ends
    return past


def _replay(folder: RunFolder, past: Past, step: Step, sampler: Sampler) -> None:
    if isinstance(step.event, ev.TrialSubmitted):
        if sampler.learns:
            sampler.ask(step.event.trial_id)
        sampler.rebuild([(step.event.trial_id, step.event.config)])
    actions = past.scheduler.handle(step.event)
    if tuple(actions) != tuple(step.actions):
        raise ReplayDiffersError(
            f"{folder.root}: event {step.n} is answered otherwise by this version of hpcsched than the log says, so the "
            f"run cannot be resumed with it. Use the version of the log "
            f"({past.header.provenance.get('hpcsched', 'unknown')}), or begin a new run. "
            f"`hpcsched replay {folder.root}` shows the difference"
        )
    past.last_n = step.n
    if step.order_id is not msgspec.UNSET:
        past.order_ids.add(step.order_id)
    past.last_time_s = max(past.last_time_s, step.event.time)
    for action in actions:
        if isinstance(action, PublishBest):
            past.best = action
    past.undone.take(step)
    tell_sampler(sampler, past.scheduler, step.event, past.told)
