"""Syne Tune's asynchronous successive halving: one decision at a rung with N trials recorded.

Run by tests/benchmarks/decisions.py in an environment that has syne-tune: SIZES NUM_DECISIONS -> JSON, microseconds.
"""

from __future__ import annotations

import json
import random
import sys
import time
from datetime import datetime
from statistics import median

from syne_tune.backend.trial_status import Trial
from syne_tune.config_space import uniform
from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

LIMIT_S = 60.0


def measure(num_trials: int, num_decisions: int) -> float:
    scheduler = AsynchronousSuccessiveHalving(
        config_space={"x": uniform(0, 1)},
        metric="score",
        do_minimize=False,
        time_attr="epoch",
        max_t=256,
        grace_period=1,
        reduction_factor=4,
        random_seed=0,
    )
    rng = random.Random(0)

    def report(number: int) -> float:
        trial = Trial(trial_id=number, config={"x": rng.random()}, creation_time=datetime.now())
        scheduler.on_trial_add(trial)
        result = {"epoch": 1, "score": rng.random()}
        start = time.perf_counter()
        scheduler.on_trial_result(trial, result)
        return time.perf_counter() - start

    for number in range(num_trials):
        report(number)
    samples: list[float] = []
    began = time.monotonic()
    share = max(1, num_trials // 10)
    while len(samples) < min(num_decisions, share) and (time.monotonic() - began < LIMIT_S or not samples):
        samples.append(report(num_trials + len(samples)))
    return median(samples) * 1e6


sizes, num_decisions = [int(size) for size in sys.argv[1].split(",")], int(sys.argv[2])
print(json.dumps({str(size): measure(size, num_decisions) for size in sizes if size <= 10_000}))
