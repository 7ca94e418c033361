"""A finished run's own log as a workload: what if I had had eight GPUs, or another policy?

The journal's events give each trial's configuration and, iteration by iteration, its metric and how long it took; the
placement it ran on and the scaling turn that into seconds on one atom. The scaling is the one that the run assumed, else
what its own trials show at sizes that they ran at. A trial that is continued beyond what was recorded is held flat: its
value does not change, its iterations take the mean of those recorded. A best result there is marked
(`SimulatedRun.beyond_record`). A trial that never reported takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import msgspec

from hpcsched.core.actions import StartTrial
from hpcsched.core.events import Config, ResultReported, TrialSubmitted
from hpcsched.core.settings import Settings
from hpcsched.errors import InputError
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header, Step
from hpcsched.runfolder import RunFolder
from hpcsched.sim.scaling import Scaling, Throughput
from hpcsched.sim.table import Record, RecordedCurve


class Observation(msgspec.Struct, frozen=True):
    """One reported result."""

    trial_id: int
    training_iteration: int
    num_atoms: int
    metric: float
    """NaN when there was none."""
    took_s: float
    """On `num_atoms` atoms."""


class RecordedRun(msgspec.Struct, frozen=True):
    """The curves of one run, by trial, in the order of its trials."""

    records: tuple[tuple[Config, Record], ...]
    settings: Settings | None = None
    scaling: Scaling = "linear"
    """What turned times on several atoms into times on one."""


class RecordedRunWorkload:
    """The trials of a run, in its order. A seed changes nothing, for there is one record."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run

    def config(self, trial_id: int) -> Config | None:
        return self._run.records[trial_id][0] if trial_id < len(self._run.records) else None

    def curve(self, trial_id: int, config: Config) -> RecordedCurve:  # noqa: ARG002  # the protocol: the number says it
        return RecordedCurve(self._run.records[trial_id][1], "hold")


def load_run(folder: Path) -> RecordedRun:
    """The curves in a run folder's journal. Raises InputError or LogError."""
    settings: Settings | None = None
    configs: dict[int, Config] = {}
    sizes: dict[tuple[int, int], int] = {}
    seen: list[Observation] = []
    for record in read_journal(RunFolder(folder)):
        if isinstance(record, Header):
            settings = record.settings
        if not isinstance(record, Step):
            continue
        for action in record.actions:
            if isinstance(action, StartTrial):
                sizes[action.trial_id, action.incarnation] = len(action.placement.atoms)
        event = record.event
        if isinstance(event, TrialSubmitted):
            configs[event.trial_id] = event.config
        elif isinstance(event, ResultReported):
            seen.append(
                Observation(
                    event.trial_id,
                    event.training_iteration,
                    sizes.get((event.trial_id, event.incarnation), 1),
                    math.nan if event.metric is None else event.metric,
                    event.time_this_iter_s,
                )
            )
    if not seen:
        raise InputError(
            f"{folder}: no trial of this run reported a result, so there is nothing to simulate from"
        )
    assumed = None if settings is None else settings.scaling.assume
    scaling: Scaling = observed_scaling(seen) if assumed is None else assumed
    records = records_of(seen, Throughput(scaling), source=str(folder))
    return RecordedRun(
        tuple((configs.get(trial_id, {}), record) for trial_id, record in records), settings, scaling
    )


def observed_scaling(seen: Iterable[Observation]) -> dict[int, float]:
    """s(atoms) from the run itself: the median over trials of how much shorter iterations were than on one atom."""
    times: dict[int, dict[int, list[float]]] = {}
    for one in seen:
        times.setdefault(one.trial_id, {}).setdefault(one.num_atoms, []).append(one.took_s)
    ratios: dict[int, list[float]] = {}
    for by_size in times.values():
        if 1 in by_size:
            alone_s = median(by_size[1])
            for size, took in by_size.items():
                if median(took) > 0:
                    ratios.setdefault(size, []).append(alone_s / median(took))
    return {1: 1.0} | {size: median(found) for size, found in ratios.items() if size > 1}


def records_of(
    seen: Iterable[Observation], throughput: Callable[[int], float], *, source: str
) -> list[tuple[int, Record]]:
    """One record a trial. Where an iteration was repeated after a crash the last counts; a report that got lost takes
    the value before it and the time of the next."""
    known: dict[int, dict[int, Observation]] = {}
    for one in seen:
        known.setdefault(one.trial_id, {})[one.training_iteration] = one
    records = []
    for trial_id in sorted(known):
        record = Record(source, str(trial_id), "")
        following: Observation | None = None
        took: list[float] = []
        for iteration in range(max(known[trial_id]), 0, -1):
            following = known[trial_id].get(iteration, following)
            assert following is not None
            took.append(max(1e-9, following.took_s * throughput(following.num_atoms)))
        record.durations_s = took[::-1]
        value = math.nan
        for iteration in range(1, len(took) + 1):
            if iteration in known[trial_id]:
                value = known[trial_id][iteration].metric
            record.metrics.append(value)
        record.mean_s = record.total_s / len(record.durations_s)
        records.append((trial_id, record))
    return records
