"""The schema of log.h5, as data: what is written, what each dataset's attributes say, what the docs page shows.

Strings are variable-length UTF-8. HDF5 has no "unknown": an unknown float is NaN, an unknown or absent id is -1.
"""

from __future__ import annotations

import h5py
import numpy as np
import numpy.typing as npt

TEXT = h5py.string_dtype("utf-8")


class Column:
    """One field of a table."""

    def __init__(self, name: str, dtype: npt.DTypeLike, unit: str, meaning: str) -> None:
        self.name = name
        self.dtype = dtype
        self.unit = unit
        """"" where there is none."""
        self.meaning = meaning


class Table:
    """One dataset at the root: a compound of columns, chunked, compressed."""

    def __init__(self, name: str, meaning: str, columns: tuple[Column, ...]) -> None:
        self.name = name
        self.meaning = meaning
        self.columns = columns

    @property
    def dtype(self) -> np.dtype[np.void]:
        return np.dtype([(column.name, column.dtype) for column in self.columns])


_TRIAL_ID = Column("trial_id", "i8", "", "number of the trial, from 0 in order of creation; -1: of no trial")
_INCARNATION = Column(
    "incarnation", "i8", "", "number of the launch of that trial, from 1; -1: of no incarnation"
)
_TIME = Column("time_s", "f8", "s", "since the experiment began")
_KIND = Column("kind", TEXT, "", "name of the event or action")
_DATA = Column("data", TEXT, "", "all its other fields as one JSON object")

TRIALS = Table(
    "trials",
    "one row a trial; row i is trial i",
    (
        _TRIAL_ID,
        Column("config", TEXT, "", "hyperparameters as one JSON object"),
        Column(
            "state", TEXT, "", "pending, starting, running, preempting, paused, stopped, completed or failed"
        ),
        Column(
            "best_metric",
            "f8",
            "",
            "best score (mean of the last metric_window reports), user's sign; NaN: none",
        ),
        Column("training_iteration", "i8", "iterations", "of the last result that counts; 0: none"),
    ),
)
RESULTS = Table(
    "results",
    "one row a report of the incarnation that was then the trial's current one, in the order of their handling",
    (
        _TIME,
        _TRIAL_ID,
        _INCARNATION,
        Column("training_iteration", "i8", "iterations", "finished with this report, from 1"),
        Column("metric", "f8", "", "as reported, user's sign; NaN: missing or not finite"),
        Column("num_atoms", "i8", "atoms", "that the incarnation held"),
        Column("time_this_iter_s", "f8", "s", "duration of the iteration, as the trial measured it"),
    ),
)
MEASURES = Table(
    "measures",
    "what the iterations of torch trials spent their time on: one row a report that says so, of rank 0; NaN: not known",
    (
        _TIME,
        _TRIAL_ID,
        _INCARNATION,
        Column("training_iteration", "i8", "iterations", "finished with this report, from 1"),
        Column(
            "samples_per_s",
            "f8",
            "1/s",
            "trained on, over all ranks, where a sampler of the trial counts them",
        ),
        Column("data_wait", "f8", "", "share of the iteration in which rank 0 waited for its next batch"),
        Column(
            "communication",
            "f8",
            "",
            "share of forward and backward in which DDP only waited for gradients, in the last step that it has timed",
        ),
        Column(
            "overhead",
            "f8",
            "",
            "share of the time since the last report that hpcsched took: verdicts and saves",
        ),
    ),
)
PLACEMENTS = Table(
    "placements",
    "one row for each GPU that an incarnation held, in the order in which they became free; rows of a GPU never overlap",
    (
        _TRIAL_ID,
        _INCARNATION,
        Column("node", TEXT, "", "node name"),
        Column("gpu", TEXT, "", "index in the list of GPUs that the job holds on that node"),
        Column("from_s", "f8", "s", "when the start was decided, since the experiment began"),
        Column("to_s", "f8", "s", "when the GPU was free again (quarantine included); NaN: held still"),
    ),
)
EVENTS = Table(
    "events",
    "one row for each event that the core handled, in order",
    (_TIME, _KIND, _TRIAL_ID, _INCARNATION, _DATA),
)
ACTIONS = Table(
    "actions",
    "one row for each action of the core, in order; its time is that of the event that caused it",
    (
        _TIME,
        _KIND,
        _TRIAL_ID,
        _INCARNATION,
        _DATA,
        Column("because", TEXT, "", "why, with the numbers that were compared"),
    ),
)
BEST_CURVE = Table(
    "best_curve",
    "one row each time another complete checkpoint became the best",
    (
        _TIME,
        _TRIAL_ID,
        _INCARNATION,
        Column("training_iteration", "i8", "iterations", "of the checkpoint"),
        Column("metric", "f8", "", "its score (mean of the last metric_window reports), user's sign"),
        Column("saved_s", "f8", "s", "when it was complete, since the experiment began"),
    ),
)
NOTES = Table(
    "notes",
    "facts of the driver that the core does not see: parts of a set-up, further metrics, warnings",
    (
        _TIME,
        Column("topic", TEXT, "", "one word"),
        _TRIAL_ID,
        _INCARNATION,
        Column("text", TEXT, "", "for people"),
        _DATA,
    ),
)
TABLES = (TRIALS, RESULTS, MEASURES, PLACEMENTS, BEST_CURVE, EVENTS, ACTIONS, NOTES)

ROOT_ATTRIBUTES = {
    "schema_version": "version of this schema (an integer)",
    "experiment": "text of the experiment file",
    "began_at": "UNIX seconds of time 0",
    "deadline_s": "seconds since the experiment began; NaN: none",
    "metric": "name of the metric",
    "mode": "max or min",
    "name": "name of the experiment",
    "state": "what was known when the file was made: running, suspended, finished or failed",
    "over_s": "when the core ended or suspended the experiment, seconds since it began; NaN: not yet",
    "last_s": "time of the last record, seconds since the experiment began",
    "settings": "settings of the core as JSON",
    "provenance": "versions, commit, nodes and GPUs as JSON",
    "num_atoms": "atoms of the machine (of the newest life)",
    "gpus_per_atom": "GPUs of an atom",
    "best": "the best complete checkpoint as JSON (trial_id, incarnation, training_iteration, metric, saved_s); null: none",
    "counts": "started, paused, promoted, resized_up, resized_down, failed, killed as JSON",
    "atom_seconds": "training, restart, idle, quarantined as JSON, seconds times atoms",
    "num_lives": "driver lives",
    "journal_bytes": "how much of the journal this file holds; a longer journal makes it out of date",
}
