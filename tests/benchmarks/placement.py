"""How long one placement takes, from 64 GPUs to 10,240: `python -m tests.benchmarks.placement [--json]`.

A synthetic machine (8 GPUs a node, 16 nodes a leaf switch, 8 leaves a pod) lives through starts, resizes and ends of trials of
1 to 64 GPUs while mostly full. Measured is one decision with its update: `find` and `take`, for a resize `find`, `give` and `take`.

On a busy machine the slowest of a hundred wall times is that of the kernel's other customers. So each decision is also measured in CPU time of
its thread (`cpu_median_us`, `cpu_p99_us`), and beside it, in the same run, a yardstick: sorting 200 numbers. `times_yardstick` is the ratio of
the medians of CPU time, which a slower machine does not move.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from typing import NamedTuple

from hpcsched.topology.machine import Machine, Node, Placement, atoms_of_nodes
from hpcsched.topology.pool import Pool

GPUS = (64, 256, 1024, 4096, 10240)
SIZES = (1, 1, 1, 2, 2, 4, 4, 6, 8, 8, 16, 32, 64)
NUM_DECISIONS = 4000


def machine_of(num_gpus: int) -> Machine:
    """A three-level tree with `num_gpus` GPUs."""
    gpus = tuple(str(i) for i in range(8))
    return atoms_of_nodes(
        tuple(
            Node(
                name=f"n{i:04d}",
                gpus=gpus,
                cores=tuple(range(64)),
                switches=("spine", f"pod{i // 128}", f"leaf{i // 16}"),
                islands=(gpus[:4], gpus[4:]) if i % 4 == 3 else (),
            )
            for i in range(num_gpus // 8)
        ),
        1,
    )


class Took(NamedTuple):
    """Seconds of one decision."""

    wall: float
    cpu: float
    yardstick: float
    """CPU time of the yardstick right after it."""


def measure(num_gpus: int, num_decisions: int, seed: int = 0) -> list[Took]:
    """What each decision took."""
    pool = Pool(machine_of(num_gpus))
    draw = random.Random(seed)
    live: list[Placement] = []
    times: list[Took] = []
    numbers = draw.sample(range(10_000), 200)
    while len(times) < num_decisions:
        what = draw.random()
        if live and (what < 0.35 or pool.num_free < 8):
            pool.give(live.pop(draw.randrange(len(live))).atoms)
            continue
        size = draw.choice(SIZES)
        resized = live.pop(draw.randrange(len(live))) if live and what < 0.5 else None
        begin = time.perf_counter()
        cpu_begin = time.thread_time()
        found = pool.find(size, held=resized.atoms if resized else ())
        if found is not None:
            if resized is not None:
                pool.give(resized.atoms)
            pool.take(found.atoms)
        cpu_end = time.thread_time()
        end = time.perf_counter()
        sorted(numbers)
        times.append(Took(end - begin, cpu_end - cpu_begin, time.thread_time() - cpu_end))
        if (kept := found or resized) is not None:
            live.append(kept)
    return times


def main(argv: list[str]) -> None:
    result = {}
    for num_gpus in GPUS:
        times = measure(num_gpus, NUM_DECISIONS)
        wall, cpu, yardstick = ([1e6 * took[i] for took in times] for i in range(3))
        result[str(num_gpus)] = {
            "median_us": round(statistics.median(wall), 1),
            "p99_us": round(statistics.quantiles(wall, n=100)[98], 1),
            "cpu_median_us": round(statistics.median(cpu), 1),
            "cpu_p99_us": round(statistics.quantiles(cpu, n=100)[98], 1),
            "times_yardstick": round(statistics.median(cpu) / statistics.median(yardstick), 2),
        }
    if "--json" in argv:
        print(json.dumps({"gpus": result}))
        return
    print("  GPUs  median us  p99 us  CPU: median us  p99 us  times the yardstick")
    for gpus, row in result.items():
        print(
            f"{gpus:>6} {row['median_us']:>10.1f} {row['p99_us']:>7.1f} {row['cpu_median_us']:>15.1f} "
            f"{row['cpu_p99_us']:>7.1f} {row['times_yardstick']:>20.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
