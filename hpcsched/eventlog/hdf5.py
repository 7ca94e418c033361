"""Sealing: journal -> log.h5.

The log is made from the journal alone, in a temporary file of the same folder that is renamed when it is
complete and synced. So `log.h5` is at every instant a closed, whole file that any HDF5 tool opens, a killed seal leaves
the old one, and nothing ever locks or appends to a file that others read (Lustre, GPFS, NFS). The journal is read as a
stream and tables are written in blocks: memory does not grow with results, events or actions.

A `LogMaker` can follow a journal that is still written, so that the last seal only adds what came since: it keeps its
temporary file and puts copies of it in place meanwhile, each completed by what may still change (trials, the best, holdings
that last, attributes).
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np

from hpcsched.core.actions import Action
from hpcsched.core.events import Event, ResultReported
from hpcsched.errors import LogError, RunFolderError
from hpcsched.eventlog import schema
from hpcsched.eventlog.holdings import Holding
from hpcsched.eventlog.reader import JournalReader, require_journal
from hpcsched.eventlog.records import SCHEMA_VERSION, Note, Record, Step
from hpcsched.eventlog.state import RunState
from hpcsched.eventlog.status import as_dict
from hpcsched.runfolder import RunFolder

_BLOCK = 4096
"""Rows written at once; also the chunk of the datasets."""
_ABANDONED_S = 3600.0
"""A temporary file that is older was left by a killed seal."""
_encode = msgspec.json.Encoder().encode


def seal(folder: RunFolder, *, to: Path | None = None) -> Path:
    """Make `log.h5` (or the file `to`) from what the journal holds now and return its path.

    Raises RunFolderError when it cannot be written, JournalDamagedError, LogError.
    """
    maker = LogMaker(folder, to=to)
    try:
        maker.poll()
        return maker.publish(last=True)
    finally:
        maker.close()


@contextlib.contextmanager
def _said(folder: RunFolder, target: Path) -> Iterator[None]:
    """h5py raises OSError and RuntimeError when a write fails, with texts of its own."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise RunFolderError(
            f"{target}: cannot be written: {error}. The journal is whole: `hpcsched report {folder.root}` makes the "
            "log again when there is space."
        ) from error


