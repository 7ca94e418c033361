"""The picture of a large run: `picture.json`, so that nobody has to read a million records to see where it stands.

Theory. Views are folded from the journal, by a core that handles every event again: exact, and half a minute for a million
results. The driver has that core already. Once a run is large it therefore keeps a picture of everything that views show beside
the journal, replaced as a whole every second or more; it says up to which record it goes. A reader takes the picture when the
journal is large and

- a driver of the picture's life holds the lease: the picture is then seconds old at most; or
- nobody drives, and the journal ends with the very record that the picture ends with.

Else the journal is read, as for small runs, and, when nobody drives, the picture is left for the next reader. It holds
nothing that the journal does not: it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcsched.core.enums import AtomState, ExperimentState, TrialState
from hpcsched.core.events import Config
from hpcsched.core.ids import TrialId
from hpcsched.core.ledger import AtomSeconds
from hpcsched.core.scheduler import Counts
from hpcsched.errors import ReplayDiffersError
from hpcsched.eventlog.facts import Aside, BestSoFar
from hpcsched.eventlog.lease import Holder
from hpcsched.eventlog.reader import segments_of
from hpcsched.eventlog.records import SCHEMA_VERSION, End, Header, Note
from hpcsched.eventlog.state import RunState
from hpcsched.runfolder import RunFolder
from hpcsched.topology.machine import AtomId, Machine

FROM_RECORDS = 10_000
"""A run with fewer has no picture: its journal is read in an instant."""
FROM_BYTES = 4_000_000
"""Readers of a smaller journal read it whatever there is."""
MOST_POINTS = 1000
"""Of the best curve."""
MOST_WARNINGS = 5
_TAIL_BYTES = 1 << 18


class TrialPicture(msgspec.Struct, frozen=True, array_like=True):
    """A row; see `core.trial.Trial`."""

    trial_id: TrialId
    state: TrialState
    training_iteration: int
    num_atoms: int
    last_iter_s: float | None
    crashes: int
    best_metric: float | None
    """User's sign."""
    dropped_because: str
    because: str
    config: Config


class Picture(msgspec.Struct, frozen=True):
    """Everything that views show of a run, at one record."""

    schema_version: int
    life: int
    last_n: int
    """Number of the last step in it."""
    num_records: int
    header: Header
    """Of the first life."""
    now: float
    state: ExperimentState
    """The core's."""
    why_ended: str
    deadline_s: float | None
    over_at: float | None
    end: End | None
    best: BestSoFar | None
    best_curve: list[BestSoFar]
    warnings: list[Note]
    aside: dict[AtomId, Aside]
    stalls: dict[TrialId, Note]
    num_checkpoints: int
    sum_checkpoint_bytes: int
    counts: Counts
    atom_seconds: AtomSeconds
    machine: Machine | None
    atoms: list[tuple[AtomState, TrialId | None]]
    trials: list[TrialPicture]
    difference: str = ""
    """How the core that folded it decided otherwise than the log says; "" when it did not."""


