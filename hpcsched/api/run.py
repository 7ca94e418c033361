"""`run = hpcsched.start("experiment.toml")`: a run held in a variable.

The driver is a child process in a session of its own, so that Ctrl-C in a notebook is not its affair. Everything is
asked of the run folder's files; orders go to the driver as those of `hpcsched stop` do. When the interpreter
ends, runs that it started and that still run are asked to save and suspend; `hpcsched run --resume` goes on with them.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcsched.api.table import Table
from hpcsched.batch.prepare import new_run_dir
from hpcsched.config.load import load_experiment
from hpcsched.driver.orders import give_order, live_run
from hpcsched.errors import HpcschedError, InputError, LaunchError, RunFolderError
from hpcsched.eventlog.lease import holder_of, this_host
from hpcsched.eventlog.shown import ShownRun
from hpcsched.eventlog.status import BestStatus, Status, status_of
from hpcsched.orders import ask_to_add
from hpcsched.runfolder import RunFolder, neat
from hpcsched.screen.watching import Watcher

if TYPE_CHECKING:
    from hpcsched.report.load import RunLog

LEAVE_S = 120.0
"""Longest wait for saving runs when the interpreter ends; they go on saving without us after that."""
APPEAR_S = 60.0
POLL_S = 0.2
LOG_TAIL = 4000


class Words(str):
    """Text that a prompt shows as it is, not as a quoted literal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Run:
    """One run, live or over. Made by `hpcsched.start` or `hpcsched.open_run`."""

    def __init__(self, folder: RunFolder, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder.root
        self._folder = folder
        self._process = process
        self._watcher: Watcher | None = None

    # ---- looking

    @property
    def driver_log(self) -> Path:
        """What the driver of a started run printed."""
        return self.folder.with_name(self.folder.name + ".driver.log")

    @property
    def state(self) -> str:
        """starting, running, suspended, finished or failed."""
        run = self._look()
        if run is None:
            if self._process is not None and self._process.poll() is None:
                return "starting"
            return "failed"
        return self._status(run).state.value

    @property
    def status(self) -> Status:
        """The same facts as `hpcsched status --json`. Raises RunFolderError as long as nothing is written."""
        return self._status(self._require())

    @property
    def best(self) -> BestStatus | None:
        """The best complete checkpoint so far: trial_id, metric, training_iteration, config, checkpoint, saved_s."""
        run = self._look()
        return None if run is None else self._status(run).best

    @property
    def trials(self) -> Any:
        """One row a trial, those that hold atoms first, then by best score: a pandas frame where pandas is installed,
        else a `Table`."""
        from hpcsched.screen.frame import ordered, rows_of

        run = self._look()
        rows = [] if run is None else rows_of(run, ordered(run))
        names: dict[str, None] = {}
        for row in rows:
            names.update(dict.fromkeys(row["config"]))
        fixed = ["trial", "state", "rung", "iteration", "score", "atoms", "next_rung_s"]
        column_of = {name: f"config.{name}" if name in (*fixed, "why") else name for name in names}
        flat = [
            {
                **{name: row[name] for name in fixed},
                **{column: row["config"].get(name) for name, column in column_of.items()},
                "why": row["why"],
            }
            for row in rows
        ]
        columns = [*fixed, *column_of.values(), "why"]
        try:
            import pandas as pd  # type: ignore[import-untyped, unused-ignore]  # optional, stubs are too
        except ImportError:
            return Table(columns, flat)
        return pd.DataFrame(flat, columns=columns).set_index("trial")

    def explain(self, trial: int) -> Words:
        """Why a trial waits, was paused, resized or stopped. Raises InputError when there is no such trial."""
        from hpcsched.report.story import story_of, text_of

        self._require()
        return Words(text_of(story_of(self._folder, trial)))

    @property
    def log(self) -> RunLog:
        """Everything as NumPy arrays, as `hpcsched.load(RUN)`."""
        from hpcsched.report.load import load

        return load(self.folder)

    def plot(self, what: str = "best_score") -> Any:
        """A matplotlib figure; a notebook shows it inline. Its names are those of the files of `hpcsched report --figures`
        (`hpcsched.report.figures.FIGURES`). Raises InputError for another name."""
        from hpcsched.report.figures import FIGURES

        if what not in FIGURES:
            raise InputError(f"plot({what!r}): there are {', '.join(FIGURES)}")
        return FIGURES[what](self.log)

    def report(self) -> Path:
        """Write the HTML page and return its path."""
        from hpcsched.report.page import write_report

        return write_report(self.folder)

    # ---- steering

    def stop(self, trial: int | None = None) -> Words:
        """End one trial, or (None) the whole run, in order. Raises InputError when no driver serves it."""
        from hpcsched.cli.stop import stop_one

        return Words(stop_one(self.folder, trial))

    def extend(self, by: str) -> Words:
        """Make the deadline later, by such as "30m"."""
        from hpcsched.cli.extend import extend_by

        return Words(extend_by(self.folder, by))

    def add(self, config: Mapping[str, Any], *, limit_s: float = 20.0) -> int:
        """Try one more configuration; the number of its trial.

        Its names are those of the file's [search.space]; values may lie outside the ranges, a constant may be left out.
        Raises InputError: wrong names, no driver; LaunchError: the driver has not taken it within `limit_s` (it may later).
        """
        self._require()
        answer = give_order(live_run(self.folder), ask_to_add(config), limit_s=limit_s)
        if answer is None or answer.trial_id is None:
            raise LaunchError(
                f"{self.folder}: the driver has not taken the configuration within {limit_s:g} s"
            )
        return answer.trial_id

    def suspend(self) -> None:
        """Ask the driver that this process started to save everything and leave; returns at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self, limit_s: float | None = None) -> str:
        """Block until the run is over (or suspended) or `limit_s` has passed; the state then. Raises LaunchError when the
        driver ended before anything was begun, with what it said."""
        end = None if limit_s is None else time.monotonic() + limit_s
        if self._process is not None:
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return self.state
            if self._look() is None:
                raise LaunchError(f"the driver ended with code {self._process.returncode}: {self._said()}")
            return self.state
        while self.state in ("starting", "running") and (end is None or time.monotonic() < end):
            time.sleep(POLL_S)
        return self.state

    def __repr__(self) -> str:
        best = self.best
        words = "nothing yet" if best is None else f"{best.metric:.6g} by trial {best.trial_id}"
        return f"Run({str(self.folder)!r}: {self.state}, best {words})"

    # ---- within

    def _look(self) -> ShownRun | None:
        """None: nothing is written yet."""
        if self._watcher is None:
            if not self._folder.segment(1).exists():
                return None
            self._watcher = Watcher(self._folder)
        run = self._watcher.look(limit_s=None).run
        return run if run.num_records else None

    def _require(self) -> ShownRun:
        """Wait a little for a driver that has just been started."""
        end = time.monotonic() + APPEAR_S
        while (run := self._look()) is None:
            if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                raise RunFolderError(f"{self.folder}: there is no run here (yet). {self._said()}")
            time.sleep(POLL_S)
        return run

    def _status(self, run: ShownRun) -> Status:
        return status_of(self._folder, run, holder_of(self._folder, host=this_host()))

    def _said(self) -> str:
        try:
            return self.driver_log.read_text(errors="replace")[-LOG_TAIL:].strip()
        except OSError:
            return ""


def start(
    file: str | os.PathLike[str],
    *,
    run_dir: str | os.PathLike[str] | None = None,
    deadline: str | None = None,
    launcher: Literal["auto", "local", "srun"] | None = None,
    overrides: Mapping[str, Any] = {},
    keep: bool = False,
) -> Run:
    """Start an experiment, or go on with a run when `file` is a run folder; returns at once.

    Inside a Slurm allocation its nodes are used, else this machine. overrides: dotted keys of the experiment file, such
    as {"atoms.num_atoms": 2}. keep: leave it running when this interpreter ends (it is asked to save and suspend
    otherwise). Raises InputError (ExperimentFileError, RunFolderError) before anything is started.
    """
    import json

    target = Path(file)
    words: list[str]
    if target.is_dir():
        root = neat(target)
        words = ["run", "--resume", str(root)]
    else:
        given = {**overrides, "experiment.deadline": deadline, "launcher.kind": launcher}
        spec = load_experiment(target, overrides=given, simulate=False)
        root = neat(Path(run_dir) if run_dir is not None else new_run_dir(spec, datetime.now()))
        if (root / "journal").is_dir():
            raise RunFolderError(
                f"{root}: holds a run already; hpcsched.start({str(root)!r}) goes on with it"
            )
        words = ["run", str(neat(target)), "--run-dir", str(root)]
        words += ["--deadline", deadline] if deadline is not None else []
        words += ["--launcher", launcher] if launcher is not None else []
    words += [word for key, value in overrides.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    run = Run(RunFolder(root))
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        with run.driver_log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hpcsched", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise RunFolderError(f"{root.parent}: cannot be written: {error.strerror or error}") from error
    run._process = process
    if not keep:
        _started.add(run)
    return run


def open_run(run: str | os.PathLike[str]) -> Run:
    """A run that somebody else started, or that is over. Raises RunFolderError when there is none."""
    opened = Run(RunFolder(neat(Path(run))))
    opened._require()
    return opened


_started: weakref.WeakSet[Run] = weakref.WeakSet()
_owner = os.getpid()


@atexit.register
def _leave() -> None:
    """Save what still runs; a forked child that ends has nothing to do with it."""
    if os.getpid() != _owner:
        return
    live = [run for run in list(_started) if run._process is not None and run._process.poll() is None]
    if not live:
        return
    print(f"hpcsched: asking {len(live)} run(s) to save and suspend ...", file=sys.stderr, flush=True)
    for run in live:
        run.suspend()
    end = time.monotonic() + LEAVE_S
    for run in live:
        assert run._process is not None, "chosen above"
        try:
            run._process.wait(max(0.0, end - time.monotonic()))
            words = run.state
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            words = "still saving, without this interpreter"
        except HpcschedError as error:
            words = str(error)
        print(
            f"hpcsched: {run.folder}: {words}; go on with: hpcsched run --resume {run.folder}",
            file=sys.stderr,
        )