class LogMaker:
    """`log.h5` in the making: `poll` adds what the journal has, `publish` puts a whole file in place. After an error only `close`.

    All raise RunFolderError when it cannot be written, JournalDamagedError, LogError.
    """

    def __init__(self, folder: RunFolder, *, to: Path | None = None) -> None:
        require_journal(folder)
        self._folder = folder
        self._target = to or folder.log
        self._temporary = self._new_name()
        self._file: h5py.File | None = None
        with _said(folder, self._target):
            _remove_abandoned(self._target.parent)
            os.close(os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            try:
                # locking=False: nobody else knows the name, and some parallel file systems refuse locks.
                self._file = h5py.File(self._temporary, "w", locking=False)
                self._sealer = _Sealer(folder, self._file)
            except BaseException:
                self.close()
                raise

    def _new_name(self) -> Path:
        return self._target.parent / f".log.h5-{os.getpid()}-{time.time_ns():x}"

    def poll(self) -> None:
        """Add what has come since the last call."""
        with _said(self._folder, self._target):
            self._sealer.poll()
            os.utime(self._temporary)  # else another seal takes it for abandoned after an hour

    def publish(self, *, last: bool = False) -> Path:
        """`log.h5` as of the last `poll`. `last`: it is the only or the last time."""
        file = self._file
        assert file is not None, "published for the last time already"
        with _said(self._folder, self._target):
            self._sealer.flush()
            if last:
                self._sealer.finish(file, self._sealer.tables)
                self._file = None
                file.close()
                whole = self._temporary
            else:
                file.flush()
                whole = self._new_name()
                self._copy_to(whole)
            try:
                with whole.open("rb") as stream:
                    os.fsync(stream.fileno())
                whole.rename(self._target)
            except BaseException:
                with contextlib.suppress(OSError):
                    whole.unlink()
                raise
        return self._target

    def _copy_to(self, whole: Path) -> None:
        try:
            os.close(os.open(whole, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            shutil.copyfile(self._temporary, whole)
            with h5py.File(whole, "r+", locking=False) as copy:
                tables = {name: table.in_copy(copy) for name, table in self._sealer.tables.items()}
                self._sealer.finish(copy, tables)
        except BaseException:
            with contextlib.suppress(OSError):
                whole.unlink()
            raise

    def close(self) -> None:
        """Leaves nothing but what was published. Idempotent."""
        with contextlib.suppress(OSError):
            self._temporary.unlink()
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError, RuntimeError):
                file.close()


class _TableWriter:
    """Rows of one table, written block by block."""

    def __init__(self, dataset: h5py.Dataset, table: schema.Table) -> None:
        self._table = table
        self._dtype = table.dtype
        self._rows: list[tuple[Any, ...]] = []
        self._dataset = dataset

    @staticmethod
    def make(file: h5py.File, table: schema.Table) -> _TableWriter:
        dataset = file.create_dataset(
            table.name,
            shape=(0,),
            maxshape=(None,),
            dtype=table.dtype,
            chunks=(_BLOCK,),
            compression="gzip",
            compression_opts=1,
            shuffle=True,
        )
        dataset.attrs["description"] = table.meaning
        for column in table.columns:
            dataset.attrs[f"{column.name}.description"] = column.meaning
            if column.unit:
                dataset.attrs[f"{column.name}.units"] = column.unit
        return _TableWriter(dataset, table)

    def in_copy(self, copy: h5py.File) -> _TableWriter:
        """The same table of a copy of the file."""
        assert not self._rows, "flushed before the file was copied"
        return _TableWriter(copy[self._table.name], self._table)

    def add(self, *row: Any) -> None:
        self._rows.append(row)
        if len(self._rows) == _BLOCK:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        begin = self._dataset.shape[0]
        self._dataset.resize((begin + len(self._rows),))
        self._dataset[begin:] = np.array(self._rows, dtype=self._dtype)
        self._rows.clear()


class _Sealer:
    def __init__(self, folder: RunFolder, file: h5py.File) -> None:
        self.tables = {table.name: _TableWriter.make(file, table) for table in schema.TABLES}
        self._results = self.tables["results"]
        self._placements = self.tables["placements"]
        self._events = self.tables["events"]
        self._actions = self.tables["actions"]
        self._notes = self.tables["notes"]
        self._reader = JournalReader(folder)
        self._state = RunState(on_holding=lambda holding: self._holding(holding, self._placements))

    def poll(self) -> None:
        generation = self._reader.generation
        for record in self._reader.poll():
            if self._reader.generation != generation:
                raise LogError(
                    f"{self._reader.folder.journal}: another driver has taken over; the log begins anew"
                )
            self._state.feed(record)
            self._record(record, self._state)

    def flush(self) -> None:
        """Every row is in the file."""
        for table in self.tables.values():
            table.flush()

    def finish(self, file: h5py.File, tables: dict[str, _TableWriter]) -> None:
        """What may still change, and the attributes: into our own file for good, or into a copy."""
        state, reader = self._state, self._reader
        header = state.header  # raises when there is none
        for holding in state.holdings():
            self._holding(holding, tables["placements"])
        for trial in state.scheduler.trials:
            tables["trials"].add(
                trial.trial_id,
                _encode(trial.config).decode(),
                trial.state.value,
                _or_nan(state.best_metric.get(trial.trial_id)),
                trial.training_iteration,
            )
        for best in state.best_curve:
            ref = best.checkpoint
            tables["best_curve"].add(
                best.published_s,
                ref.trial_id,
                ref.incarnation,
                ref.training_iteration,
                best.metric,
                best.saved_s,
            )
        for table in tables.values():
            table.flush()
        machine = state.machine
        attributes: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "experiment": header.experiment,
            "began_at": header.began_at,
            "deadline_s": _or_nan(state.deadline_s),
            "metric": header.metric,
            "mode": header.settings.mode.value,
            "name": header.name,
            "state": (state.scheduler.state if state.end is None else state.end.state).value,
            "over_s": _or_nan(state.over_at),
            "last_s": state.now,
            "settings": _encode(header.settings).decode(),
            "provenance": _encode(header.provenance).decode(),
            "num_atoms": 0 if machine is None else len(machine.atoms),
            "gpus_per_atom": 1 if machine is None else machine.gpus_per_atom,
            "best": _encode(
                None
                if state.best is None
                else {
                    **as_dict(state.best.checkpoint),
                    "metric": state.best.metric,
                    "saved_s": state.best.saved_s,
                }
            ).decode(),
            "counts": _encode(as_dict(state.scheduler.counts)).decode(),
            "atom_seconds": _encode(
                as_dict(state.scheduler.atom_seconds(state.now if state.over_at is None else state.over_at))
            ).decode(),
            "num_lives": state.num_lives,
            "journal_bytes": sum(end.num_bytes for end in reader.ends),
        }
        assert attributes.keys() == schema.ROOT_ATTRIBUTES.keys(), "the documented ones are the written ones"
        for name, value in attributes.items():
            file.attrs[name] = _text(value) if isinstance(value, str) else value

    def _record(self, record: Record, state: RunState) -> None:
        match record:
            case Step(event=event, actions=actions):
                self._event(event, state)
                for action in actions:
                    self._action(action, event.time)
            case Note():
                self._notes.add(
                    record.time,
                    _text(record.topic),
                    -1 if record.trial_id is None else record.trial_id,
                    -1 if record.incarnation is None else record.incarnation,
                    _text(record.text),
                    _encode(record.data).decode(),
                )
                measures = record.data.get("measures")
                if record.topic == "metrics" and isinstance(measures, dict):
                    self.tables["measures"].add(
                        record.time,
                        record.trial_id,
                        record.incarnation,
                        record.data["training_iteration"],
                        *(
                            float(measures.get(name, math.nan))
                            for name in ("samples_per_s", "data_wait", "communication", "overhead")
                        ),
                    )
            case _:
                pass

    def _event(self, event: Event, state: RunState) -> None:
        kind, trial_id, incarnation, rest = _split(event, "time")
        self._events.add(event.time, kind, trial_id, incarnation, rest)
        if isinstance(event, ResultReported):
            trial = state.scheduler.trials[event.trial_id]
            if trial.incarnation == event.incarnation:
                self._results.add(
                    event.time,
                    event.trial_id,
                    event.incarnation,
                    event.training_iteration,
                    _or_nan(event.metric),
                    state.num_atoms_of(event.trial_id),
                    event.time_this_iter_s,
                )

    def _action(self, action: Action, at: float) -> None:
        kind, trial_id, incarnation, rest = _split(action, "because")
        self._actions.add(at, kind, trial_id, incarnation, rest, _text(action.because))

    def _holding(self, holding: Holding, placements: _TableWriter) -> None:
        for gpu in holding.gpus:
            placements.add(
                holding.trial_id,
                holding.incarnation,
                holding.node,
                gpu,
                holding.from_s,
                _or_nan(holding.to_s),
            )


def _split(value: Event | Action, column: str) -> tuple[str, int, int, str]:
    """Kind, trial id, incarnation, and all other fields but `column` as JSON."""
    fields = msgspec.structs.asdict(value)
    del fields[column]
    trial_id = fields.pop("trial_id", None)
    incarnation = fields.pop("incarnation", None)
    checkpoint = fields.get("checkpoint")
    if trial_id is None and incarnation is None and checkpoint is not None:
        trial_id, incarnation = checkpoint.trial_id, checkpoint.incarnation
    return (
        type(value).__name__,
        -1 if trial_id is None else trial_id,
        -1 if incarnation is None else incarnation,
        _encode(fields).decode(),
    )


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _text(value: str) -> str:
    """HDF5's variable-length strings end at a NUL; surrogates are no UTF-8."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(".log.h5-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()


def is_up_to_date(folder: RunFolder) -> bool:
    """Whether log.h5 is there and holds all of the journal."""
    try:
        with h5py.File(folder.log, "r", locking=False) as file:
            held = int(file.attrs["journal_bytes"])
            version = int(file.attrs["schema_version"])
    except (OSError, KeyError):
        return False
    if version > SCHEMA_VERSION:
        raise LogError(
            f"{folder.log}: schema {version} of a newer hpcsched; this one reads up to {SCHEMA_VERSION}"
        )
    return version == SCHEMA_VERSION and held >= _counted_bytes(folder)


def _counted_bytes(folder: RunFolder) -> int:
    """Bytes of the journal up to the last line feed of each segment."""
    total = 0
    for path in folder.journal.glob("*.jsonl"):
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            end = size
            while end > 0:
                begin = max(0, end - 65536)
                stream.seek(begin)
                found = stream.read(end - begin).rfind(b"\n")
                if found >= 0:
                    total += begin + found + 1
                    break
                end = begin
    return total
