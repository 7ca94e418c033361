"""Simulated trials and results a second: `python -m tests.benchmarks.simulator [--json]`.

ASHA (the stopping variant, which is Syne Tune's), 4 workers, r = 1, R = 100, eta = 3, one result an iteration, by number of
trials, each in a process of its own so that its memory is its own; then the large search, 10,000 trials on 1,024 atoms.
`--peer PYTHON` runs Syne Tune's simulator on the same curve (its decisions and curves alone: no files, no prints) in an
environment that has it, at up to 5,000 trials.

Rates are per second of processor time of the one process that simulates, so that a busy machine does not spoil them;
they are of this machine: compare the ratios of one run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

LARGE = (10_000, 1024)
"""Trials and atoms of the large search."""
PEER_SIZES = (300, 1000, 5000)
PEER_LIMIT_S = 900


class Measured(msgspec.Struct, frozen=True):
    """One search, simulated."""

    num_trials: int
    num_atoms: int
    cpu_s: float
    wall_s: float
    num_results: int
    num_events: int
    trials_per_s: float
    results_per_s: float
    peak_memory_mb: float
    memory_per_trial_kb: float
    """Beyond that of a search of one trial."""


def measure(num_trials: int, num_atoms: int) -> dict[str, float]:
    """Simulate one search in this process, without a deadline."""
    from hpcsched.core.settings import AshaSettings, Settings
    from hpcsched.sim.paper import PaperWorkload
    from hpcsched.sim.request import NO_TIMEOUTS
    from hpcsched.sim.simulate import simulate

    settings = Settings(
        policy=AshaSettings(stopping=True),
        grace_period=1,
        max_iterations=100,
        reduction_factor=3,
        multiple_of=1,
        num_trials=num_trials,
        timeouts=NO_TIMEOUTS,
        save_at_deadline=False,
    )
    began, cpu_began = time.perf_counter(), time.process_time()
    run = simulate(settings, PaperWorkload(0), num_atoms=num_atoms, deadline_s=None)
    cpu_s, wall_s = time.process_time() - cpu_began, time.perf_counter() - began
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cpu_s": cpu_s,
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
    parser.add_argument("--sizes", default="300,1000,5000,20000,100000")
    parser.add_argument("--peer", default=None, metavar="PYTHON", help="of an environment that has syne-tune")
    options = parser.parse_args(arguments)
    empty_kb = _in_a_process(1, 4)["peak_kb"]
    rows: list[Measured] = []
    cases = [(int(size), 4) for size in options.sizes.split(",") if size] + [LARGE]
    for num_trials, num_atoms in cases:
        found = _in_a_process(num_trials, num_atoms)
        rows.append(
            Measured(
                num_trials=num_trials,
                num_atoms=num_atoms,
                cpu_s=found["cpu_s"],
                wall_s=found["wall_s"],
                num_results=int(found["results"]),
                num_events=int(found["events"]),
                trials_per_s=found["trials"] / found["cpu_s"],
                results_per_s=found["results"] / found["cpu_s"],
                peak_memory_mb=found["peak_kb"] / 1024,
                memory_per_trial_kb=(found["peak_kb"] - empty_kb) / num_trials,
            )
        )
        if not options.json:
            _show(rows[-1], first=len(rows) == 1)
    peer = _peer(options.peer)
    if options.json:
        document: dict[str, Any] = {
            "simulator": [msgspec.to_builtins(row) for row in rows],
            "syne_tune": {str(size): rate for size, rate in peer.items()},
        }
        print(json.dumps(document))
        return 0
    for size, rate in peer.items():
        ours = next((row.results_per_s for row in rows if row.num_trials == size), None)
        times = "" if ours is None else f": ours is {ours / rate:.0f} times that"
        print(f"Syne Tune, {size} trials: {rate:.0f} results a second{times}")
    return 0


def _peer(python: str | None) -> dict[int, float]:
    """Syne Tune's results a second by number of trials; says why where it could not be measured."""
    if python is None:
        print(
            "Syne Tune: not measured: give --peer PYTHON of an environment that has syne-tune",
            file=sys.stderr,
        )
        return {}
    script = Path(__file__).parent / "peers" / "syne_tune_simulator.py"
    rates: dict[int, float] = {}
    for size in PEER_SIZES:
        try:
            done = subprocess.run(
                [python, str(script), str(size)],
                capture_output=True,
                text=True,
                timeout=PEER_LIMIT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            why = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
            print(f"Syne Tune: not measured: {why}", file=sys.stderr)
            break
        found = json.loads(done.stdout.strip().splitlines()[-1])
        rates[size] = found["results"] / found["cpu_s"]
    return rates


def _show(row: Measured, *, first: bool) -> None:
    if first:
        print("  trials  atoms     cpu s    wall s   trials/s  results/s   peak MB  KB a trial")
    print(
        f"{row.num_trials:8d} {row.num_atoms:6d} {row.cpu_s:9.3f} {row.wall_s:9.3f} {row.trials_per_s:10.0f} {row.results_per_s:10.0f}"
        f" {row.peak_memory_mb:9.0f} {row.memory_per_trial_kb:11.2f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
