"""Real drivers and light trials on this computer with short deadlines: slow saves, slow iterations, a deadline that is moved."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from hpcsched.core import events as ev
from tests.support.e2e import hpcsched, light_job

POLICIES = ("fifo", "asha", "hypersched", "fixed_split", "deadline")


def real(runs: int, seed: int, complain: Callable[[str], None]) -> int:
    num_missed = 0
    for number in range(seed, seed + runs):
        try:
            with tempfile.TemporaryDirectory() as folder:
                _one(number, Path(folder))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # pytest.fail is no Exception
            num_missed += 1
            complain(f"real seed {number}: {type(error).__name__}: {error}")
    return num_missed


def _one(number: int, folder: Path) -> None:
    rng = Random(f"real deadline {number}")
    deadline_s = rng.uniform(7.0, 10.0)
    configs = [
        {
            "height": round(0.3 + 0.6 * rng.random(), 4),
            "step_s": rng.choice([0.1, 0.2, 0.5]),
            "save": rng.choice(["each", "leave"]),
            "do": rng.choice(["", "", "", "crash", "hang", "slow start", "ignore"]),
            "at": rng.randrange(1, 12),
            "until": 1,
            "save_s": rng.choice([0.0, 0.1, 0.5]),
        }
        for _ in range(8)
    ]
    configs[0] |= {"do": "", "save": "each"}  # somebody is sure to have saved
    job = light_job(
        folder, configs, policy=POLICIES[number % len(POLICIES)], deadline=f"{deadline_s:.2f}s", max_iterations=100_000,
        extra='[timeouts]\nsilence = "4s"\npreempt_grace = "4s"\n[scaling]\nassume = "linear"\n', scheduler="",
    )  # fmt: skip
    run = job.start()
    if rng.random() < 0.5:
        run.waits_for(ev.CheckpointSaved)
        told = hpcsched("extend", str(job.run_dir), "3s")
        assert told.returncode == 0, told.stderr
    code = run.ends()
    assert code == 0, f"exit code {code}\n{run.told()}"
    run.check()
    status = run.status
    assert status["best"]["saved_s"] <= status["deadline_s"], status
    results = [event for event in run.events(ev.ResultReported) if event.metric is not None]
    assert results
