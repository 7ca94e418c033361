"""Recorded learning curves as a workload: bring your own.

The file: CSV, optionally gzipped (`.csv`, `.csv.gz`), with a header; a folder stands for all such files in it.

| column    | needed | what it is |
|---|---|---|
| `config`  | yes | name of a hyperparameter configuration |
| `study`   | no  | which repetition of it (a seed); one curve a (file, config, study) |
| `step`    | no  | the training script's own count; kept for readers, not used |
| `metric`  | yes | a number; empty or `nan`: the iteration gave none |
| `train_s` | yes | seconds of training since the trial's beginning, at one atom |
| `eval_s`  | no  | seconds of evaluation since the trial's beginning, at one atom |

One row is one evaluation and one iteration; rows of a curve are in the order of time, other curves may lie between.
An iteration's duration is the increment of `train_s + eval_s`, which must be above zero. Other columns are ignored.

A trial is a recorded curve, drawn uniformly with replacement, so that two trials of one search can be the same curve.
Beyond its record a curve is held at its last value ("hold") or the trial is done ("done").
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, TextIO, TypeAlias

import numpy as np

from hpcsched.core.events import Config
from hpcsched.errors import InputError

AfterRecord: TypeAlias = Literal["hold", "done"]
NEEDED = ("config", "metric", "train_s")


class CurveTableError(InputError):
    """A curve table is missing, has no curves, or one of its rows is wrong (file, line, column)."""


class Record:
    """One recorded curve: values and durations by iteration."""

    __slots__ = ("config", "durations_s", "mean_s", "metrics", "source", "study")

    def __init__(self, source: str, config: str, study: str) -> None:
        self.source = source
        self.config = config
        self.study = study
        self.metrics: list[float] = []
        self.durations_s: list[float] = []
        self.mean_s = 0.0
        """Mean duration, once the record is whole."""

    @property
    def total_s(self) -> float:
        """Seconds of the whole record at one atom."""
        return math.fsum(self.durations_s)


class RecordedCurve:
    """A record as the course of a trial."""

    __slots__ = ("_durations", "_mean_s", "_metrics", "length", "recorded", "step_s")

    def __init__(self, record: Record, after_record: AfterRecord) -> None:
        self._metrics = record.metrics
        self._durations = record.durations_s
        self._mean_s = record.mean_s
        self.step_s: float | None = None
        self.recorded: int | None = len(record.metrics)
        self.length: int | None = len(record.metrics) if after_record == "done" else None

    def metric(self, iteration: int) -> float:
        metrics = self._metrics
        return metrics[iteration - 1] if iteration <= len(metrics) else metrics[-1]

    def duration_s(self, iteration: int) -> float:
        """Held iterations take as long as the mean of the recorded ones."""
        durations = self._durations
        return durations[iteration - 1] if iteration <= len(durations) else self._mean_s


class TableWorkload:
    """Trials drawn from recorded curves."""

    def __init__(self, records: tuple[Record, ...], seed: int, *, after_record: AfterRecord = "hold") -> None:
        self._records = records
        self._index = {(record.config, record.study): record for record in records}
        self._after_record: AfterRecord = after_record
        self._seed = seed
        self._drawn: list[int] = []

    def config(self, trial_id: int) -> Config:
        while len(self._drawn) <= trial_id:
            rng = np.random.default_rng([self._seed & 0xFFFFFFFF, 3, len(self._drawn) // 256])
            self._drawn.extend(rng.integers(0, len(self._records), 256).tolist())
        record = self._records[self._drawn[trial_id]]
        return {"config": record.config, "study": record.study}

    def curve(self, trial_id: int, config: Config) -> RecordedCurve:
        key = (str(config.get("config")), str(config.get("study", "")))
        record = self._index.get(key)
        if record is None:
            raise CurveTableError(
                f"trial {trial_id} asks for the curve config={key[0]!r}, study={key[1]!r}, which the table does not hold; "
                "let the workload draw its own configurations, or correct the list"
            )
        return RecordedCurve(record, self._after_record)


@lru_cache(maxsize=8)
def load_records(path: Path) -> tuple[Record, ...]:
    """All curves of a file or folder, in the order of their first rows; raises CurveTableError."""
    if path.is_dir():
        files = sorted(
            file for file in path.iterdir() if file.name.endswith((".csv", ".csv.gz")) and file.is_file()
        )
        if not files:
            raise CurveTableError(f"{path}: no .csv or .csv.gz file in this folder")
    elif path.is_file():
        files = [path]
    else:
        raise CurveTableError(f"{path}: no such file or folder of learning curves")
    records = tuple(record for file in files for record in _read(file))
    seen: dict[tuple[str, str], str] = {}
    for record in records:
        other = seen.setdefault((record.config, record.study), record.source)
        if other != record.source:
            raise CurveTableError(
                f"{path}: config {record.config!r}, study {record.study!r} is in {other} and in {record.source}; "
                "give them different names or point at one file"
            )
    return records


def longest(records: tuple[Record, ...]) -> int:
    """Iterations of the longest record: the R of a study over these curves."""
    return max(len(record.metrics) for record in records)


def _open(file: Path) -> TextIO:
    if file.name.endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8", newline="")
    return file.open(encoding="utf-8", newline="")


def _read(file: Path) -> Iterator[Record]:
    curves: dict[tuple[str, str], Record] = {}
    reached_s: dict[tuple[str, str], float] = {}
    try:
        with _open(file) as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise CurveTableError(
                    f"{file}: line 1: no column {', '.join(missing)}; the header is {','.join(reader.fieldnames or ())!r}, "
                    f"needed are {', '.join(NEEDED)} (also used: study, eval_s)"
                )
            for row in reader:
                key = (row["config"], row.get("study") or "")
                record = curves.get(key)
                if record is None:
                    record = curves[key] = Record(file.name, *key)
                metric = _number(file, reader.line_num, "metric", row["metric"], empty=math.nan)
                at_s = _number(file, reader.line_num, "train_s", row["train_s"])
                if "eval_s" in row:
                    at_s += _number(file, reader.line_num, "eval_s", row["eval_s"], empty=0.0)
                duration_s = at_s - reached_s.get(key, 0.0)
                if not duration_s > 0 or math.isinf(duration_s):
                    raise CurveTableError(
                        f"{file}: line {reader.line_num}: train_s + eval_s is {at_s:g} s, not above the {reached_s.get(key, 0.0):g} s "
                        f"of the row before of config {key[0]!r}, study {key[1]!r}; rows of a curve must go on in time"
                    )
                reached_s[key] = at_s
                record.metrics.append(metric)
                record.durations_s.append(duration_s)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise CurveTableError(f"{file}: cannot be read as a table of curves: {error}") from error
    if not curves:
        raise CurveTableError(f"{file}: holds a header but no row")
    for record in curves.values():
        record.mean_s = record.total_s / len(record.durations_s)
        yield record


def _number(file: Path, line: int, column: str, text: str | None, *, empty: float | None = None) -> float:
    if not text:
        if empty is not None:
            return empty
        raise CurveTableError(f"{file}: line {line}: {column} is empty")
    try:
        return float(text)
    except ValueError as error:
        raise CurveTableError(f"{file}: line {line}: {column} is {text!r}, not a number") from error
