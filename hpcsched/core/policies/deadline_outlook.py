"""What the best model at the deadline can be expected to be worth, if the field is narrowed now, later or never.

Theory. A plan (n, t) keeps n contenders, the best so far, from the time t on and shares all atoms among them; each then
reaches K iterations. In units of the spread among trials it is worth

    V(n, t) = G(K) + rho_K z_n + sqrt(rho_K^2 v_n + 1 - rho_K^2) e_n

- G(K): growth from now until K. Growth g a doubling, which fades where trainings usually end: after L iterations a
  doubling brings half of it, far beyond next to nothing, and beyond R nothing:
  G(K) = g [m(K) - m(k)], m(x) = 1/2 log2(x^2 / (L^2 + x^2)).
- rho_K: how well the ranks at t foretell those at K, rho^log2(K / k(t)).
- z_n, v_n: mean and variance of the standings of the n best of all that have been compared; e_n: the expected best of
  n normal deviates. The last term is what choosing among the n at the end adds.

Waiting raises rho_K, keeping fewer raises K. What a plan costs (the restart, the rest of an iteration until those who go
have left) is taken off its time. The plans compared are n = 1, 2, 4, ... and never, t = now and some later times: the
field is narrowed when nothing later is better.

The numbers are assumed, not measured: until trainings end, nothing in a search shows how its ranks will turn at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hpcsched.core.policies.deadline_evidence import top_mean, top_variance

LATER = (0.0, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""When a plan may begin, as shares of the time left."""


class Outlook(NamedTuple):
    """The numbers that all plans share, at one moment."""

    left_s: float
    iteration_s: float
    """Median, at one atom."""
    max_iterations: int
    rho: float
    """Correlation of the ranks at k and 2 k iterations."""
    growth: float
    """Of a doubling, in spreads."""
    saturation: float
    """L."""

    def maturity(self, iterations: float) -> float:
        """m(x): growth from ever so early until x iterations, in doublings; at most 0."""
        reached = min(float(self.max_iterations), max(1.0, iterations))
        square = reached * reached
        limit = self.saturation * self.saturation
        return 0.5 * math.log2(square / (limit + square))

    def foretold(self, now: float, then: float) -> float:
        """rho_K: correlation of the standings at `now` and `then` iterations."""
        if now < 1:
            return 0.0
        if then <= now:
            return 0.999
        return min(0.999, math.pow(self.rho, math.log2(then / now)))


class Plan(NamedTuple):
    num: int
    """Contenders that are kept."""
    size: int
    """Atoms of each of them."""
    wait_s: float
    value: float
    iterations: float
    """That the best reaches."""


class Field(NamedTuple):
    """Who runs: `num` contenders on `size` atoms, the best of them at `iterations`; `seen` trials were compared."""

    num: int
    size: int
    iterations: float
    seen: int


def best_plan(
    outlook: Outlook,
    field: Field,
    *,
    size_for: Callable[[int], int],
    scaling: Callable[[int, int], float],
    restart_s: Callable[[int], float],
    seen_per_s: float,
) -> tuple[Plan, Plan]:
    """(the best plan, that of narrowing never). `size_for(n)`: useful atoms of each of n contenders; `scaling(a, n)`: the
    speed of n trials on a atoms each, placed on this machine, over one atom's; `seen_per_s`: trials that will be compared in a second while the field stays wide."""
    speed = scaling(field.size, field.num) / outlook.iteration_s
    base = outlook.maturity(field.iterations)

    def value(num: int, wait_s: float, reached: float, judged: float) -> float:
        rho = outlook.foretold(judged, reached)
        seen = max(num, round(field.seen + seen_per_s * wait_s))
        differ = math.sqrt(rho * rho * top_variance(num, seen) + 1 - rho * rho)
        choice = rho * top_mean(num, seen) + differ * top_mean(1, num)
        return outlook.growth * (outlook.maturity(reached) - base) + choice

    until_r = outlook.max_iterations
    reach = min(until_r, field.iterations + speed * outlook.left_s)
    never = Plan(field.num, field.size, outlook.left_s, value(field.num, outlook.left_s, reach, reach), reach)
    best = never
    lag_s = 1.0 / speed
    num = 1
    while num < field.num:
        size = size_for(num)
        if size > field.size:
            faster = scaling(size, num) / outlook.iteration_s
            for share in LATER:
                wait_s = share * outlook.left_s
                judged = min(until_r, field.iterations + speed * wait_s)
                at_once_s = outlook.left_s - wait_s - lag_s - restart_s(size)
                if at_once_s <= 0:
                    break
                reached = min(until_r, judged + 1 + faster * at_once_s)
                worth = value(num, wait_s, reached, judged)
                if worth > best.value + 1e-9:
                    best = Plan(num, size, wait_s, worth, reached)
        num *= 2
    return best, never


def width(
    outlook: Outlook,
    num_atoms: int,
    *,
    size_for: Callable[[int], int],
    scaling: Callable[[int, int], float],
    restart_s: Callable[[int], float],
) -> Plan:
    """How many newcomers shall share free atoms: the plan of the field that is worth most, narrowed later or not."""
    best: Plan | None = None
    num = num_atoms
    while num >= 1:
        size = size_for(num)
        left_s = outlook.left_s - restart_s(size)
        plan, _ = best_plan(
            outlook._replace(left_s=left_s),
            Field(num, size, 0.0, num),
            size_for=size_for,
            scaling=scaling,
            restart_s=restart_s,
            seen_per_s=0.0,
        )
        if best is None or plan.value > best.value + 1e-9:
            best = Plan(num, size, plan.wait_s, plan.value, plan.iterations)
        num //= 2
    assert best is not None
    return best
