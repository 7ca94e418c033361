"""Optuna's SuccessiveHalvingPruner: one decision at a rung with N trials in the study (storage in memory).

Run by tests/benchmarks/decisions.py in an environment that has Optuna: SIZES NUM_DECISIONS -> JSON, microseconds.
"""

from __future__ import annotations

import json
import random
import sys
import time
from statistics import median

import optuna

LIMIT_S = 60.0
"""A size that takes longer gets the median of what was measured until then."""


def measure(num_trials: int, num_decisions: int) -> float:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=4)
    study = optuna.create_study(
        direction="maximize", pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    rng = random.Random(0)
    for _ in range(num_trials):
        score = rng.random()
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.PRUNED,
                value=score,
                intermediate_values={1: score},
                system_attrs={"completed_rung_0": score},
            )
        )
    samples = []
    began = time.monotonic()
    while len(samples) < num_decisions and (time.monotonic() - began < LIMIT_S or not samples):
        trial = study.ask()
        trial.report(rng.random(), 1)
        start = time.perf_counter()
        trial.should_prune()
        samples.append(time.perf_counter() - start)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if len(samples) >= max(1, num_trials // 10):
            break
    return median(samples) * 1e6


sizes, num_decisions = [int(size) for size in sys.argv[1].split(",")], int(sys.argv[2])
print(json.dumps({str(size): measure(size, num_decisions) for size in sizes if size <= 10_000}))