def picture_of(run: RunState) -> Picture:
    """O(trials + atoms): some 20 ms for 10,000 trials."""
    core = run.scheduler
    best_metric, because = run.best_metric, run.because
    curve = run.best_curve
    if len(curve) > MOST_POINTS:
        step = -(-len(curve) // MOST_POINTS)
        curve = [*curve[:-1:step], curve[-1]]
    machine = run.machine
    return Picture(
        schema_version=SCHEMA_VERSION,
        life=run.life,
        last_n=run.last_n,
        num_records=run.num_records,
        header=run.header,
        now=run.now,
        state=core.state,
        why_ended=core.why_ended,
        deadline_s=run.deadline_s,
        over_at=run.over_at,
        end=run.end,
        best=run.best,
        best_curve=curve,
        warnings=run.warnings[-MOST_WARNINGS:],
        aside=run.aside,
        stalls=run.stalls,
        num_checkpoints=run.num_checkpoints,
        sum_checkpoint_bytes=run.sum_checkpoint_bytes,
        counts=core.counts,
        atom_seconds=core.atom_seconds(run.now if run.over_at is None else run.over_at),
        machine=machine,
        atoms=[]
        if machine is None
        else [(core.atom_state(atom.atom_id), core.holder(atom.atom_id)) for atom in machine.atoms],
        trials=[
            TrialPicture(
                trial.trial_id,
                trial.state,
                trial.training_iteration,
                trial.num_atoms,
                trial.last_iter_s,
                trial.crashes,
                best_metric.get(trial.trial_id),
                trial.dropped_because,
                because.get(trial.trial_id, ""),
                trial.config,
            )
            for trial in core.trials
        ],
        difference="" if run.difference is None else str(run.difference),
    )


class PicturedCore:
    """In place of the core that a folded journal has."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self.state = picture.state
        self.why_ended = picture.why_ended
        self.trials: Sequence[TrialPicture] = picture.trials
        self.counts = picture.counts

    def atom_state(self, atom_id: AtomId) -> AtomState:
        return self._picture.atoms[atom_id][0]

    def holder(self, atom_id: AtomId) -> TrialId | None:
        return self._picture.atoms[atom_id][1]

    def atom_seconds(self, now: float | None = None) -> AtomSeconds:  # noqa: ARG002  # as of the picture, whatever is asked
        return self._picture.atom_seconds


class PicturedRun:
    """A `ShownRun` from a picture."""

    def __init__(self, picture: Picture) -> None:
        self.difference = ReplayDiffersError(picture.difference) if picture.difference else None
        self.picture = picture
        self.header = picture.header
        self.scheduler = PicturedCore(picture)
        self.machine = picture.machine
        self.now = picture.now
        self.deadline_s = picture.deadline_s
        self.best = picture.best
        self.best_curve = picture.best_curve
        self.best_metric = {
            trial.trial_id: trial.best_metric for trial in picture.trials if trial.best_metric is not None
        }
        self.because = {trial.trial_id: trial.because for trial in picture.trials if trial.because}
        self.over_at = picture.over_at
        self.end = picture.end
        self.warnings = picture.warnings
        self.aside = picture.aside
        self.stalls = picture.stalls
        self.num_checkpoints = picture.num_checkpoints
        self.sum_checkpoint_bytes = picture.sum_checkpoint_bytes
        self.num_records = picture.num_records


def encoded(picture: Picture) -> bytes:
    return msgspec.json.encode(picture)


def write_picture(folder: RunFolder, data: bytes) -> None:
    """Whole or not at all. Raises OSError."""
    fresh = folder.picture.with_name(f".{folder.picture.name}-{os.getpid()}")
    try:
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write(data)
        fresh.rename(folder.picture)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


class Pictures:
    """Looks at a run's picture again and again; decodes it when it has changed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._run: PicturedRun | None = None

    def newest(self) -> PicturedRun | None:
        """Whether it is of use or not; None: there is none that this version can read, or the run is small."""
        try:
            found = self._folder.picture.stat()
            if journal_bytes(self._folder) < FROM_BYTES:
                return None
            if self._seen != (found.st_mtime_ns, found.st_ino):
                data = self._folder.picture.read_bytes()
                self._seen = (found.st_mtime_ns, found.st_ino)
                picture = msgspec.json.decode(data, type=Picture)
                self._run = PicturedRun(picture) if picture.schema_version == SCHEMA_VERSION else None
        except (OSError, msgspec.DecodeError):
            self._run = None
        return self._run

    def usable(self, holder: Holder | None) -> PicturedRun | None:
        """The picture, when it says all that the journal does (or will say within seconds)."""
        run = self.newest()
        if run is None:
            return None
        picture = run.picture
        lives = segments_of(self._folder)
        if not lives or lives[-1] != picture.life:
            return None
        if holder is not None and holder.holds:
            return run
        last_n, has_end = last_of(self._folder.segment(picture.life))
        return run if (last_n, has_end) == (picture.last_n, picture.end is not None) else None


def journal_bytes(folder: RunFolder) -> int:
    total = 0
    for life in segments_of(folder):
        with contextlib.suppress(OSError):
            total += folder.segment(life).stat().st_size
    return total


def last_of(segment: Path) -> tuple[int | None, bool]:
    """Number of the last whole step near the end of a segment (None: none was found there), and whether the life has ended
    in order."""
    try:
        with segment.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read().split(b"\n")
    except OSError:
        return None, False
    has_end = False
    for line in reversed(lines[:-1]):  # behind the last line feed is what was torn
        try:
            record: Any = msgspec.json.decode(line)["record"]
        except (msgspec.DecodeError, KeyError, TypeError):
            return None, False
        if record.get("kind") == "end":
            has_end = True
        elif record.get("kind") == "step":
            return int(record["n"]), has_end
    return None, has_end


def leave_picture(folder: RunFolder, run: RunState, holder: Holder | None) -> None:
    """By a reader that has folded the whole of a large journal that nobody writes: for the next one."""
    if run.num_records < FROM_RECORDS or (holder is not None and holder.holds):
        return
    with contextlib.suppress(OSError):  # somebody else's folder, or a full disk: the next reader folds again
        write_picture(folder, encoded(picture_of(run)))
