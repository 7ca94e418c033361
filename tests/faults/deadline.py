"""The best checkpoint stands before the deadline: `python -m tests.faults.deadline --runs 1000 --json [--seed S] [--real N]`.

Prints {"runs", "missed"}. A run is missed when it ends without a complete checkpoint though a result came in time for one,
when the best checkpoint was completed after the deadline, or when the trial that led one iteration and one save before the
deadline has no checkpoint of what it led with (where things get later no faster than measurements can tell: saves and
iterations that double within a minute, a best trial that changes in the last minute, an end that is moved with time for one
iteration and one save). In half of the runs things jump: saves or iterations are suddenly many times slower, trials crash, nodes
go, saves fail; then only what can be promised is asked: that a complete checkpoint stands.

`--real N` adds N runs of real drivers and light trials whose saves get slower and whose deadline is moved.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from random import Random

from hpcsched.core.settings import (
    AshaSettings,
    DeadlineSettings,
    FifoSettings,
    FixedSplitSettings,
    HyperSchedSettings,
    PolicySettings,
    Settings,
    TimeoutSettings,
)
from hpcsched.sim.faults import FaultSettings
from hpcsched.sim.machine import simulated_machine
from hpcsched.sim.world import WorldSettings
from tests.support.lateness import Deadline, Slowness, missed, run

POLICIES: tuple[PolicySettings, ...] = (
    FifoSettings(),
    AshaSettings(),
    AshaSettings(stopping=True),
    FixedSplitSettings(),
    HyperSchedSettings(),
    HyperSchedSettings(entrance="reversible", keep_paused=True, protect_leader=True, shrink_pays=True),
    DeadlineSettings(),
)


def constant(_: float) -> float:
    return 1.0


def doubling(since_s: float, every_s: float) -> Slowness:
    return lambda now: 1.0 if now < since_s else 2.0 ** ((now - since_s) / every_s)


def jump(at_s: float, factor: float) -> Slowness:
    return lambda now: 1.0 if now < at_s else factor


def scenario(seed: int) -> Deadline:
    rng = Random(f"deadline {seed}")
    predictable = seed % 2 == 0
    deadline_s = rng.uniform(60.0, 240.0)
    late_s = deadline_s * rng.uniform(0.3, 0.9)
    moves: tuple[tuple[float, float], ...] = ()
    end_s = deadline_s
    if rng.random() < 0.5:
        when = rng.uniform(5.0, deadline_s - 2.0)
        end_s = when + rng.uniform(0.0, 30.0) if rng.random() < 0.5 else deadline_s + rng.uniform(-30.0, 60.0)
        end_s = max(end_s, when + 0.5)
        moves = ((when, end_s),)
    choices: list[Slowness]
    if predictable:
        choices = [constant, doubling(late_s, rng.uniform(60.0, 200.0))]
    else:
        choices = [
            constant,
            doubling(late_s, 10.0),
            jump(max(deadline_s, end_s) - rng.uniform(1.0, 40.0), rng.uniform(2.0, 20.0)),
        ]
    saves, iterations = rng.choice(choices), rng.choice(choices)
    return Deadline(
        seed=seed,
        settings=Settings(
            policy=rng.choice(POLICIES), grace_period=1, max_iterations=rng.choice([27, 81, 729]), reduction_factor=3,
            timeouts=TimeoutSettings(start_s=30.0, silence_s=120.0, preempt_grace_s=60.0, kill_wait_s=3.0),
            num_trials=rng.choice([None, 12]), metric_window=rng.choice([1, 1, 3]),
        ),
        machine=simulated_machine(rng.choice([1, 2, 4, 8])),
        deadline_s=deadline_s,
        world=WorldSettings(
            start_up_s=rng.uniform(0.0, 3.0), save_s=rng.choice([0.05, 0.3, 2.0]), save_budget=rng.choice([0.05, 0.05, 0.2]),
            verdict_delay_s=rng.choice([0.0, 0.05]), boundary_s=rng.choice([None, None, 0.2]), kill_s=0.2,
        ),
        step_s=rng.choice([0.3, 1.0, 4.0]),
        saves=saves,
        iterations=iterations,
        moves=moves,
        faults=None if predictable else FaultSettings(
            crash_rate=rng.choice([0.0, 0.005]), hang_rate=rng.choice([0.0, 0.002]), launch_fail=0.02, refuse=0.02, save_fail=0.03,
            node_rate=rng.choice([0.0, 0.002]), node_back_s=10.0, unproven=0.1, unproven_s=5.0,
        ),
        predictable=predictable,
    )  # fmt: skip


def simulated(runs: int, seed: int, complain: Callable[[str], None]) -> int:
    num_missed = 0
    for number in range(seed, seed + runs):
        given = scenario(number)
        try:
            why = missed(given, run(given))
        except Exception:
            why = traceback.format_exc(limit=-4)
        if why is not None:
            num_missed += 1
            complain(f"seed {number} ({given.settings.policy}): {why}")
    return num_missed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.deadline", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs")
    parser.add_argument("--real", type=int, default=0, help="runs of real drivers besides")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)

    def complain(text: str) -> None:
        print(text, file=sys.stderr)

    num_missed = simulated(given.runs, given.seed, complain)
    if given.real:
        from tests.faults.real_deadlines import real

        num_missed += real(given.real, given.seed, complain)
    result = {"runs": given.runs + given.real, "missed": num_missed}
    print(json.dumps(result) if given.json else f"runs {result['runs']}, missed {result['missed']}")
    return 0 if num_missed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
