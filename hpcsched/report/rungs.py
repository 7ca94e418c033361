"""Rungs and what was cut there: who reached each milestone, who went on, and with which scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcsched.core.rungs import milestones_of
from hpcsched.report.load import Rows, RunLog

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

COMPARE = ("asha", "hypersched", "sha", "hyperband", "rasda", "deadline")
"""Policies that decide by comparing trials at milestones; for the others the rungs are only lines to look along."""


class Rung(NamedTuple):
    """What happened at one milestone. Arrays have one entry a trial that reached it with a finite metric."""

    milestone: int
    trials: npt.NDArray[np.int64]
    metrics: Floats
    """The first metric at or after the milestone, the user's sign."""
    went_on: Bools
    """It reported again, later than that first metric."""
    num_next: int
    """Of them, those that reached the next milestone."""
    num_cut: int
    """They never reported again and wait, or were stopped: no crash, not done."""
    best: float
    median: float
    worst_that_went_on: float | None


def rungs_of(log: RunLog) -> list[Rung]:
    """Lowest first; only those that somebody reached."""
    settings = log.settings
    most = int(settings["max_iterations"])
    milestones = milestones_of(int(settings["grace_period"]), most, int(settings["reduction_factor"]))
    results = last_reports(log.results)
    if not len(results):
        return []
    trial, iteration = results["trial_id"], results["training_iteration"]
    num = max(len(log.trials), int(trial.max()) + 1)
    furthest = np.zeros(num, dtype=np.int64)
    np.maximum.at(furthest, trial, iteration)
    over = np.zeros(num, dtype=bool)
    over[: len(log.trials)] = np.isin(log.trials["state"].astype(str), ("completed", "failed"))
    finite = np.isfinite(results["metric"])
    rungs = []
    for milestone, following in zip(milestones, (*milestones[1:], None), strict=True):
        at = np.flatnonzero(finite & (iteration >= milestone))
        if not len(at):
            break
        trials, first = np.unique(trial[at], return_index=True)
        metrics = results["metric"][at][first]
        went_on = furthest[trials] > iteration[at][first]
        num_next = 0 if following is None else int((furthest[trials] >= following).sum())
        signed = log.sign * metrics
        rungs.append(
            Rung(
                milestone=milestone,
                trials=trials,
                metrics=metrics,
                went_on=went_on,
                num_next=num_next,
                num_cut=int((~went_on & ~over[trials]).sum()),
                best=float(log.sign * signed.max()),
                median=float(np.median(metrics)),
                worst_that_went_on=float(log.sign * signed[went_on].min()) if went_on.any() else None,
            )
        )
    return rungs


def last_reports(results: Rows) -> Rows:
    """Sorted by trial and iteration; of repeated iterations the last report counts."""
    order = np.lexsort((np.arange(len(results)), results["training_iteration"], results["trial_id"]))
    rows = results[order]
    if not len(rows):
        return rows
    trial, iteration = rows["trial_id"], rows["training_iteration"]
    last = np.append((trial[1:] != trial[:-1]) | (iteration[1:] != iteration[:-1]), True)
    kept: Rows = rows[last]
    return kept
