"""What would other policies have done with the same curves? A simulation from the run's own log.

The simulator (the very core that drove the run) trains the run's trials again under another policy: same atoms, same
deadline, starts and saves as long as they took, speed on several atoms as the run showed it (else as it assumed). Beyond
what was recorded curves borrow their futures (`sim.borrowed`); each draw of futures gives another answer, and their spread
is the uncertainty that is said. The policy that really ran is simulated, too: others are compared with that, draw by draw,
and how far it lies from what really came out is how far the simulation is to be trusted. Crashes and lost nodes do not
happen in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from hpcsched.core.settings import (
    AshaSettings,
    DeadlineSettings,
    FixedSplitSettings,
    HyperSchedSettings,
    PolicySettings,
    RasdaSettings,
    Settings,
    ShaSettings,
    TimeoutSettings,
)
from hpcsched.errors import HpcschedError
from hpcsched.report.load import RunLog
from hpcsched.sim.borrowed import BorrowedWorkload, Donors
from hpcsched.sim.recorded import Observation, observed_scaling, records_of
from hpcsched.sim.scaling import Scaling, Throughput
from hpcsched.sim.simulate import SimulatedRun, simulate
from hpcsched.sim.world import WorldSettings

OTHERS: tuple[PolicySettings, ...] = (
    HyperSchedSettings(),
    AshaSettings(),
    RasdaSettings(),
    FixedSplitSettings(),
    DeadlineSettings(),
)
MOST_DRAWS, LEAST_DRAWS = 20, 3
MOST_SIMULATED = 400_000
"""Results over all simulations that are done unasked: some seconds."""
LEAST_TRIALS = 2


class Row(NamedTuple):
    """One policy. Metrics in the user's sign; over the draws that ended with a complete checkpoint."""

    policy: str
    is_own: bool
    """The policy that really ran."""
    num_draws: int
    metric: float | None
    """Median over draws; None: no draw ended with one."""
    low: float | None
    high: float | None
    """10th and 90th percentile."""
    held: float | None
    """Where every curve is held at its last recorded value: nothing is believed that was not seen."""
    num_beyond: int
    """Draws whose best lies beyond what was recorded of its trial."""
    num_better: int
    """Draws that end better than the run's own policy does in the same draw."""
    num_worse: int
    num_trials: float
    """Started; median."""


class WhatIf(NamedTuple):
    rows: tuple[Row, ...]
    num_draws: int
    recorded_share: float
    """Of the trials that reported: those trained to the end, whose curves need no future."""
    exhausted: bool
    """The run had tried all configurations that there were."""
    failed: tuple[str, ...] = ()
    """Policies that could not be simulated, with the reason."""


def num_draws_of(log: RunLog) -> int:
    """How many draws are affordable unasked; 0: they would simulate too many results."""
    results = log.results
    if not len(results):
        return 0
    until_s = log.end_s if log.deadline_s is None else log.deadline_s
    took_s = float(np.nanmean(results["time_this_iter_s"] * results["num_atoms"])) or until_s
    most = max(float(len(results)), log.num_atoms * until_s / max(took_s, 1e-9))
    num = int(MOST_SIMULATED / (len(OTHERS) * most))
    return 0 if num < LEAST_DRAWS else min(MOST_DRAWS, num)


def what_if(log: RunLog, num_draws: int) -> WhatIf | None:
    """None: fewer than two trials have reported, or the run had neither an end nor a deadline to reach."""
    settings = msgspec.json.decode(msgspec.json.encode(log.settings), type=Settings)
    seen = [
        Observation(
            int(row["trial_id"]),
            int(row["training_iteration"]),
            max(1, int(row["num_atoms"])),
            float(row["metric"]),
            float(row["time_this_iter_s"]),
        )
        for row in log.results
    ]
    deadline_s = log.deadline_s if log.deadline_s is not None else log.end_s
    if not seen or deadline_s <= 0 or num_draws < 1:
        return None
    scaling = true_scaling(seen, settings, log.num_atoms)
    records = records_of(seen, Throughput(scaling), source=str(log.file))
    if len(records) < LEAST_TRIALS:
        return None
    configs = [log.config(trial_id) for trial_id, _ in records]
    donors = Donors([record for _, record in records], mode=settings.mode)
    exhausted = bool((log.events["kind"] == "SearchExhausted").any())
    world = _world(log)
    base = msgspec.structs.replace(
        settings,
        timeouts=TimeoutSettings(
            start_s=None, silence_s=None, preempt_grace_s=None, kill_wait_s=None, deadline_margin_s=0.0
        ),
    )

    def run(policy: PolicySettings, seed: int, *, hold: bool = False) -> SimulatedRun:
        chosen = msgspec.structs.replace(base, policy=policy)
        if isinstance(policy, ShaSettings):
            chosen = msgspec.structs.replace(chosen, num_trials=policy.num_trials)
        return simulate(
            chosen,
            BorrowedWorkload(configs, donors, seed, exhausted=exhausted, hold=hold),
            num_atoms=log.num_atoms,
            deadline_s=deadline_s,
            scaling=scaling,
            world=world,
        )

    own = settings.policy
    others = [policy for policy in OTHERS if type(policy) is not type(own)]
    rows: list[Row] = []
    failed: list[str] = []
    own_runs: list[SimulatedRun] = []
    for policy in (own, *others):
        name = str(policy.__struct_config__.tag)
        try:
            runs = [run(policy, seed) for seed in range(num_draws)]
            held = run(policy, 0, hold=True)
        except (HpcschedError, NotImplementedError) as error:
            failed.append(f"{name}: {error}")
            continue
        if policy is own:
            own_runs = runs
        rows.append(_row(log, name, runs, own_runs, held, is_own=policy is own))
    whole = sum(len(record.metrics) >= settings.max_iterations for _, record in records)
    return WhatIf(tuple(rows), num_draws, whole / len(records), exhausted, tuple(failed))


