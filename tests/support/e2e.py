"""Whole runs as a user starts them: `hpcsched run` as a process, real supervisors and ranks, then the facts from outside.

job = light_job(tmp_path, [{}, {"do": "crash"}])
run = job.start()                    # or job.start(inside=allocation)
assert run.ends() == 0
run.check()                          # what must hold after every run
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import msgspec
import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Note, Step
from hpcsched.eventlog.replay import replay
from hpcsched.eventlog.status import read_status
from hpcsched.launch.processes import marked
from hpcsched.report.story import tell, text_of
from hpcsched.runfolder import RunFolder
from tests.support.cluster import Allocation

LIGHT_TRIAL = Path(__file__).with_name("light_trial.py")
PROJECT = LIGHT_TRIAL.parent.parent.parent
LIMIT_S = 120.0
"""Longest wait for anything; the machine may be busy with other things."""

DEFAULTS: dict[str, Any] = {
    "height": 0.9,
    "step_s": 0.1,
    "save": "each",
    "do": "",
    "at": 2,
    "until": 0,
    "save_s": 0.0,
}


SPACE = "\n".join(f"{name} = {{ constant = {json.dumps(value)} }}" for name, value in DEFAULTS.items())


def wait_until(
    condition: Callable[[], object], what: Callable[[], str] | str, *, limit_s: float = LIMIT_S
) -> None:
    """Return once `condition()` is true; fail the test with `what` after `limit_s`."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {limit_s:g} s in vain until {what if isinstance(what, str) else what()}")
        time.sleep(0.05)


