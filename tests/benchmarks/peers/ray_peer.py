"""Ray Tune's AsyncHyperBandScheduler (ASHA): one decision at a rung with N trials recorded.

Run by tests/benchmarks/decisions.py in an environment that has ray[tune]: SIZES NUM_DECISIONS -> JSON, microseconds.
"""

from __future__ import annotations

import json
import random
import sys
import time
from statistics import median

from ray.tune.schedulers import AsyncHyperBandScheduler


class _Trial:
    """What the scheduler asks of a trial."""

    def __init__(self, number: int) -> None:
        self.trial_id = f"trial_{number:06d}"


def measure(num_trials: int, num_decisions: int) -> float:
    scheduler = AsyncHyperBandScheduler(
        time_attr="training_iteration",
        metric="score",
        mode="max",
        grace_period=1,
        max_t=256,
        reduction_factor=4,
    )
    rng = random.Random(0)

    def report(number: int) -> float:
        trial = _Trial(number)
        scheduler.on_trial_add(None, trial)
        result = {"training_iteration": 1, "score": rng.random()}
        start = time.perf_counter()
        scheduler.on_trial_result(None, trial, result)
        return time.perf_counter() - start

    # What each report does is the decision that is timed, so N reports are slow at large N: the records are put in directly.
    bracket = scheduler._brackets[0]
    lowest = bracket._rungs[-1]
    recorded = lowest.recorded if hasattr(lowest, "recorded") else lowest[1]
    for number in range(num_trials):
        recorded[f"trial_{number:06d}"] = rng.random()
    samples = []
    for number in range(num_trials, num_trials + num_decisions):
        samples.append(report(number))
        recorded.pop(f"trial_{number:06d}", None)
    return median(samples) * 1e6


sizes, num_decisions = [int(size) for size in sys.argv[1].split(",")], int(sys.argv[2])
print(json.dumps({str(size): measure(size, num_decisions) for size in sizes}))
