"""What things cost: restarts by part, the way to the first result, and where each GPU-hour went."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from hpcsched.report.load import RunLog

PARTS = {
    "step": "the launcher's step or the spare's fork, until the ranks run",
    "imports": "Python and the script's imports",
    "group": "forming the process group",
    "restore": "reading the checkpoint",
    "prepare": "the script itself, until its first iteration begins (data, model)",
    "first_iteration": "the first iteration, warm-up included",
    "leave": "from the wish to leave to the boundary",
    "save": "writing the checkpoint on leaving",
}
"""Of a restart, in the order in which they happen: the keys of the notes "setup", without their "_s"."""
BEFORE_TRAINING = ("step", "imports", "group", "restore", "prepare")


class Part(NamedTuple):
    """One part of what restarts cost, over all incarnations that told it. Seconds."""

    name: str
    meaning: str
    num: int
    median_s: float
    p90_s: float
    total_s: float


def restart_parts(log: RunLog) -> list[Part]:
    """In the order in which they happen; only parts that were told."""
    told: dict[str, list[float]] = defaultdict(list)
    for data in _setups(log).values():
        for name, value in data.items():
            told[name].append(value)
    return [
        Part(
            name,
            meaning,
            len(told[name]),
            float(np.median(told[name])),
            float(np.percentile(told[name], 90)),
            float(np.sum(told[name])),
        )
        for name, meaning in PARTS.items()
        if told[name]
    ]


def _setups(log: RunLog) -> dict[tuple[int, int], dict[str, float]]:
    """(trial, incarnation) -> part -> seconds."""
    found: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for note in log.notes[log.notes["topic"] == "setup"]:
        data = json.loads(note["data"])
        for key, value in data.items():
            name = key.removesuffix("_s")
            if name in PARTS and isinstance(value, int | float):
                found[int(note["trial_id"]), int(note["incarnation"])][name] = float(value)
    return found


class Stretch(NamedTuple):
    """One part of the way to the first result."""

    name: str
    meaning: str
    took_s: float


def first_result(log: RunLog) -> list[Stretch]:
    """The way to the first result that any trial reported, part by part; empty when there was none.

    Its sum, without the queue, is the time of that result. "launch" is what the trial's own parts leave unexplained.
    """
    if not len(log.results):
        return []
    first = log.results[int(np.argmin(log.results["time_s"]))]
    trial_id, incarnation = int(first["trial_id"]), int(first["incarnation"])
    kinds = log.events["kind"]
    began = np.flatnonzero((kinds == "ExperimentBegan") | (kinds == "ExperimentResumed"))
    began_s = float(log.events["time_s"][began[0]]) if len(began) else 0.0
    started = (
        (log.actions["kind"] == "StartTrial")
        & (log.actions["trial_id"] == trial_id)
        & (log.actions["incarnation"] == incarnation)
    )
    at = np.flatnonzero(started)
    started_s = float(log.actions["time_s"][at[0]]) if len(at) else began_s
    parts = _setups(log).get((trial_id, incarnation), {})
    stretches = []
    queue = log.provenance.get("queue_s")
    if isinstance(queue, int | float):
        stretches.append(Stretch("queue", "from the submission to the start of the Slurm job", float(queue)))
    job_start = log.provenance.get("job_start_s")
    if isinstance(job_start, int | float):
        stretches.append(
            Stretch(
                "job", "from the job's start to the driver's: prologue, modules, Python", float(job_start)
            )
        )
    stretches += [
        Stretch("probe", "the driver's own start: reading the allocation, probing the nodes", began_s),
        Stretch("decide", "until the first configuration was there and the trial was launched", max(0.0, started_s - began_s)),
    ]  # fmt: skip
    known = [Stretch(name, PARTS[name], parts[name]) for name in BEFORE_TRAINING if name in parts]
    iteration_s = parts.get("first_iteration", float(first["time_this_iter_s"]))
    rest = float(first["time_s"]) - started_s - iteration_s - sum(part.took_s for part in known)
    what = "what else passed before it trained" if known else "from the launch until it trained"
    if rest > 0.001 or not known:
        stretches.append(Stretch("launch", what, max(0.0, rest)))
    return [*stretches, *known, Stretch("first iteration", PARTS["first_iteration"], iteration_s)]


class Use(NamedTuple):
    """One use of the GPUs. GPU-hours."""

    use: str
    hours: float
    meaning: str


def held_hours(log: RunLog) -> dict[int, float]:
    """trial -> GPU-hours that its incarnations held, whatever they did with them."""
    rows = log.placements
    to_s = np.where(np.isnan(rows["to_s"]), log.end_s, rows["to_s"])
    sums = np.bincount(rows["trial_id"], weights=np.maximum(0.0, to_s - rows["from_s"]), minlength=0)
    return {int(trial): float(sums[trial]) / 3600 for trial in np.flatnonzero(sums)}


_GOING_ON = ("pending", "starting", "running", "preempting")


def trained_hours(log: RunLog) -> dict[str, float]:
    """GPU-hours of reported iterations: of the best trial, of others by their state in the end, and of repeated work."""
    results = log.results
    if not len(results):
        return {}
    hours = np.maximum(0.0, np.nan_to_num(results["time_this_iter_s"])) * results["num_atoms"]
    hours = hours * log.gpus_per_atom / 3600
    order = np.lexsort((np.arange(len(results)), results["training_iteration"], results["trial_id"]))
    trial, iteration = results["trial_id"][order], results["training_iteration"][order]
    counts = np.append((trial[1:] != trial[:-1]) | (iteration[1:] != iteration[:-1]), True)
    sums: dict[str, float] = {}
    repeated = float(hours[order][~counts].sum())
    by_trial = np.bincount(trial[counts], weights=hours[order][counts], minlength=len(log.trials))
    best = None if log.best is None else int(log.best["trial_id"])
    states = log.trials["state"]
    for number in np.flatnonzero(by_trial):
        state = str(states[number]) if number < len(states) else "stopped"
        key = "best" if number == best else "running" if state in _GOING_ON else state
        sums[key] = sums.get(key, 0.0) + float(by_trial[number])
    if repeated:
        sums["repeated"] = repeated
    return sums


_USES = {
    "training": "trials that train",
    "restart": "starting, restoring, saving and leaving, the iteration included that was under way; atoms reserved for a resize",
    "idle": "nobody held them",
    "quarantined": "set aside because it was not proven that a killed trial's ranks were gone",
    "down": "their node was lost or they were set aside",
}
_TRAINED = {
    "best": "of the best trial",
    "completed": "of trials that trained to the end",
    "running": "of trials that still train",
    "paused": "of trials that wait at a rung",
    "stopped": "of trials that were stopped: cut at a rung, or overtaken by the deadline",
    "failed": "of trials that failed",
    "repeated": "done twice: after a crash, or when a trial had left without a checkpoint",
}


def uses_of(log: RunLog) -> list[Use]:
    """Every GPU-hour since the beginning, by use."""
    scale = log.gpus_per_atom / 3600
    return [
        Use(use, seconds * scale, _USES.get(use, ""))
        for use, seconds in log.atom_seconds.items()
        if seconds > 0 or use in ("training", "restart", "idle", "quarantined")
    ]


def iterations_of(log: RunLog) -> list[Use]:
    """The reported iterations, by whose they were."""
    trained = trained_hours(log)
    return [Use(key, trained[key], text) for key, text in _TRAINED.items() if key in trained]


def left_hours(log: RunLog) -> float | None:
    """GPU-hours between the end (or now) and the deadline; None without a deadline."""
    if log.deadline_s is None:
        return None
    return max(0.0, log.deadline_s - log.end_s) * log.num_atoms * log.gpus_per_atom / 3600


def total_hours(log: RunLog) -> float:
    return sum(log.atom_seconds.values()) * log.gpus_per_atom / 3600
