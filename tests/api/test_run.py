"""`hpcsched.start` and what it returns, with real drivers and light trials."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcsched
from hpcsched.api.run import Run
from hpcsched.api.table import Table
from hpcsched.errors import ExperimentFileError, InputError, LaunchError, RunFolderError
from hpcsched.eventlog.status import read_status
from tests.support.e2e import Job, clean_environ, light_job, processes_of, wait_until
from tests.support.runs import a_run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _outside_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = clean_environ()
    for name in list(__import__("os").environ):
        if name not in environ:
            monkeypatch.delenv(name)


@pytest.fixture
def long_job(tmp_path: Path) -> Job:
    return light_job(
        tmp_path, [{"height": 0.5, "step_s": 0.3}, {"height": 0.8, "step_s": 0.3}], num_atoms=2, max_iterations=1000,
        deadline="10m",
    )  # fmt: skip


@pytest.fixture
def live(long_job: Job) -> Iterator[Run]:
    run = hpcsched.start(long_job.file, run_dir=long_job.run_dir)
    yield run
    run.suspend()
    assert run.wait(120) == "suspended", run.driver_log.read_text()
    assert not list(processes_of(long_job.run_dir))


def test_a_live_run_is_looked_at_and_steered(live: Run, tmp_path: Path) -> None:
    assert live.state in ("starting", "running")
    wait_until(lambda: live.best is not None, live.driver_log.read_text)
    assert live.state == "running"
    assert live.best is not None and live.best.config["height"] in (0.5, 0.8)
    assert "trial 0" in repr(live.explain(0)) and "\n" in repr(live.explain(0))
    trials = live.trials
    assert len(trials) == 2
    assert "0.8" in repr(trials)
    assert live.stop(0) == "trial 0 saves and leaves; it does not run again"
    wait_until(lambda: read_status(live._folder).status.trials["stopped"] == 1, "trial 0 is stopped")
    number = live.add({"height": 0.95, "step_s": 0.2})
    assert number == 2
    with pytest.raises(InputError, match=r'"hight" is not in \[search.space\]'):
        live.add({"hight": 0.95})
    with pytest.raises(InputError, match="Out of range float values"):
        live.add({"height": float("nan")})
    wait_until(lambda: live.best is not None and live.best.trial_id == 2, live.driver_log.read_text)
    assert "30m later" in live.extend("30m")
    wait_until(lambda: (live.status.deadline_s or 0) > 2000, "the deadline is later")
    assert live.wait(0.1) == "running"
    assert "running, best 0." in repr(live)


def test_a_run_is_waited_for_to_its_end(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{"height": 0.5}, {"height": 0.9}])
    run = hpcsched.start(job.file, run_dir=job.run_dir)
    assert run.wait(120) == "finished", run.driver_log.read_text()
    assert run.best is not None and run.best.trial_id == 1
    assert hpcsched.open_run(job.run_dir).best == run.best
    assert len(run.log.trials) == 2


def test_leaving_the_interpreter_saves_and_suspends_and_start_goes_on(long_job: Job) -> None:
    script = f"""
import time
import hpcsched
run = hpcsched.start({str(long_job.file)!r}, run_dir={str(long_job.run_dir)!r})
while run.best is None:
    time.sleep(0.1)
print(run.best.training_iteration, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=clean_environ(), capture_output=True, text=True, timeout=200, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "suspended; go on with: hpcsched run --resume" in done.stderr
    assert not list(processes_of(long_job.run_dir))
    reached = read_status(Run(hpcsched.open_run(long_job.run_dir)._folder)._folder).status.best
    assert reached is not None and reached.training_iteration >= int(done.stdout)
    again = hpcsched.start(long_job.run_dir)
    try:
        wait_until(
            lambda: again.best is not None and again.best.training_iteration > reached.training_iteration,
            again.driver_log.read_text,
        )
    finally:
        again.suspend()
        assert again.wait(120) == "suspended"


def test_a_mistake_in_the_file_is_raised_before_anything_starts(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{}])
    job.file.write_text(job.file.read_text().replace("max_iterations", "max_iteration"))
    with pytest.raises(ExperimentFileError, match="max_iteration"):
        hpcsched.start(job.file, run_dir=job.run_dir)
    assert not job.run_dir.exists()


def test_a_driver_that_cannot_start_says_why(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{}], num_atoms=None)
    run = hpcsched.start(job.file, run_dir=job.run_dir, launcher="srun")
    with pytest.raises(LaunchError, match="needs a Slurm allocation"):
        run.wait(60)
    assert run.state == "failed"


def test_a_folder_that_holds_a_run_is_not_begun_again(tmp_path: Path) -> None:
    job = light_job(tmp_path / "job", [{}])
    folder = a_run(tmp_path / "run", deadline_s=20.0)
    with pytest.raises(RunFolderError, match="holds a run already"):
        hpcsched.start(job.file, run_dir=folder.root)
    with pytest.raises(InputError, match="no driver serves"):
        hpcsched.open_run(folder.root).stop(0)


def test_plots_are_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from hpcsched.report.figures import FIGURES

    run = hpcsched.open_run(a_run(tmp_path, deadline_s=20.0).root)
    for what in FIGURES:
        assert run.plot(what).get_axes()
    with pytest.raises(InputError, match=", ".join(FIGURES)):
        run.plot("nonsense")


def test_a_table_displays_well_and_harmlessly() -> None:
    rows = [
        {"trial": number, "why": "<b>&\x1b[2J", "score": None if number else 0.123456789}
        for number in range(70)
    ]
    table = Table(["trial", "score", "why"], rows)
    text = repr(table).split("\n")
    assert text[0].split() == ["trial", "score", "why"]
    assert text[1].split()[:2] == ["0", "0.123457"]
    assert "10 more rows" in text[-1]
    assert "\x1b" not in repr(table)
    assert "<b>" not in table._repr_html_() and "&lt;b&gt;" in table._repr_html_()
    assert len(table[:5]) == 5 and table[3]["trial"] == 3
    assert table.column("trial")[69] == 69
