"""Microseconds a rung decision, by number of trials: `python -m tests.benchmarks.decisions [--json] [--peer NAME=PYTHON]...`.

Ours is `Scheduler.handle(ResultReported)` at a milestone, with N trials recorded at the lowest rung: log and I/O left out,
r = 1, R = 256, eta = 4, the median of 2,000 decisions. The core is driven by the simulated world, so the trials are
started, paused and promoted as in any run; only the handling of results at milestones is timed.

Peers are measured in environments of their own, each by its own small script (`tests/benchmarks/peers/`): `--peer
ray=/path/to/venv/bin/python`; `optuna` is looked for in this environment too. A peer that is not there is said aloud and
left out. Everything is measured in this one run, so the ratios mean something; the microseconds are of this machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

SIZES = (100, 1_000, 10_000, 100_000)
NUM_DECISIONS = 2_000
PEERS = ("ray", "syne_tune", "optuna")
PEER_LIMIT_S = 600
MILESTONES = frozenset({1, 4, 16, 64})


def time_ours(policy: str, num_recorded: int, num_decisions: int, *, num_atoms: int = 4) -> list[float]:
    """Seconds of each timed decision.

    A search is run until `num_recorded` trials have reported, then a share of the decisions is timed while the number grows
    by at most a tenth; and anew, with another seed, until there are enough.
    """
    samples: list[float] = []
    seed = 0
    share = max(1, num_recorded // 10)
    while len(samples) < num_decisions:
        samples += _time_one_search(
            policy, num_recorded, min(share, num_decisions - len(samples)), seed, num_atoms
        )
        seed += 1
    return samples


def _time_one_search(
    policy: str, num_recorded: int, num_samples: int, seed: int, num_atoms: int
) -> list[float]:
    from hpcsched.config.options import POLICIES
    from hpcsched.core.events import Event, ExperimentBegan, ResultReported
    from hpcsched.core.scheduler import Scheduler
    from hpcsched.core.settings import Settings
    from hpcsched.sim.machine import simulated_machine
    from hpcsched.sim.paper import PaperWorkload
    from hpcsched.sim.request import NO_TIMEOUTS
    from hpcsched.sim.scaling import Throughput
    from hpcsched.sim.simulate import WorkloadSampler
    from hpcsched.sim.world import World, WorldSettings

    settings = Settings(
        policy=POLICIES[policy](),  # type: ignore[arg-type]  # the union's members
        grace_period=1,
        max_iterations=256,
        reduction_factor=4,
        multiple_of=1,
        timeouts=NO_TIMEOUTS,
        save_at_deadline=False,
    )
    machine = simulated_machine(num_atoms)
    workload = PaperWorkload(seed)
    scheduler = Scheduler(settings)
    world = World(
        machine,
        workload,
        WorkloadSampler(workload, None),
        Throughput("linear"),
        WorldSettings(),
        max_iterations=256,
    )
    clock = time.perf_counter
    samples: list[float] = []
    event: Event = ExperimentBegan(0.0, machine, 1e9)
    recorded = 0
    while len(samples) < num_samples:
        if type(event) is ResultReported and event.training_iteration in MILESTONES:
            recorded += event.training_iteration == 1
            began = clock()
            actions = scheduler.handle(event)
            took = clock() - began
            if recorded > num_recorded:
                samples.append(took)
        else:
            actions = scheduler.handle(event)
        for action in actions:
            world.perform(action)
        event = world.next_event()
    return samples


def run_peer(name: str, python: str, sizes: Sequence[int], num_decisions: int) -> dict[str, float] | str:
    """Microseconds by number of trials, or why it could not be measured."""
    script = Path(__file__).parent / "peers" / f"{name}_peer.py"
    command = [python, str(script), ",".join(map(str, sizes)), str(num_decisions)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_LIMIT_S, check=False)
    except FileNotFoundError:
        return f"no such Python: {python}"
    except subprocess.TimeoutExpired:
        return f"took longer than {PEER_LIMIT_S} s"
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
    document: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {str(size): float(value) for size, value in document.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.decisions")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help=f"one of {', '.join(PEERS)}"
    )
    parser.add_argument(
        "--policy", action="append", default=[], help="ours; default: asha, hypersched and deadline"
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--decisions", type=int, default=NUM_DECISIONS)
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(",")]
    pythons = dict(word.split("=", 1) for word in options.peer)
    unknown = set(pythons) - set(PEERS)
    if unknown:
        parser.error(f"--peer {', '.join(unknown)}: known are {', '.join(PEERS)}")
    if "optuna" not in pythons and importlib.util.find_spec("optuna") is not None:
        pythons["optuna"] = sys.executable
    found: dict[str, dict[str, float]] = {}
    for policy in options.policy or ["asha", "hypersched", "deadline"]:
        found[f"hpcsched {policy}"] = {
            str(size): median(time_ours(policy, size, options.decisions)) * 1e6 for size in sizes
        }
    for name in PEERS:
        if name not in pythons:
            print(
                f"{name}: not measured: give --peer {name}=PYTHON of an environment that has it",
                file=sys.stderr,
            )
            continue
        result = run_peer(name, pythons[name], sizes, options.decisions)
        if isinstance(result, str):
            print(f"{name}: not measured: {result}", file=sys.stderr)
        else:
            found[name] = result
    if options.json:
        print(json.dumps({"microseconds_a_decision": found}))
        return 0
    print("microseconds a rung decision" + "".join(f"{size:>12,}" for size in sizes))
    for label, row in found.items():
        print(
            f"{label:28s}"
            + "".join(f"{row[str(s)]:12.1f}" if str(s) in row else f"{'-':>12s}" for s in sizes)
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