def _row(
    log: RunLog,
    name: str,
    runs: Sequence[SimulatedRun],
    own_runs: Sequence[SimulatedRun],
    held: SimulatedRun,
    *,
    is_own: bool,
) -> Row:
    metrics = [run.best_metric for run in runs if run.best_metric is not None]

    def score(run: SimulatedRun) -> float:
        return -math.inf if run.best_metric is None else log.sign * run.best_metric

    pairs = [(score(run), score(own)) for run, own in zip(runs, own_runs, strict=False)]
    return Row(
        policy=name,
        is_own=is_own,
        num_draws=len(runs),
        metric=median(metrics) if metrics else None,
        low=float(np.percentile(metrics, 10)) if metrics else None,
        high=float(np.percentile(metrics, 90)) if metrics else None,
        held=held.best_metric,
        num_beyond=sum(run.beyond_record for run in runs),
        num_better=sum(mine > theirs for mine, theirs in pairs),
        num_worse=sum(mine < theirs for mine, theirs in pairs),
        num_trials=median(run.trials_started for run in runs),
    )


def true_scaling(seen: Sequence[Observation], settings: Settings, num_atoms: int) -> Scaling:
    """s(atoms): as the run's own trials show it; at sizes that none of them had, as much further as was assumed."""
    assumed = Throughput("linear" if settings.scaling.assume is None else settings.scaling.assume)
    shown = observed_scaling(seen)
    table: dict[int, float] = {}
    last = 1
    for size in sorted({1, *(2**k for k in range(1, num_atoms.bit_length())), num_atoms, *shown}):
        if size in shown:
            last = size
        table[size] = shown[last] * assumed(size) / assumed(last)
    return table


def _world(log: RunLog) -> WorldSettings:
    """Starts and saves as long as they took here."""

    def typical(kind: str, field: str) -> float:
        data = log.events["data"][log.events["kind"] == kind]
        found = [float(json.loads(text)[field]) for text in data]
        found = [value for value in found if math.isfinite(value) and value >= 0]
        return median(found) if found else 0.0

    results = log.results
    order = np.lexsort((results["time_s"], results["incarnation"], results["trial_id"]))
    rows = results[order]
    same = (rows["trial_id"][1:] == rows["trial_id"][:-1]) & (
        rows["incarnation"][1:] == rows["incarnation"][:-1]
    )
    between_s = (np.diff(rows["time_s"]) - rows["time_this_iter_s"][1:])[same]
    return WorldSettings(
        start_up_s=max(0.001, typical("TrialStarted", "setup_time_s")),
        save_s=typical("CheckpointSaved", "save_time_s"),
        verdict_delay_s=max(0.0, float(np.median(between_s))) if len(between_s) else 0.0,
    )


def in_words(log: RunLog, found: WhatIf) -> list[str]:
    """Sentences for people who read no tables."""
    sentences: list[str] = []
    real = None if log.best is None else float(log.best["metric"])
    own = next((row for row in found.rows if row.is_own), None)
    if own is not None and own.metric is not None and real is not None:
        sentences.append(
            f"How far to trust it: {own.policy}, simulated in the same way, ends at {_spread(own)}; it really came to {real:.6g}"
            + (
                "."
                if is_plausible(own, real)
                else ", which is outside of that range: take the comparison as a hint."
            )
        )
    for row in found.rows:
        if row.is_own or row.metric is None or own is None:
            continue
        draws = row.num_draws
        if row.num_better > 0.8 * draws:
            verdict = f"better than {own.policy} would"
        elif row.num_worse > 0.8 * draws:
            verdict = f"worse than {own.policy} would"
        elif row.num_better < 0.2 * draws and row.num_worse < 0.2 * draws:
            verdict = f"as {own.policy} would"
        else:
            verdict = "the draws do not agree whether that is better"
        beyond = f"; in {row.num_beyond} by iterations that nobody trained" if row.num_beyond else ""
        sentences.append(
            f"{row.policy} would have ended at {_spread(row)}: {verdict} (better in {row.num_better}, worse in {row.num_worse} "
            f"of {draws} draws{beyond})."
        )
    return sentences


def is_plausible(own: Row, real: float) -> bool:
    """Whether the simulation of the policy that ran comes to where the run came: within its range, or a hundredth of it."""
    if own.low is None or own.high is None:
        return False
    room = 0.01 * max(abs(own.low), abs(own.high), abs(real))
    return own.low - room <= real <= own.high + room


def _spread(row: Row) -> str:
    assert row.metric is not None
    if row.low == row.high:
        return f"{row.metric:.6g}"
    return f"{row.metric:.6g} ({row.low:.6g} to {row.high:.6g})"
