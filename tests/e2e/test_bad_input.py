"""Whatever is wrong with the input is found before anything starts: a message that says where, exit code 2, nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.eventlog.reader import read_journal
from tests.support.e2e import Job, Run, clean_environ, hpcsched, light_job, plain, wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")


def changed(job: Job, *changes: tuple[str, str]) -> Job:
    text = job.file.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    job.file.write_text(text)
    return job


def is_refused(run: Run, *words: str, code: int = 2) -> None:
    assert run.ends() == code, run.told()
    told = plain(run.err)
    for word in words:
        assert word in told, f"{word!r} is not in: {told}"
    assert "Traceback" not in run.err, run.told()
    assert run.leftovers() == []


COMMAND = "command = ["
REFUSED = {
    "no such command": (
        [(COMMAND, 'command = ["no-such-program"]\n# [')],
        ["trial.command", "no-such-program", "PATH"],
    ),
    "no such script": ([(COMMAND, 'command = ["python", "trian.py"]\n# [')], ["trial.command", "trian.py"]),
    "empty command": ([(COMMAND, "command = []\n# [")], ["trial.command"]),
    "empty space": ([("[search.space]", "[simulation]")], ["search.space", "is empty"]),
    "r > R": ([("grace_period = 1", "grace_period = 9")], ["grace_period", "9", "max_iterations", "4"]),
    "reduction factor 1": ([("reduction_factor = 3", "reduction_factor = 1")], ["scheduler.reduction_factor", "1", "2"]),
    "deadline in the past": (
        [('deadline = "30s"', 'deadline = "2020-01-01T00:00"')],
        ["experiment.deadline", "2020-01-01T00:00", "past"],
    ),
    "deadline of nothing": ([('deadline = "30s"', 'deadline = "0s"')], ["experiment.deadline"]),
    "no deadline for a policy that needs one": (
        [('deadline = "30s"', ""), ('policy = "fifo"', 'policy = "hypersched"')],
        ["experiment.deadline", "hypersched"],
    ),
    "a policy that there is not": ([('policy = "fifo"', 'policy = "ashaa"')], ["scheduler.policy", "ashaa", 'Did you mean "asha"']),
    "a key that there is not": ([("grace_period", "grace_periode")], ["trial.grace_periode", 'Did you mean "grace_period"']),
    "a table that there is not": ([("[atoms]", "[atom]")], ["[atom]", 'Did you mean "atoms"']),
    "no TOML": ([("[atoms]", "[atoms")], ["line"]),
    "no list file": ([('"configs.jsonl"', '"config.jsonl"')], ["search.list_file", "config.jsonl"]),
    "srun outside of a job": ([("[launcher]", '[launcher]\nkind = "srun"'), ("num_atoms = 4", "")], ["launcher.kind", "allocation"]),
    "more GPUs an atom than a node is said to have": (
        [("num_atoms = 4", "gpus_per_atom = 8\ngpus_per_node = 4")],
        ["atoms.gpus_per_atom", "8", "1 to 4"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_in_the_file_is_told_before_anything_starts(tmp_path: Path, name: str) -> None:
    changes, words = REFUSED[name]
    run = changed(light_job(tmp_path, [{}]), *changes).start()
    is_refused(run, str(run.job.file), *words)
    assert not run.job.run_dir.exists()


def test_no_such_experiment_file(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{}])
    is_refused(
        job.start(file=tmp_path / "experimnet.toml"),
        "experimnet.toml",
        "no such file",
        'Did you mean "experiment.toml"',
    )
    assert not job.run_dir.exists()


@pytest.mark.parametrize("deadline", ["yesterday", "-5s", "25:70"])
def test_a_deadline_on_the_command_line_is_checked_as_in_the_file(tmp_path: Path, deadline: str) -> None:
    run = light_job(tmp_path, [{}]).start(f"--deadline={deadline}")
    is_refused(run, "experiment.deadline", deadline)
    assert not run.job.run_dir.exists()


# ---- run folders


def test_a_deadline_that_is_over_is_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{"step_s": 0.2}], deadline="10m", max_iterations=1000)
    run = job.start()
    run.waits_for(ev.ResultReported)
    run.signal(signal.SIGINT)
    assert run.ends() == 75
    is_refused(job.start("--deadline", "1s", resume=True), "experiment.deadline", "counts from there")
    assert not run.folder.segment(2).exists()
    assert run.status["state"] == "suspended"


def test_a_suspended_run_whose_deadline_has_passed_is_not_finished_by_mistake(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{"step_s": 0.2}], deadline="6s", max_iterations=1000)
    run = job.start()
    run.waits_for(ev.ResultReported)
    run.signal(signal.SIGINT)
    assert run.ends() == 75
    wait_until(
        lambda: time.time() - next(iter(read_journal(run.folder))).began_at > 6.0, "the deadline has passed"
    )
    is_refused(job.start(resume=True), "has passed since", "--deadline", "hpcsched extend")
    assert run.status["state"] == "suspended"
    told = hpcsched("extend", str(job.run_dir), "1h")
    assert told.returncode == 2
    assert "--deadline TIME" in told.stderr
    again = job.start(resume=True, environ={"SLURM_RESTART_COUNT": "1"})
    assert again.ends() == 0, "Slurm's own requeue ends it in order"


def test_a_folder_that_holds_a_run_or_something_else_is_left_alone(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{"step_s": 0.05}], max_iterations=1)
    run = job.start()
    assert run.ends() == 0
    journal = run.folder.segment(1).read_bytes()
    is_refused(job.start(), str(job.run_dir), "holds a run already", "--resume", "--run-dir")
    assert run.folder.segment(1).read_bytes() == journal
    other = Job(job.folder, job.file, tmp_path / "papers")
    other.run_dir.mkdir()
    (other.run_dir / "thesis.tex").write_text("x")
    is_refused(other.start(), "papers", "not empty")
    assert [path.name for path in other.run_dir.iterdir()] == ["thesis.tex"]
    file = Job(job.folder, job.file, tmp_path / "file")
    file.run_dir.write_text("x")
    is_refused(file.start(), "file")
    is_refused(Job(job.folder, job.file, tmp_path / "nothing").start(resume=True), "nothing", "no run")
    # The experiment file was changed after the run began, in the run folder and beside it.
    changed(job, ("max_iterations = 1", "max_iterations = 2"))
    is_refused(
        job.start(resume=True, file=job.file), "max_iterations = 2", "max_iterations = 1", "begin a new run"
    )
    run.folder.experiment.write_text(job.file.read_text())
    is_refused(job.start(resume=True), str(run.folder.experiment), "changed after the run began")


@contextmanager
def small_disk(where: Path, options: str) -> Iterator[Path]:
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


@needs_root
def test_a_full_disk_is_told_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=16m") as disk:
        run = light_job(tmp_path / "job", [{}], run_dir=disk / "run").start()
        is_refused(run, str(disk), "free", "--run-dir")
        (disk / "filler").write_bytes(b"x" * (15 << 20))
        with pytest.raises(OSError, match="No space"):
            (disk / "more").write_bytes(b"x" * (4 << 20))
        run = light_job(tmp_path / "job", [{}], run_dir=disk / "second").start()
        is_refused(run, str(disk), "--run-dir")


@needs_root
def test_a_read_only_file_system_is_told_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=200m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        run = light_job(tmp_path / "job", [{}], run_dir=disk / "run").start()
        is_refused(run, str(disk), "Read-only", "--run-dir")


@needs_root
def test_a_disk_that_fills_up_stalls_the_run_and_room_lets_it_go_on(tmp_path: Path) -> None:
    """Decisions wait for the journal; nothing is corrupted, nobody is blamed; the trials' own failed saves are told."""
    with small_disk(tmp_path / "disk", "size=128m") as disk:
        job = light_job(
            tmp_path / "job", [{"step_s": 0.2}] * 4, deadline="10m", max_iterations=60, run_dir=disk / "run"
        )
        run = job.start()
        run.waits_for(act.PublishBest, 2)
        filler = disk / "filler"
        fill(filler)
        wait_until(lambda: "decisions wait" in run.out, lambda: f"it is told\n{run.told()}")
        assert run.process.poll() is None
        assert "No space left" in run.out
        filler.unlink()
        num = len(run.events(ev.ResultReported))
        run.waits_for(ev.ResultReported, num + 4)
        assert run.ends() == 0
        run.check()
        assert set(run.states().values()) == {"completed"}


