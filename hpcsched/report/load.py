"""`hpcsched.load(RUN)`: a run's log as NumPy arrays, and as pandas frames where pandas is installed."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcsched.core.words import no_such_trial
from hpcsched.errors import InputError, LogError, RunFolderError
from hpcsched.eventlog import schema
from hpcsched.eventlog.hdf5 import is_up_to_date, seal
from hpcsched.eventlog.lease import holder_of, this_host
from hpcsched.eventlog.picture import journal_bytes
from hpcsched.eventlog.records import SCHEMA_VERSION
from hpcsched.report.text import clean_line
from hpcsched.runfolder import RunFolder

LARGE_BYTES = 50_000_000
"""Of a journal: sealing it takes ten seconds and more."""
Rows = npt.NDArray[np.void]
"""A structured array; text columns hold `str` objects."""


class RunLog:
    """One sealed log. Tables are read when first asked for, and kept.

    `trials`, `results`, `measures`, `placements`, `best_curve`, `events`, `actions`, `notes`: structured arrays with the columns of the documented
    schema (`hpcsched/docs/log_schema.md`); times are seconds since the experiment began, an unknown float is NaN.
    """

    def __init__(self, file: Path, keep: tempfile.TemporaryDirectory[str] | None = None) -> None:
        """Raises LogError when `file` is no log of ours."""
        self.file = file
        self._keep = keep  # holds the folder of a log that could not be made in its run folder
        try:
            with h5py.File(file, "r", locking=False) as opened:
                attributes = {name: opened.attrs[name] for name in schema.ROOT_ATTRIBUTES}
        except (OSError, KeyError) as error:
            raise LogError(f"{file}: not a log of hpcsched: {error}") from error
        if int(attributes["schema_version"]) > SCHEMA_VERSION:
            raise LogError(
                f"{file}: schema {attributes['schema_version']} of a newer hpcsched; this one reads up to {SCHEMA_VERSION}"
            )
        self.schema_version = int(attributes["schema_version"])
        self.experiment = str(attributes["experiment"])
        """The experiment file's text."""
        self.name = str(attributes["name"])
        self.metric = str(attributes["metric"])
        self.mode = str(attributes["mode"])
        self.state = str(attributes["state"])
        self.began_at = float(attributes["began_at"])
        """UNIX seconds."""
        self.deadline_s = _or_none(attributes["deadline_s"])
        self.over_s = _or_none(attributes["over_s"])
        """When the core ended or suspended it; None: it was still running when the log was made."""
        self.last_s = float(attributes["last_s"])
        self.num_atoms = int(attributes["num_atoms"])
        self.gpus_per_atom = int(attributes["gpus_per_atom"])
        self.num_lives = int(attributes["num_lives"])
        self.settings: dict[str, Any] = json.loads(attributes["settings"])
        self.provenance: dict[str, Any] = json.loads(attributes["provenance"])
        self.best: dict[str, Any] | None = json.loads(attributes["best"])
        """trial_id, incarnation, training_iteration, metric, saved_s of the best complete checkpoint."""
        self.counts: dict[str, int] = json.loads(attributes["counts"])
        self.atom_seconds: dict[str, float] = json.loads(attributes["atom_seconds"])

    def __repr__(self) -> str:
        name = clean_line(self.name, 60)
        return f"RunLog({str(self.file)!r}: {name}, {self.state}, {len(self.trials)} trials, {len(self.results)} results)"

    @property
    def end_s(self) -> float:
        """Where pictures end: when it was over, else the last record."""
        return self.last_s if self.over_s is None else self.over_s

    @property
    def sign(self) -> float:
        """Times a metric: higher is better."""
        return 1.0 if self.mode == "max" else -1.0

    @cached_property
    def trials(self) -> Rows:
        return self.table("trials")

    @cached_property
    def results(self) -> Rows:
        return self.table("results")

    @cached_property
    def measures(self) -> Rows:
        return self.table("measures")

    @cached_property
    def placements(self) -> Rows:
        return self.table("placements")

    @cached_property
    def best_curve(self) -> Rows:
        return self.table("best_curve")

    @cached_property
    def events(self) -> Rows:
        return self.table("events")

    @cached_property
    def actions(self) -> Rows:
        return self.table("actions")

    @cached_property
    def notes(self) -> Rows:
        return self.table("notes")

    def config(self, trial_id: int) -> dict[str, Any]:
        """Raises InputError when there is no such trial."""
        if not 0 <= trial_id < len(self.trials):
            raise InputError(f"{self.file}: {no_such_trial(trial_id, len(self.trials))}")
        config: dict[str, Any] = json.loads(self.trials["config"][trial_id])
        return config

    def table(self, name: str) -> Rows:
        """Read one table anew."""
        with h5py.File(self.file, "r", locking=False) as opened:
            raw = opened[name][:]
        rows = np.empty(raw.shape, dtype=[(field, _plain(raw.dtype[field])) for field in raw.dtype.names])
        for field in raw.dtype.names:
            column = raw[field]
            rows[field] = (
                [text.decode("utf-8", "replace") for text in column] if column.dtype.hasobject else column
            )
        return rows

    def frame(self, name: str) -> Any:
        """One table as a pandas frame. Raises LogError when pandas is not installed."""
        try:
            import pandas as pd  # type: ignore[import-untyped, unused-ignore]  # optional, stubs are too
        except ImportError as error:
            raise LogError(
                "frames need pandas: `pip install pandas`; the tables are NumPy arrays without it"
            ) from error
        return pd.DataFrame.from_records(self.table(name))


def load(run: str | Path) -> RunLog:
    """Read a run's log: a run folder, or a log.h5.

    When the folder's log is missing or older than its journal, it is made from the journal first (into a temporary
    folder when the run folder cannot be written). Of a large run that is still driven the driver's own latest log is taken as it
    is, some minutes old (`last_s` says how far it goes): to make it anew would take as long. Raises RunFolderError, JournalDamagedError, LogError.
    """
    path = Path(run)
    if path.is_file():
        return RunLog(path)
    folder = RunFolder(path)
    if not folder.journal.is_dir() and folder.log.is_file():
        return RunLog(folder.log)  # somebody has copied the log alone
    if not folder.journal.is_dir():
        raise RunFolderError(f"{path}: neither a run folder (no journal/ in it) nor a log.h5")
    if is_up_to_date(folder) or (folder.log.is_file() and _is_large_and_live(folder)):
        return RunLog(folder.log)
    with contextlib.suppress(RunFolderError):
        return RunLog(seal(folder))
    keep = tempfile.TemporaryDirectory(prefix="hpcsched-log-")
    return RunLog(seal(folder, to=Path(keep.name) / "log.h5"), keep)


def _is_large_and_live(folder: RunFolder) -> bool:
    if journal_bytes(folder) < LARGE_BYTES:
        return False
    holder = holder_of(folder, host=this_host())
    return holder is not None and holder.holds


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(object) if dtype.hasobject else dtype


def _or_none(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)
