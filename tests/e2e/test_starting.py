"""A driver that is signalled or killed while it starts: nothing was begun, and the run begins when it is told to go on."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from hpcsched.core import events as ev
from tests.support.e2e import Job, Run, light_job, wait_until

SLOW_SETUP = '[setup]\nper_node = "touch started; test -e quick || exec sleep 600"\n'


def starting(folder: Path) -> tuple[Job, Run]:
    """A driver in the middle of its start."""
    job = light_job(folder, [{"step_s": 0.0}] * 2, max_iterations=2, extra=SLOW_SETUP, num_atoms=2)
    run = job.start("--set", "trial.max_iterations=3")
    wait_until(lambda: list(folder.rglob("started")), run.told)
    return job, run


def goes_on(job: Job) -> Run:
    """With what it was to begin with, options of the first command line included."""
    next(iter(job.folder.rglob("started"))).with_name("quick").touch()
    run = job.start(resume=True)
    assert run.ends() == 0, run.told()
    run.check()
    assert len(run.events(ev.ResultReported)) == 2 * 3
    return run


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGINT, signal.SIGUSR2)),
    ],
)
def test_a_signal_during_the_start_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    job, run = starting(tmp_path)
    run.signal(number)
    assert run.ends(15.0) == 75, run.told()
    assert f"{number.name} while starting" in run.err
    assert "Traceback" not in run.err
    assert json.loads(run.folder.lease.read_text())["released"]
    assert not run.folder.segment(1).exists()
    assert not run.leftovers()
    goes_on(job)


def test_a_driver_killed_before_its_first_record_has_lost_nothing(tmp_path: Path) -> None:
    job, run = starting(tmp_path)
    run.kill()
    again = goes_on(job)
    refused = job.start()
    assert refused.ends() == 2, "it holds a run now"
    assert "holds a run already" in refused.err
    assert again.status["state"] == "finished"


def test_a_run_that_was_never_begun_is_begun_by_its_file_too_but_not_by_another(tmp_path: Path) -> None:
    job, run = starting(tmp_path)
    run.kill()
    text = job.file.read_text()
    job.file.write_text(text.replace("reduction_factor = 3", "reduction_factor = 4"))
    refused = job.start()
    assert refused.ends() == 2, refused.told()
    job.file.write_text(text)
    next(iter(tmp_path.rglob("started"))).with_name("quick").touch()
    again = job.start()
    assert again.ends() == 0, again.told()
    again.check()
    assert len(again.events(ev.ResultReported)) == 2 * 2


def test_a_signal_during_the_start_of_a_resumed_run_leaves_it_as_it_was(tmp_path: Path) -> None:
    job = light_job(
        tmp_path,
        [{"step_s": 0.2}] * 2,
        max_iterations=8,
        num_atoms=2,
        extra='[setup]\nper_node = "test ! -e slow || exec sleep 600"\n',
    )
    run = job.start()
    run.waits_for(ev.CheckpointSaved, 2)
    run.kill()
    before = run.folder.segment(1).read_bytes()
    (tmp_path / "slow").touch()
    (job.run_dir / "setup.json").unlink()
    again = job.start(resume=True)
    wait_until(lambda: again.leftovers() and "sleep 600" in str(again.leftovers()), again.told)
    again.signal(signal.SIGTERM)
    assert again.ends(15.0) == 75, again.told()
    assert run.folder.segment(1).read_bytes() == before
    assert run.folder.log.exists()
    wait_until(
        lambda: not again.leftovers(),
        "its own command and what the first driver had left are gone",
        limit_s=10.0,
    )
    (tmp_path / "slow").unlink()
    last = job.start(resume=True)
    assert last.ends() == 0, last.told()
    last.check()
    assert last.status["trials"]["completed"] == 2


def test_a_run_whose_driver_died_while_it_sealed_is_sealed_by_the_next(tmp_path: Path) -> None:
    """Found by half an hour of everything failing."""
    job = light_job(tmp_path, [{"step_s": 0.0}], max_iterations=1, num_atoms=1)
    run = job.start()
    assert run.ends() == 0, run.told()
    run.folder.log.unlink()
    again = job.start(resume=True)
    assert again.ends() == 0, again.told()
    again.check()


def test_a_start_that_is_refused_late_leaves_nothing_in_the_way_of_the_corrected_one(tmp_path: Path) -> None:
    """The set-up fails after the run folder was made; what it printed stays, for the refusal speaks of it."""
    job = light_job(
        tmp_path,
        [{"step_s": 0.0}],
        max_iterations=1,
        num_atoms=1,
        extra='[setup]\nper_node = "echo no such data; false"\n',
    )
    refused = job.start()
    assert refused.ends() == 2, refused.told()
    assert "no such data" in refused.err
    assert [path.match("setup-*.log") for path in job.run_dir.iterdir()] == [True], list(
        job.run_dir.iterdir()
    )
    job.file.write_text(job.file.read_text().replace("; false", ""))
    run = job.start()
    assert run.ends() == 0, run.told()
    run.check()
