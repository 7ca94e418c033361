"""What many runs say about each policy, and the JSON of `hpcsched simulate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev
from typing import Any

import msgspec

from hpcsched.sim.simulate import SimulatedRun
from hpcsched.sim.sweep import RunRequest


class PolicyRow(msgspec.Struct, frozen=True):
    """One policy over all seeds. Medians, but for the spread and the mean; shares are of all atom-seconds."""

    label: str
    num_runs: int
    score: float | None
    """Best metric at the deadline, the user's sign; None: no run had one."""
    mean: float | None
    spread: float | None
    """Standard deviation over seeds; None with fewer than two."""
    low: float | None
    high: float | None
    trials_started: float
    best_iteration: float | None
    finished_s: float
    training_share: float
    restart_share: float
    idle_share: float
    num_beyond_record: int


def compare(requests: Sequence[RunRequest], runs: Sequence[SimulatedRun]) -> list[PolicyRow]:
    """A row a policy, in the order of the requests."""
    by_label: dict[str, list[SimulatedRun]] = {}
    for request, run in zip(requests, runs, strict=True):
        by_label.setdefault(request.label, []).append(run)
    return [_row(label, found) for label, found in by_label.items()]


def _row(label: str, runs: list[SimulatedRun]) -> PolicyRow:
    scores = [run.best_metric for run in runs if run.best_metric is not None]
    iterations = [run.best_iteration for run in runs if run.best_iteration is not None]
    used = [run.atom_seconds for run in runs]
    training = sum(one.training for one in used)
    restart = sum(one.restart for one in used)
    idle = sum(one.idle for one in used)
    total = training + restart + idle or 1.0
    return PolicyRow(
        label=label,
        num_runs=len(runs),
        score=median(scores) if scores else None,
        mean=fmean(scores) if scores else None,
        spread=stdev(scores) if len(scores) > 1 else None,
        low=min(scores) if scores else None,
        high=max(scores) if scores else None,
        trials_started=median(run.trials_started for run in runs),
        best_iteration=median(iterations) if iterations else None,
        finished_s=median(run.finished_s for run in runs),
        training_share=training / total,
        restart_share=restart / total,
        idle_share=idle / total,
        num_beyond_record=sum(run.beyond_record for run in runs),
    )


def runs_as_json(requests: Iterable[RunRequest], runs: Iterable[SimulatedRun]) -> dict[str, Any]:
    """`{"runs": [...]}` as other programs rely on; a run whose best lies beyond what was recorded says so."""
    rows = []
    for request, run in zip(requests, runs, strict=True):
        row: dict[str, Any] = {
            "policy": request.label,
            "seed": request.seed,
            "best_metric": run.best_metric,
            "best_iteration": run.best_iteration,
            "best_trial_id": run.best_trial_id,
            "trials_started": run.trials_started,
            "finished_s": run.finished_s,
            "atom_seconds": {
                "training": run.atom_seconds.training,
                "restart": run.atom_seconds.restart,
                "idle": run.atom_seconds.idle,
            },
        }
        if run.beyond_record:
            row["beyond_record"] = True
        rows.append(row)
    return {"runs": rows}