@dataclass
class Job:
    """An experiment file in a folder of its own, and where its run goes."""

    folder: Path
    file: Path
    run_dir: Path

    def start(
        self,
        *args: str,
        inside: Allocation | None = None,
        file: Path | str | None = None,
        resume: bool = False,
        environ: Mapping[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> Run:
        """`hpcsched run FILE --run-dir DIR ARGS` in a session of its own; its output goes to these descriptors, or to files."""
        target = (
            [str(self.run_dir), "--resume"]
            if resume and file is None
            else [str(file or self.file), "--run-dir", str(self.run_dir)]
        )
        if resume and file is not None:
            target.append("--resume")
        env = dict(inside.env if inside is not None else clean_environ())
        env.update(environ or {})
        number = len(list(self.folder.glob("driver-*.out"))) + 1
        out = self.folder / f"driver-{number}.out"
        err = self.folder / f"driver-{number}.err"
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                [sys.executable, "-m", "hpcsched", "run", *target, *args], env=env, stdin=subprocess.DEVNULL,
                stdout=to_out if stdout is None else stdout, stderr=to_err if stderr is None else stderr,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        return Run(self, process, out, err, inside)


def clean_environ() -> dict[str, str]:
    """This process's environment as outside of any Slurm job."""
    dropped = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "HPCSCHED_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def job(folder: Path, text: str, *, run_dir: Path | None = None) -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "experiment.toml"
    file.write_text(text, encoding="utf-8")
    return Job(folder, file, run_dir or folder / "run")


def light_job(
    folder: Path,
    configs: Sequence[Mapping[str, Any]],
    *,
    deadline: str | None = "30s",
    max_iterations: int = 4,
    policy: str = "fifo",
    num_atoms: int | None = 4,
    run_dir: Path | None = None,
    extra: str = "",
    trial: str = "",
    scheduler: str = "",
    experiment: str = "",
    launcher: str = "",
    warm: bool = False,
) -> Job:
    """Trials of `light_trial.py`, one a config (what it leaves out is as in DEFAULTS)."""
    made = job(
        folder,
        f"""\
[experiment]
metric = "accuracy"
{"" if deadline is None else f"deadline = {json.dumps(deadline)}"}
{experiment}
[trial]
command = ["python", {json.dumps(str(LIGHT_TRIAL))}]
grace_period = 1
max_iterations = {max_iterations}
env = {{ PYTHONPATH = {json.dumps(str(PROJECT))} }}
{trial}
[scheduler]
policy = "{policy}"
reduction_factor = 3
{scheduler}
[atoms]
{"" if num_atoms is None else f"num_atoms = {num_atoms}"}
[launcher]
warm = {"true" if warm else "false"}
{launcher}
[search]
sampler = "list"
list_file = "configs.jsonl"
[search.space]
{SPACE}
{extra}
""",
        run_dir=run_dir,
    )
    lines = "".join(json.dumps(dict(config)) + "\n" for config in configs)
    (folder / "configs.jsonl").write_text(lines)
    return made


@dataclass
class Run:
    """One driver life. `check()` holds what must be true after every end."""

    job: Job
    process: subprocess.Popen[bytes]
    out_file: Path
    err_file: Path
    inside: Allocation | None = None

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.job.run_dir)

    @property
    def out(self) -> str:
        return self.out_file.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.err_file.read_text(errors="replace")

    def told(self) -> str:
        """Everything that helps to see what went wrong."""
        return f"--- stdout\n{self.out}\n--- stderr\n{self.err}"

    # ---- while it runs

    def ends(self, limit_s: float = LIMIT_S) -> int:
        """Wait for the driver's end; its exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"the driver did not end within {limit_s:g} s\n{self.told()}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL the driver, and nothing else."""
        self.process.kill()
        self.process.wait()

    def steps(self) -> list[Step]:
        """Of the journal, as far as it is written."""
        if not self.folder.segment(1).exists() or not self.folder.segment(1).stat().st_size:
            return []
        return [record for record in read_journal(self.folder) if isinstance(record, Step)]

    def notes(self) -> list[Note]:
        return [record for record in read_journal(self.folder) if isinstance(record, Note)]

    def events(self, kind: type[ev.Event], **wanted: object) -> list[Any]:
        """Events of one type whose fields have these values."""
        return [
            step.event
            for step in self.steps()
            if isinstance(step.event, kind)
            and all(getattr(step.event, name) == value for name, value in wanted.items())
        ]

    def actions(self, kind: type[Any], **wanted: object) -> list[Any]:
        return [
            action
            for step in self.steps()
            for action in step.actions
            if isinstance(action, kind)
            and all(getattr(action, name) == value for name, value in wanted.items())
        ]

    def waits_for(self, kind: type[Any], num: int = 1, *, limit_s: float = LIMIT_S, **wanted: object) -> Any:
        """The num-th event or action of this kind."""
        find = self.actions if kind.__module__.endswith("actions") else self.events

        def there() -> bool:
            if self.process.poll() is not None and len(find(kind, **wanted)) < num:
                pytest.fail(
                    f"the driver ended (code {self.process.returncode}) before {kind.__name__} {wanted}\n{self.told()}"
                )
            return len(find(kind, **wanted)) >= num

        wait_until(
            there, lambda: f"{kind.__name__} {wanted} is in the journal\n{self.told()}", limit_s=limit_s
        )
        return find(kind, **wanted)[num - 1]

    def waits_for_size(self, num_atoms: int) -> None:
        """Until an incarnation on at least so many atoms has reported."""

        def there() -> bool:
            if self.process.poll() is not None:
                pytest.fail(f"the driver ended (code {self.process.returncode})\n{self.told()}")
            wide = {
                (action.trial_id, action.incarnation)
                for action in self.actions(act.StartTrial)
                if len(action.placement.atoms) >= num_atoms
            }
            return any(
                (event.trial_id, event.incarnation) in wide for event in self.events(ev.ResultReported)
            )

        wait_until(there, lambda: f"a trial has reported from {num_atoms} atoms\n{self.told()}")

    # ---- afterwards

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        """`hpcsched ARGS` in this process's environment."""
        return hpcsched(*args)

    @property
    def status(self) -> dict[str, Any]:
        """What `hpcsched status RUN --json` prints."""
        status: dict[str, Any] = json.loads(msgspec.json.encode(read_status(self.folder).status))
        return status

    def explain(self, trial_id: int) -> str:
        """What `hpcsched explain RUN TRIAL` prints."""
        return text_of(tell(read_journal(self.folder), trial_id))

    def outcomes(self) -> dict[int, list[str]]:
        """Outcomes of the incarnations of each trial, in order."""
        found: dict[int, list[str]] = {}
        for event in self.events(ev.TrialExited):
            found.setdefault(event.trial_id, []).append(event.outcome.value)
        return found

    def states(self) -> dict[int, str]:
        with h5py.File(self.folder.log) as log:
            return {int(row["trial_id"]): row["state"].decode() for row in log["trials"][()]}

    def leftovers(self, *, steps: bool = True) -> list[str]:
        """Processes (and steps) of this run that live."""
        found = [f"{pid} {line}" for pid, line in processes_of(self.job.run_dir)]
        if steps and self.inside is not None and self.inside.job_id in self.inside.cluster.jobs():
            found += [f"step {step}" for step in self.inside.steps()]
        return found

    def check(self, *, best: bool = True, ghosts: bool = False) -> None:
        """After any end in order: nothing left behind, no GPU given twice, replay equal, the log whole, best/ whole.

        `ghosts`: Slurm may show steps that have no process any more.
        """
        # Slurm shows a step for a moment after its last process has gone.
        wait_until(
            lambda: not self.leftovers(steps=not ghosts),
            lambda: f"nothing is left: {self.leftovers(steps=not ghosts)}\n{self.told()}",
            limit_s=15.0,
        )
        assert "Traceback" not in self.err, self.told()
        assert "temporarily disabled" not in self.out + self.err, self.told()
        self.check_replay()
        assert self.folder.log.exists(), f"log.h5 was not sealed\n{self.told()}"
        check_placements(self.folder)
        if best:
            self.check_best()
        assert not list(self.folder.root.glob(".best*.new")), "half a best/ is left"
        lease = json.loads(self.folder.lease.read_text())
        assert lease["released"], lease

    def check_replay(self) -> None:
        """Equal, or ReplayDiffersError (what `hpcsched replay` prints)."""
        result = replay(self.folder)
        assert result.num_events == len(self.steps())

    def check_best(self) -> None:
        """best/ is the checkpoint that status names, whole, and its numbers are those of the log."""
        facts = json.loads((self.folder.best / "best.json").read_text())
        status = self.status["best"]
        assert status["trial_id"] == facts["trial_id"]
        assert status["training_iteration"] == facts["training_iteration"]
        assert status["metric"] == pytest.approx(facts["metric"])
        assert Path(status["checkpoint"]) == self.folder.best / "checkpoint"
        state = json.loads((self.folder.best / "checkpoint" / "state.json").read_text())
        assert state == {"iteration": facts["training_iteration"], "config": facts["config"]}
        assert facts["config"] == status["config"]
        limit = facts["config"]["height"] * (1 - 1 / (1 + facts["training_iteration"]))
        assert facts["metric"] == pytest.approx(limit)


def hpcsched(*args: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpcsched", *args], env=clean_environ() if environ is None else dict(environ), capture_output=True, text=True, timeout=60.0, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def environs_of_ranks(run_dir: Path) -> list[tuple[int, dict[str, str]]]:
    """(process id, environment) of the ranks of a run that live now, as /proc has them."""
    found = []
    for process in marked({"HPCSCHED_RUN_DIR": str(run_dir)}):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
            names = dict(item.split("=", 1) for item in text.split("\0") if "=" in item)
            if "RANK" in names:  # else a supervisor
                found.append((process.pid, names))
    return found


def check_placements(folder: RunFolder) -> None:
    """From log.h5: no GPU is in two placements at once, and each incarnation has each GPU once."""
    with h5py.File(folder.log) as log:
        rows = log["placements"][()]
    by_gpu: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for row in rows:
        who = f"trial {row['trial_id']} incarnation {row['incarnation']}"
        key = (row["node"].decode(), row["gpu"].decode())
        by_gpu.setdefault(key, []).append((float(row["from_s"]), float(row["to_s"]), who))
    assert by_gpu or not len(rows)
    for key, holdings in by_gpu.items():
        holdings.sort()
        for before, after in itertools.pairwise(holdings):
            assert before[1] <= after[0], f"GPU {key} is in two placements at once: {before} and {after}"


def processes_of(run_dir: Path) -> Iterator[tuple[int, str]]:
    """Live processes that belong to a run: by their environment, or by a path of it among their arguments (also what
    light trials forked with an empty environment)."""
    mark = os.fsencode(f"HPCSCHED_RUN_DIR={run_dir}")
    path = os.fsencode(str(run_dir))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
            line = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state in "ZX" or not line:
            continue
        words = line.split(b"\0")
        if mark in environ or any(word == path or word.startswith(path + b"/") for word in words):
            yield int(entry.name), line.replace(b"\0", b" ").decode(errors="replace").strip()


def plain(text: str) -> str:
    """On one line with single spaces, for looking for words."""
    return re.sub(r"\s+", " ", text)