@needs_root
@pytest.mark.parametrize("end", ["deadline", pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_a_disk_that_stays_full_ends_the_run_in_order_and_with_a_word(tmp_path: Path, end: str) -> None:
    """Neither the deadline nor SIGTERM waits for the disk; what the log does not say, the resumed run says."""
    with small_disk(tmp_path / "disk", "size=128m") as disk:
        job = light_job(
            tmp_path / "job", [{"step_s": 0.2}] * 4, deadline="8s" if end == "deadline" else "10m",
            max_iterations=10_000, run_dir=disk / "run",
        )  # fmt: skip
        run = job.start()
        run.waits_for(act.PublishBest, 2)
        fill(disk / "filler")
        wait_until(lambda: "decisions wait" in run.out, lambda: f"it is told\n{run.told()}")
        if end == "SIGTERM":
            run.signal(signal.SIGTERM)
        assert run.ends(60.0) == 75, run.told()
        assert "Traceback" not in run.err, run.told()
        assert "No space left" in run.out
        wait_until(lambda: not run.leftovers(), lambda: f"nothing is left: {run.leftovers()}")
        run.check_best()
        (disk / "filler").unlink()
        run.check_replay()
        if end == "SIGTERM":
            return
        again = job.start(resume=True)
        assert again.ends() == 0
        again.check()


def fill(file: Path) -> None:
    """Until the disk is full."""
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(b"x" * (1 << 16)):
            pass


# ---- paths


def test_paths_with_spaces_quotes_and_unicode(tmp_path: Path) -> None:
    folder = tmp_path / "mein Täst; $(touch owned) 'x' 中文"
    run = light_job(
        folder, [{"height": 0.5}, {"do": "crash"}], max_iterations=3, run_dir=folder / "rün 1"
    ).start()
    assert run.ends() == 0
    run.check()
    assert not list(tmp_path.rglob("owned"))
    last = next(line for line in run.out.splitlines() if line.startswith("look at it"))
    report = last.split("look at it", 1)[1].split(";")[0].strip()
    assert "'" in report, "a path with spaces is quoted"


def test_a_relative_run_folder_and_a_umask_that_opens_everything(tmp_path: Path) -> None:
    """The run folder, the keys and the launch files are the owner's alone whatever the umask."""
    job = light_job(tmp_path, [{"step_s": 0.3, "save": "leave"}], max_iterations=4)
    env = clean_environ()
    done = subprocess.run(
        ["sh", "-c", 'umask 000; exec "$0" -m hpcsched run experiment.toml --run-dir here/run', sys.executable],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    root = tmp_path / "here" / "run"
    assert root.stat().st_mode & 0o777 == 0o700
    for path in [
        *root.rglob("keys"),
        *root.rglob("keys/*"),
        *root.rglob("keys/**/*"),
        *root.rglob("launch.json"),
    ]:
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"
    secret = [path for path in root.rglob("*") if path.is_file() and "secret" in path.name]
    assert secret
    del job
