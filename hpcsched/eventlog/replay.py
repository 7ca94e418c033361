"""Replay: the logged events through a core of today, and its answers against the logged ones.

The core is a function of its settings and of the events it was given (time is in the events, there is no other
input), so equal actions prove that the log holds everything that decided, and that this version of the core decides
as the one that wrote it. The events of all lives are one sequence; a new life begins with ExperimentResumed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hpcsched.core.actions import Action
from hpcsched.core.scheduler import Scheduler
from hpcsched.errors import LogError, ReplayDiffersError
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header, Record, Step
from hpcsched.runfolder import RunFolder

_encoder = msgspec.json.Encoder()
_actions: msgspec.json.Decoder[tuple[Action, ...]] = msgspec.json.Decoder(tuple[Action, ...])


class ReplayResult(msgspec.Struct, frozen=True):
    num_events: int
    num_actions: int
    num_lives: int


class Replayer:
    """A core that is fed from the journal. Give it every record in order.

    `strict = False`: the first difference is kept in `difference` and the core goes on with the events, for those who
    only show a log that another version has written.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self.difference: ReplayDiffersError | None = None
        self._header: Header | None = None
        self._scheduler: Scheduler | None = None
        self.num_events = 0
        self.num_actions = 0
        self.num_lives = 0

    @property
    def header(self) -> Header:
        """Of the first life. Raises LogError before there is one."""
        if self._header is None:
            raise LogError("the journal has no header yet: its first driver died before it had written one")
        return self._header

    @property
    def scheduler(self) -> Scheduler:
        """The core as it is after the records given so far. Raises LogError before the header."""
        self.header  # noqa: B018  (raises)
        assert self._scheduler is not None, "made with the header"
        return self._scheduler

    def feed(self, record: Record) -> None:
        """Raises ReplayDiffersError at the first step that the core answers otherwise than the log says."""
        match record:
            case Header():
                self._begin(record)
            case Step():
                self._step(record)
            case _:
                pass

    def _begin(self, header: Header) -> None:
        self.num_lives += 1
        if self._header is None:
            self._header = header
            self._scheduler = Scheduler(header.settings)
        elif header.settings != self._header.settings:
            self._differs(
                f"life {header.life} has other settings than life {self._header.life}; one experiment has one:\n"
                + _side_by_side(
                    [self._header.settings], [header.settings], "first life", f"life {header.life}"
                )
            )

    def _step(self, step: Step) -> None:
        try:
            got = tuple(self.scheduler.handle(step.event))
        except Exception as error:  # whatever a core of another version, or a false log, runs into
            raise ReplayDiffersError(
                f"event {step.n} ({type(step.event).__name__} at {step.event.time:.3f} s): this core cannot take it: "
                f"{type(error).__name__}: {error}\n  event: {_json(step.event)}"
            ) from error
        # A value such as 30 comes back from JSON as 30.0, a list in a config is no tuple any more: only what differs
        # at first sight is compared in the form that the journal would give it.
        if got != step.actions and _actions.decode(_encoder.encode(got)) != step.actions:
            self._differs(
                f"event {step.n} ({type(step.event).__name__} at {step.event.time:.3f} s) is answered otherwise than the "
                f"log says.\n  event: {_json(step.event)}\n"
                + _side_by_side(step.actions, got, "log", "replay")
            )
        self.num_events += 1
        self.num_actions += len(got)

    def _differs(self, what: str) -> None:
        if self._strict:
            raise ReplayDiffersError(what)
        if self.difference is None:
            self.difference = ReplayDiffersError(what)


class LiveCore:
    """A core that somebody else feeds, in the place of a Replayer."""

    difference: ReplayDiffersError | None = None

    def __init__(self, header: Header, scheduler: Scheduler) -> None:
        """`header`: of the first life."""
        self.header = header
        self.scheduler = scheduler
        self.num_events = self.num_actions = self.num_lives = 0

    def feed(self, record: Record) -> None:
        match record:
            case Header():
                self.num_lives += 1
            case Step():
                self.num_events += 1
                self.num_actions += len(record.actions)
            case _:
                pass


def replay(folder: RunFolder) -> ReplayResult:
    """Raises ReplayDiffersError with the first difference, JournalDamagedError, RunFolderError."""
    replayer = Replayer()
    for record in read_journal(folder):
        replayer.feed(record)
    replayer.header  # noqa: B018  (raises when there was none)
    return ReplayResult(replayer.num_events, replayer.num_actions, replayer.num_lives)


def _side_by_side(expected: Sequence[object], got: Sequence[object], left: str, right: str) -> str:
    """Line for line; "!" marks the lines that differ."""
    a = [_json(item) for item in expected]
    b = [_json(item) for item in got]
    lines = []
    for k in range(max(len(a), len(b))):
        one = a[k] if k < len(a) else "(nothing)"
        two = b[k] if k < len(b) else "(nothing)"
        mark = " " if one == two else "!"
        lines += [f"{mark} {k + 1:3} {left:>10}: {one}", f"{mark}     {right:>10}: {two}"]
    return "\n".join(lines) or "  no actions on either side"


def _json(value: object) -> str:
    return _encoder.encode(value).decode()
