"""How long one placement takes, from 64 GPUs to 10,240: `python -m tests.benchmarks.placement [--json]`.

A synthetic machine (8 GPUs a node, 16 nodes a leaf switch, 8 leaves a pod) lives through starts, resizes and ends of trials of
1 to 64 GPUs while mostly full. Measured is one decision with its update: `find` and `take`, for a resize `find`, `give` and `take`.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time

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


def measure(num_gpus: int, num_decisions: int = NUM_DECISIONS, seed: int = 0) -> list[float]:
    """Seconds of each decision."""
    pool = Pool(machine_of(num_gpus))
    draw = random.Random(seed)
    live: list[Placement] = []
    times: list[float] = []
    while len(times) < num_decisions:
        what = draw.random()
        if live and (what < 0.35 or pool.num_free < 8):
            pool.give(live.pop(draw.randrange(len(live))).atoms)
            continue
        size = draw.choice(SIZES)
        resized = live.pop(draw.randrange(len(live))) if live and what < 0.5 else None
        begin = time.perf_counter()
        found = pool.find(size, held=resized.atoms if resized else ())
        if found is not None:
            if resized is not None:
                pool.give(resized.atoms)
            pool.take(found.atoms)
        times.append(time.perf_counter() - begin)
        if (kept := found or resized) is not None:
            live.append(kept)
    return times


def main(argv: list[str]) -> None:
    result = {}
    for num_gpus in GPUS:
        times = measure(num_gpus)
        cuts = statistics.quantiles(times, n=100)
        result[str(num_gpus)] = {
            "median_us": round(statistics.median(times) * 1e6, 1),
            "p99_us": round(cuts[98] * 1e6, 1),
        }
    if "--json" in argv:
        print(json.dumps({"gpus": result}))
        return
    print("  GPUs  median us  p99 us")
    for gpus, row in result.items():
        print(f"{gpus:>6} {row['median_us']:>10.1f} {row['p99_us']:>7.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
