"""`hpcsched.submit(...)`: an experiment as a submitit job whose result is the best trial.

submitit runs a pickled callable in the batch script and pickles what it returns. Three of its habits do not fit a
driver that makes steps of its own, and are set aside here:

- it starts one task a node through srun: the driver must run once, in the batch script (`use_srun=False`), and the
  number of nodes goes to sbatch behind submitit's back, so that it waits for one result;
- its `--signal` goes to all steps, and USR2 would end the ranks: "B:" sends it to the batch shell alone, which is the
  Python process itself because the command begins with `exec`;
- it requeues on that signal, and on nothing else: wanted for span "chain" only, where a driver that has suspended itself before the
  job's end counts as warned; otherwise the driver ends by itself before the job does.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hpcsched.batch.prepare import Prepared, prepare
from hpcsched.batch.script import directives
from hpcsched.errors import HpcschedError, LaunchError
from hpcsched.runfolder import RunFolder

SUSPENDED = 75
SAVE_LIMIT_S = 300.0
MOST_REQUEUES = 100


class BestTrial(msgspec.Struct, frozen=True):
    """What a run found."""

    trial_id: int
    config: dict[str, Any]
    metric: float
    training_iteration: int
    best: Path
    """The run's `best/` folder: `checkpoint/`, `model.pt`, `best.json`."""
    run_dir: Path


class DriverRun:
    """What submitit pickles: one `hpcsched run` (or `--resume`, when the run folder holds a run)."""

    def __init__(self, python: str, run: Sequence[str], run_dir: Path, *, chain: bool) -> None:
        self.python = python
        self.run = list(run)
        self.run_dir = run_dir
        self.chain = chain
        self._driver: subprocess.Popen[bytes] | None = None

    def __call__(self) -> BestTrial:
        """Raises LaunchError when the driver ends without a best model."""
        if not self.chain:
            # The warning before the end: the driver knows the job's end by itself and finishes before it.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        folder = RunFolder(self.run_dir)
        resume = folder.journal.is_dir() and any(folder.journal.iterdir())
        words = ["run", "--resume", str(self.run_dir)] if resume else self.run
        driver = subprocess.Popen([self.python, "-P", "-m", "hpcsched", *words], stdin=subprocess.DEVNULL)
        self._driver = driver
        code = driver.wait()
        if code == SUSPENDED and self.chain:
            signal.raise_signal(
                signal.SIGUSR2
            )  # submitit's handler queues the job again and ends this process
        if code != 0:
            raise LaunchError(
                f"{self.run_dir}: the driver ended with code {code}"
                + ("; go on with `hpcsched run --resume`" if code == SUSPENDED else "")
                + "; its output is in the job's log"
            )
        return read_best(folder)

    def checkpoint(self) -> Any:
        """submitit asks for this before it puts the job back into the queue."""
        from submitit.helpers import DelayedSubmission

        driver = self._driver
        if driver is not None:
            driver.send_signal(signal.SIGUSR2)
            driver.wait(SAVE_LIMIT_S)
        return DelayedSubmission(DriverRun(self.python, self.run, self.run_dir, chain=self.chain))


def read_best(folder: RunFolder) -> BestTrial:
    """What stands in `best/`. Raises LaunchError when nothing does."""
    try:
        facts = json.loads((folder.best / "best.json").read_bytes())
    except (OSError, ValueError) as error:
        raise LaunchError(f"{folder.best}: there is no best model: {error}") from error
    return BestTrial(
        trial_id=facts["trial_id"],
        config=facts["config"],
        metric=facts["metric"],
        training_iteration=facts["training_iteration"],
        best=folder.best,
        run_dir=folder.root,
    )


def submit(
    file: str | os.PathLike[str],
    *,
    nodes: int = 1,
    time: str = "1h",
    site: str | None = None,
    gpus_per_node: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    job_name: str | None = None,
    sbatch: Sequence[str] = (),
    overrides: Mapping[str, Any] = {},
    folder: str | os.PathLike[str] | None = None,
    signal_before_s: int = 60,
    environ: Mapping[str, str] | None = None,
) -> Any:
    """Queue an experiment; returns a submitit job: `.job_id`, `.state`, `.cancel()`, `.result()` -> BestTrial.

    time: "2h" or Slurm's forms. site: name or .toml file. overrides: dotted keys of the experiment file. folder: where
    submitit keeps its files; default: beside the run folder. A site's modules, setup lines and environment come before
    the driver; its container is not used here (`hpcsched submit --template apptainer` is).
    Raises InputError before anything is queued, HpcschedError without submitit.
    """
    try:
        import submitit
    except ImportError as error:
        raise HpcschedError("hpcsched.submit needs submitit: `pip install 'hpcsched[submit]'`") from error
    prepared = prepare(
        Path(file),
        nodes=nodes,
        time=time,
        environ=os.environ if environ is None else environ,
        now=datetime.now(),
        site=site,
        gpus_per_node=gpus_per_node,
        run_dir=None if run_dir is None else Path(run_dir),
        job_name=job_name,
        sbatch=sbatch,
        signal_before_s=signal_before_s,
        overrides=overrides,
        may_resume=True,
    )
    request, chain = prepared.request, prepared.spec.experiment.span == "chain"
    where = (
        Path(folder) if folder is not None else request.run_dir.with_name(request.run_dir.name + ".submitit")
    )
    executor: Any = submitit.SlurmExecutor(
        folder=where, python=f"exec {shlex.quote(request.python)}", max_num_timeout=MOST_REQUEUES
    )
    executor.update_parameters(
        time=max(1, int(-(-request.time_s // 60))),
        use_srun=False,
        stderr_to_stdout=True,
        setup=_setup(prepared),
        additional_parameters=_parameters(prepared, chain=chain),
    )
    set_run = [word for key, value in overrides.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    words = ["run", str(request.file), "--run-dir", str(request.run_dir), *set_run]
    job = executor.submit(DriverRun(request.python, words, request.run_dir, chain=chain))
    job.run_dir = request.run_dir
    return job


def _parameters(prepared: Prepared, *, chain: bool) -> dict[str, Any]:
    """Options for sbatch as submitit wants them: names without dashes, True for a bare option."""
    options: dict[str, Any] = {}
    for line in directives(prepared.request, prepared.site):
        name, equals, value = line.removeprefix("--").partition("=")
        options[name] = value.strip('"') if equals else True
    for ours in ("time", "output"):
        options.pop(ours, None)
    options["no-kill"] = True
    options["requeue" if chain else "no-requeue"] = True
    options["signal"] = f"B:USR2@{prepared.request.signal_before_s}"
    return options


def _setup(prepared: Prepared) -> list[str]:
    site = prepared.site
    lines = [f"module load {shlex.join(site.modules)}"] if site.modules else []
    lines += site.setup
    if site.interface:
        name = shlex.quote(site.interface)
        lines.append(f"export NCCL_SOCKET_IFNAME={name} GLOO_SOCKET_IFNAME={name}")
    lines += [f"export {key}={shlex.quote(value)}" for key, value in site.env.items()]
    lines.append(f"cd -- {shlex.quote(str(prepared.request.file.parent))}")
    return lines
