"""What narrowing once can reach on recorded curves: `python -m analysis.plans [--draws N]`.

A plan (n0, f, n1): n0 trials share all atoms until the share f of the deadline, then the best n1 of them do. Scheduler,
scout and the end of iterations under way are left out: each plan is evaluated on the records themselves, on the same random pools. By
regime, the mean regret over workloads, allocations and conditions is printed of

- the plan that is best in hindsight for each allocation and condition, the same for all workloads: a bound for policies
  that narrow once and know nothing of the workload;
- the plan that `deadline` would take, by `Outlook`, with each rho; and, leaving one workload out at a time, with the rho
  that is best on the other three.
"""

from __future__ import annotations

import argparse
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from analysis.judging import CLIP, SCALINGS, WORKLOADS, Data, find_data, scale_of
from analysis.policies import REGIMES
from hpcsched.core.policies.deadline_evidence import top_mean, top_variance
from hpcsched.core.policies.deadline_outlook import Outlook
from hpcsched.core.settings import DeadlineSettings
from hpcsched.sim.scaling import Throughput

SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
RHOS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
POOL = 100


class Case(NamedTuple):
    """Deadline and restart cost in median full trainings."""

    deadline: float
    atoms: int
    scaling: str
    restart: float


class Plan(NamedTuple):
    first: int
    share: float
    last: int


CASES = [
    Case(deadline, atoms, scaling, restart)
    for deadline in REGIMES
    for atoms in (8, 32)
    for scaling, restart in (("linear", 0.0005), ("table", 0.01))
]


def plans(atoms: int) -> list[Plan]:
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= atoms]
    return [
        Plan(first, share, last)
        for first in sizes
        for last in sizes
        for share in ((0.0,) if last == first else SHARES)
        if last <= first
    ]


def speed_of(case: Case, num: int) -> float:
    """Of each of so many trials, with as many atoms as help."""
    speed = Throughput(SCALINGS[case.scaling])
    return max(speed(size) for size in range(1, max(1, case.atoms // num) + 1))


class Progress(NamedTuple):
    """Of a plan, in full trainings of one trial: done when it is narrowed, and at most done at the deadline."""

    judged: float
    reached: float


def progress(case: Case, plan: Plan) -> Progress:
    judged = max(0.0, plan.share * case.deadline - case.restart) * speed_of(case, plan.first)
    restart = case.restart if speed_of(case, plan.last) > speed_of(case, plan.first) else 0.0
    left = max(0.0, case.deadline - max(plan.share * case.deadline, case.restart) - restart)
    return Progress(judged, judged + left * speed_of(case, plan.last))


@lru_cache(maxsize=8)
def _curves(data: Data, workload: str) -> list[tuple[list[float], list[float]]]:
    """Of each record: when each iteration ends, in median full trainings, and the best score until then."""
    scale = scale_of(data.curves(workload))
    return [
        (
            [end / scale.full_s for end in accumulate(record.durations_s)],
            list(accumulate((scale.sign * metric for metric in record.metrics), max)),
        )
        for record in scale.records
    ]


def regret(data: Data, workload: str, case: Case, plan: Plan, draws: int) -> float:
    """Mean over random pools, on the scale of `analysis.judging`."""
    scale = scale_of(data.curves(workload))
    curves = _curves(data, workload)
    most = scale.longest if case.deadline >= 1 else scale.typical
    judged, reached = progress(case, plan)
    alone = (case.deadline - case.restart) * speed_of(case, 1)

    def score(curve: tuple[list[float], list[float]], work: float) -> float:
        done = min(bisect_right(curve[0], work + 1e-12), most)
        return curve[1][done - 1] if done else -math.inf

    found = []
    for draw in range(draws):
        pool = random.Random(draw).choices(curves, k=POOL)
        ranked = sorted(pool[: plan.first], key=lambda curve: score(curve, judged), reverse=True)
        got = max(score(curve, reached) for curve in ranked[: plan.last])
        top = max(score(curve, alone) for curve in pool)
        lost = (top - got) / (scale.best - scale.median)
        found.append(min(lost, CLIP) if case.deadline < 1 else lost)
    return fmean(found)


def value(data: Data, workload: str, case: Case, plan: Plan, rho: float) -> float:
    """V of `deadline_outlook`."""
    options = DeadlineSettings()
    scale = scale_of(data.curves(workload))
    most = scale.longest if case.deadline >= 1 else scale.typical
    judged, reached = (scale.typical * work for work in progress(case, plan))
    if reached < 1:
        return -math.inf
    outlook = Outlook(0.0, 1.0, most, rho, options.growth, options.saturation)
    foretold = outlook.foretold(judged, min(most, reached))
    differ = math.sqrt(foretold**2 * top_variance(plan.last, plan.first) + 1 - foretold**2)
    choice = foretold * top_mean(plan.last, plan.first) + differ * top_mean(1, plan.last)
    return outlook.growth * outlook.maturity(reached) + choice


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.plans", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--draws", type=int, default=40, help="random pools")
    options = parser.parse_args(arguments)
    data = find_data()
    if data is None:
        parser.error("no shared/data with recorded curves beside this checkout")
    found = {
        (workload, case, plan): regret(data, workload, case, plan, options.draws)
        for case in CASES
        for workload in WORKLOADS
        for plan in plans(case.atoms)
    }

    def hindsight(case: Case) -> float:
        return min(fmean(found[workload, case, plan] for workload in WORKLOADS) for plan in plans(case.atoms))

    def taken(workload: str, case: Case, rho: float) -> float:
        plan = max(plans(case.atoms), key=lambda plan: value(data, workload, case, plan, rho))
        return found[workload, case, plan]

    print("| mean regret | " + " | ".join(f"D = {regime:g}" for regime in REGIMES) + " |")
    print("|---|" + "---|" * len(REGIMES))
    by_regime = {regime: [case for case in CASES if case.deadline == regime] for regime in REGIMES}
    print(
        "| best in hindsight | "
        + " | ".join(f"{fmean(map(hindsight, cases)):.3f}" for cases in by_regime.values())
        + " |"
    )
    for rho in RHOS:
        means = [
            fmean(taken(workload, case, rho) for case in cases for workload in WORKLOADS)
            for cases in by_regime.values()
        ]
        print(f"| taken, rho = {rho:g} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    by_workload = {
        (workload, rho): fmean(taken(workload, case, rho) for case in CASES)
        for workload in WORKLOADS
        for rho in RHOS
    }
    for left_out in WORKLOADS:
        others = [workload for workload in WORKLOADS if workload != left_out]
        best = min(RHOS, key=lambda rho: sum(by_workload[workload, rho] for workload in others))
        print(
            f"{left_out} left out: rho = {best:g} is best on the others; there {by_workload[left_out, best]:.3f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
