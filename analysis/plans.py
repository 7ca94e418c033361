"""What narrowing once can reach on recorded curves: `python -m analysis.plans [--seeds N]`.

A plan (n0, f, n1): n0 trials share all atoms until the share f of the deadline, then the best n1 of them do. Each trial leaves
at the end of the iteration that is nearest to that time, the next ones begin when all have left, and each change of size costs a
restart; scouts and newcomers are left out. Every plan is evaluated in every cell of `analysis.judging` with D <= 1, on pools of
seeds from 100 on, which are judged nowhere. By regime, the mean regret over workloads, allocations and conditions is printed of

- the plan that is best in hindsight for each allocation and condition, the same for all workloads: a bound for policies
  that narrow once and know nothing of the workload;
- the plan that `deadline` takes (`deadline_field`), with its constants as they are, and one of them changed at a time;
- with the constants that are best on three workloads, on the fourth.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import product
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.judging import (
    CLIP,
    WORKLOADS,
    Cell,
    Data,
    bound,
    deadline_of,
    find_data,
    num_trials,
    restart_of,
    scale_of,
    scaling_of,
    workload_of,
)
from analysis.policies import curve_cells
from hpcsched.core.policies.deadline_field import Reach
from hpcsched.core.settings import DeadlineSettings
from hpcsched.sim.scaling import Throughput
from hpcsched.sim.table import RecordedCurve

FIRST_SEED = 100
REGIMES = (0.1, 0.3, 1.0)
SHARES = (0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8)
NEVER = 1.0
Floats = NDArray[np.float64]


class Plan(NamedTuple):
    first: int
    share: float
    last: int


class Constants(NamedTuple):
    trained: float
    enough: int
    explore: float
    wide: int


GRID: dict[str, tuple[Any, ...]] = {
    "trained": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    "enough": (48, 64, 80, 96, 112, 1_000_000),
    "explore": (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5),
    "wide": (2, 4, 8),
}


def plans(atoms: int) -> list[Plan]:
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= atoms]
    return [
        Plan(first, share, last)
        for first in sizes
        for last in sizes
        if last <= first
        for share in ((NEVER,) if last == first else SHARES)
    ]


def size_of(cell: Cell, data: Data, num: int) -> int:
    """Atoms of each of so many trials: as many as help."""
    speed = Throughput(scaling_of(cell, data))
    return max(range(1, max(1, cell.atoms // num) + 1), key=lambda size: (speed(size), -size))


def speed_of(cell: Cell, data: Data, num: int) -> float:
    return Throughput(scaling_of(cell, data))(size_of(cell, data, num))


@lru_cache(maxsize=256)
def _pool(workload: str, after: str, data: Data, seed: int, num: int) -> list[tuple[Floats, Floats]]:
    """Of each trial: durations at one atom, and the best score until each iteration."""
    cell = Cell("curves", workload, 8, 1.0, "linear", 0.0, "done" if after == "done" else "hold")
    source = workload_of(cell, seed, data)
    sign = scale_of(data.curves(workload)).sign
    found = []
    for trial in range(num):
        config = source.config(trial)
        assert config is not None
        curve = source.curve(trial, config)
        assert isinstance(curve, RecordedCurve)
        assert curve.recorded is not None
        iterations = range(1, curve.recorded + 1)
        scores = np.array([sign * curve.metric(i) for i in iterations])
        found.append((np.array([curve.duration_s(i) for i in iterations]), np.maximum.accumulate(scores)))
    return found


def regret(cell: Cell, data: Data, seed: int, plan: Plan) -> float:
    """Of one plan on one pool, on the scale of `analysis.judging`."""
    scale = scale_of(data.curves(cell.workload))
    deadline, restart = deadline_of(cell, data), restart_of(cell, data)
    most = scale.longest if cell.deadline >= 1 else scale.typical
    pool = _pool(cell.workload, cell.after, data, seed, num_trials(cell) or 0)[: plan.first]
    now, top, speed_before = 0.0, -math.inf, 0.0
    done = [0] * len(pool)
    best = [-math.inf] * len(pool)
    alive = list(range(len(pool)))
    stages = [(plan.first, plan.share)] + ([(plan.last, NEVER)] if plan.share < NEVER else [])
    for num, share in stages:
        alive = sorted(alive, key=lambda i: -best[i])[:num]
        speed = speed_of(cell, data, num)
        begins = now + (restart if speed != speed_before else 0.0)
        speed_before = speed
        for i in alive:
            durations, scores = pool[i]
            ends = begins + np.cumsum(durations[done[i] : most]) / speed
            if not len(ends):
                continue
            more = int(np.searchsorted(ends, deadline + 1e-9, side="right"))
            if share < NEVER:
                nearest = int(np.argmin(abs(ends - share * deadline))) + 1
                now = max(now, float(ends[nearest - 1]))
                more = min(more, nearest)
            if more:
                done[i] += more
                best[i] = float(scores[done[i] - 1])
                top = max(top, best[i])
        if now >= deadline:
            break
    lost = (bound(cell, seed, data) - top) / (scale.best - scale.median)
    return min(lost, CLIP) if cell.deadline < 1 else lost


@lru_cache(maxsize=8)
def _iteration_s(data: Data, workload: str) -> float:
    return median(took for record in scale_of(data.curves(workload)).records for took in record.durations_s)


@lru_cache(maxsize=100_000)
def taken(cell: Cell, data: Data, constants: Constants) -> Plan:
    """What `deadline_field` chooses, when the seconds of an iteration are known from the start."""
    scale = scale_of(data.curves(cell.workload))
    reach = Reach(
        deadline_of(cell, data),
        _iteration_s(data, cell.workload),
        scale.longest if cell.deadline >= 1 else scale.typical,
        constants.trained,
        constants.enough,
        lambda num: size_of(cell, data, num),
        lambda size, _: Throughput(scaling_of(cell, data))(size),
        lambda _: restart_of(cell, data),
    )
    if reach.all_are_trained(cell.atoms):
        return Plan(cell.atoms, NEVER, cell.atoms)
    last = reach.contenders(cell.atoms, constants.wide, constants.explore * deadline_of(cell, data))
    first = min(cell.atoms, constants.wide * last)
    return Plan(first, constants.explore if last < first else NEVER, last)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.plans", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=30)
    options = parser.parse_args(arguments)
    data = find_data()
    if data is None:
        parser.error("no shared/data with recorded curves beside this checkout")
    cells = [cell for cell in curve_cells(every=False) if cell.deadline in REGIMES]
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)

    @cache
    def found(cell: Cell, plan: Plan) -> float:
        return fmean(regret(cell, data, seed, plan) for seed in seeds)

    def by_regime(values: dict[Cell, float]) -> list[float]:
        return [
            fmean(value for cell, value in values.items() if cell.deadline == regime) for regime in REGIMES
        ]

    def line(what: str, means: Iterable[float]) -> None:
        print(f"| {what} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")

    def regrets(constants: Constants, workloads: Sequence[str] = WORKLOADS) -> dict[Cell, float]:
        return {
            cell: found(cell, taken(cell, data, constants)) for cell in cells if cell.workload in workloads
        }

    print("| mean regret | " + " | ".join(f"D = {regime:g}" for regime in REGIMES) + " |")
    print("|---|" + "---|" * len(REGIMES))
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell._replace(workload=""), []).append(cell)
    hindsight = {
        group: min(fmean(found(cell, plan) for cell in members) for plan in plans(group.atoms))
        for group, members in groups.items()
    }
    line("best in hindsight", by_regime(hindsight))
    settings = DeadlineSettings()
    usual = Constants(settings.trained, settings.enough, settings.explore, settings.wide)
    line("taken", by_regime(regrets(usual)))
    for name, values in GRID.items():
        for value in values:
            if value != getattr(usual, name):
                line(f"{name} = {value:g}", by_regime(regrets(usual._replace(**{name: value}))))
    every = [Constants(*values) for values in product(*GRID.values())]
    elsewhere = []
    for left_out in WORKLOADS:
        others = [workload for workload in WORKLOADS if workload != left_out]
        best = min(every, key=lambda constants: sum(by_regime(regrets(constants, others))))
        elsewhere.append(by_regime(regrets(best, [left_out])))
        line(f"{left_out} left out: {best} is best on the others; there", elsewhere[-1])
    line("left out, mean", [fmean(values) for values in zip(*elsewhere, strict=True)])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
