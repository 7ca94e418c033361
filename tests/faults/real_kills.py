"""SIGKILL of real drivers at random moments, with real supervisors and ranks (light trials) on this computer."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.eventlog.records import Step
from tests.support.e2e import Run, light_job, wait_until
from tests.support.journals import same
from tests.support.lives import double_holdings, restores_what_is_not_there

if TYPE_CHECKING:
    from tests.faults.driver_kill import Tally

POLICIES = ("fifo", "asha", "hypersched")


def real(runs: int, seed: int, tally: Tally) -> None:
    for number in range(seed, seed + runs):
        tally.runs += 1
        try:
            with tempfile.TemporaryDirectory() as folder:
                _one(number, Path(folder), tally)
            tally.resumed += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # pytest.fail is no Exception
            tally.complaints.append(f"seed {number}: {type(error).__name__}: {error}")


def _one(number: int, folder: Path, tally: Tally) -> None:
    rng = Random(f"real {number}")
    configs = [
        {
            "height": round(0.4 + 0.5 * rng.random(), 4),
            "step_s": 0.1,
            "do": rng.choice(["", "", "daemon", "child"]),
            "save": rng.choice(["each", "each", "leave"]),
        }
        for _ in range(7)
    ]
    job = light_job(
        folder, configs, policy=POLICIES[number % len(POLICIES)], max_iterations=9, deadline="10m",
        scheduler="", extra='[scaling]\nassume = "linear"\n', warm=number % 4 == 3,
    )  # fmt: skip
    run = job.start()
    for kill in range(rng.choice([1, 1, 2])):
        num = len(run.steps()) if kill else 0
        wait_until(
            lambda before=num, run=run: run.process.poll() is not None or len(run.steps()) > before,  # type: ignore[misc]  # bound now
            "the driver has begun",
        )
        time.sleep(rng.uniform(0.0, 2.5))  # a random moment is what is wanted
        if run.process.poll() is not None:
            break
        run.kill()
        before = run.steps()
        run = job.start(resume=True)
        wait_until(
            lambda run=run: run.process.poll() is not None or run.folder.segment(2).exists(),
            "the driver lives again",
        )
        _compare(before, run, tally)
    code = run.ends()
    assert code == 0, f"exit code {code}\n{run.told()}"
    run.check()
    wrong = double_holdings(run.folder)
    tally.double_held += len(wrong)
    tally.complaints += [f"seed {number}: {line}" for line in wrong]
    others = restores_what_is_not_there(run.folder)
    assert not others, others
    _best_never_falls(run)
    assert run.status["trials"]["failed"] == 0, run.told()


def _compare(before: list[Step], run: Run, tally: Tally) -> None:
    """What stood in the journal when the driver died was acknowledged, or may have been."""
    after = run.steps()[: len(before)]
    for old, new in zip(before, after, strict=False):
        if isinstance(old.event, ev.ResultReported | ev.CheckpointSaved) and not same(old, new):
            tally.lost_results += 1
    tally.lost_results += sum(isinstance(step.event, ev.ResultReported) for step in before[len(after) :])


def _best_never_falls(run: Run) -> None:
    metrics = [action.metric for action in run.actions(act.PublishBest)]
    assert metrics == sorted(metrics), f"the best fell: {metrics}"
