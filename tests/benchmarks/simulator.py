"""Simulated trials and results a second: `python -m tests.benchmarks.simulator [--json]`.

The comparison case is Syne Tune's simulator (ASHA, 4 workers, r = 1, R = 100, eta = 3, one result an iteration): about 1,000
trials or 6,400 results a second, falling to 340 trials a second at 5,000 trials. Ours by number of trials, each in a
process of its own so that its memory is its own; then the large search, 10,000 trials on 1,024 atoms. Every number is of
this machine and this minute: compare the ratios of one run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Sequence
from typing import Any

import msgspec

SYNE_TUNE_RESULTS_PER_S = 6400
"""Measured elsewhere, on another machine: a yardstick, not a peer of this run."""


class Measured(msgspec.Struct, frozen=True):
    """One search, simulated."""

    num_trials: int
    num_atoms: int
    wall_s: float
    num_results: int
    num_events: int
    trials_per_s: float
    results_per_s: float
    peak_memory_mb: float
    memory_per_trial_kb: float
    """Beyond that of a search of one trial."""


def measure(num_trials: int, num_atoms: int, policy: str = "asha") -> dict[str, float]:
    """Simulate one search in this process, without a deadline."""
    from hpcsched.config.options import POLICIES
    from hpcsched.core.settings import Settings
    from hpcsched.sim.paper import PaperWorkload
    from hpcsched.sim.request import NO_TIMEOUTS
    from hpcsched.sim.simulate import simulate

    settings = Settings(
        policy=POLICIES[policy](),  # type: ignore[arg-type]  # the union's members
        grace_period=1,
        max_iterations=100,
        reduction_factor=3,
        multiple_of=1,
        num_trials=num_trials,
        timeouts=NO_TIMEOUTS,
        save_at_deadline=False,
    )
    began = time.perf_counter()
    run = simulate(settings, PaperWorkload(0), num_atoms=num_atoms, deadline_s=None)
    wall_s = time.perf_counter() - began
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "wall_s": wall_s,
        "results": run.num_results,
        "events": run.num_events,
        "trials": run.trials_started,
        "peak_kb": peak_kb,
    }


def _in_a_process(num_trials: int, num_atoms: int) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (num_trials, num_atoms))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.simulator")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", default="100,1000,5000,20000,100000")
    options = parser.parse_args(arguments)
    empty_kb = _in_a_process(1, 4)["peak_kb"]
    rows: list[Measured] = []
    cases = [(int(size), 4) for size in options.sizes.split(",") if size] + [(10_000, 1024)]
    for num_trials, num_atoms in cases:
        found = _in_a_process(num_trials, num_atoms)
        rows.append(
            Measured(
                num_trials=num_trials,
                num_atoms=num_atoms,
                wall_s=found["wall_s"],
                num_results=int(found["results"]),
                num_events=int(found["events"]),
                trials_per_s=found["trials"] / found["wall_s"],
                results_per_s=found["results"] / found["wall_s"],
                peak_memory_mb=found["peak_kb"] / 1024,
                memory_per_trial_kb=(found["peak_kb"] - empty_kb) / num_trials,
            )
        )
        if not options.json:
            _show(rows[-1], first=len(rows) == 1)
    if options.json:
        document: dict[str, Any] = {
            "simulator": [msgspec.to_builtins(row) for row in rows],
            "yardstick_results_per_s": SYNE_TUNE_RESULTS_PER_S,
        }
        print(json.dumps(document))
    return 0


def _show(row: Measured, *, first: bool) -> None:
    if first:
        print("  trials  atoms    wall s   trials/s  results/s  x Syne Tune's 6400   peak MB  KB a trial")
    print(
        f"{row.num_trials:8d} {row.num_atoms:6d} {row.wall_s:9.3f} {row.trials_per_s:10.0f} {row.results_per_s:10.0f}"
        f" {row.results_per_s / SYNE_TUNE_RESULTS_PER_S:20.1f} {row.peak_memory_mb:9.0f} {row.memory_per_trial_kb:11.2f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
