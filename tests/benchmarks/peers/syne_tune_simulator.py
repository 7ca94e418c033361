"""Syne Tune's simulator on the paper's curve: ASHA (its stopping variant), 4 workers, r = 1, R = 100, eta = 3.

Run by tests/benchmarks/simulator.py in an environment that has syne-tune: NUM_TRIALS -> JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from typing import Any

os.environ["SYNETUNE_FOLDER"] = tempfile.mkdtemp()
logging.disable(logging.CRITICAL)

import numpy as np  # noqa: E402  # after the folder is set: syne_tune reads it when it is imported
from syne_tune import StoppingCriterion, Tuner  # noqa: E402
from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback  # noqa: E402
from syne_tune.blackbox_repository.blackbox import Blackbox  # noqa: E402
from syne_tune.blackbox_repository.simulated_tabular_backend import UserBlackboxBackend  # noqa: E402
from syne_tune.config_space import randint, uniform  # noqa: E402
from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving  # noqa: E402

R = 100
SPACE = {"u": uniform(0.0, 1.0), "b1": uniform(0.0, 1.0), "b2": uniform(0.0, 1.0)}


class PaperBlackbox(Blackbox):
    """score(k) and elapsed seconds, k = 1 .. R."""

    def __init__(self) -> None:
        super().__init__(SPACE, {"epoch": randint(1, R)}, ["score", "elapsed_time"])

    @property
    def fidelity_values(self) -> Any:
        return np.arange(1, R + 1)

    def _objective_function(
        self, configuration: dict[str, Any], fidelity: Any = None, seed: Any = None
    ) -> Any:
        k = self.fidelity_values if fidelity is None else np.array([fidelity["epoch"]])
        b0 = -0.1 * np.log1p(-configuration["u"])
        score = 1 - 0.5 * (1 / (b0 * k / 100 + 0.1 * configuration["b1"] + 0.5) + 0.01 * configuration["b2"])
        both = np.stack([score, 0.1 * k], axis=1)
        return both if fidelity is None else {"score": both[0, 0], "elapsed_time": both[0, 1]}


class Counter(SimulatorCallback):
    num_results = 0

    def on_trial_result(self, trial: Any, status: str, result: dict[str, Any], decision: str) -> None:
        self.num_results += 1
        super().on_trial_result(trial, status, result, decision)


def main(num_trials: int) -> None:
    counter = Counter()
    tuner = Tuner(
        trial_backend=UserBlackboxBackend(blackbox=PaperBlackbox(), elapsed_time_attr="elapsed_time"),
        scheduler=AsynchronousSuccessiveHalving(
            config_space=SPACE, metric="score", do_minimize=False, time_attr="epoch", max_t=R, grace_period=1,
            reduction_factor=3, random_seed=0,
        ),
        stop_criterion=StoppingCriterion(max_num_trials_started=num_trials),
        n_workers=4,
        sleep_time=0,
        callbacks=[counter],
        save_tuner=False,
        results_update_interval=1e9,
        print_update_interval=1e9,
    )  # fmt: skip
    began = time.process_time()
    tuner.run()
    took = time.process_time() - began
    print(json.dumps({"cpu_s": took, "results": counter.num_results, "trials": num_trials}))


main(int(sys.argv[1]))
