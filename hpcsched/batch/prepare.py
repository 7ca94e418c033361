"""From what a user says to a job request: the file is read and checked before anything is queued."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hpcsched.batch.script import DEFAULT_TEMPLATE, JobRequest, parse_job_time
from hpcsched.batch.sites import Site, load_site
from hpcsched.config.load import load_experiment
from hpcsched.config.spec import ExperimentSpec
from hpcsched.errors import InputError
from hpcsched.runfolder import neat

CONTAINER_TEMPLATES = ("apptainer", "pyxis")
LEAST_SIGNAL_S, MOST_SIGNAL_S = 10, 65535


class Prepared(msgspec.Struct, frozen=True):
    request: JobRequest
    site: Site
    spec: ExperimentSpec


def prepare(
    file: Path,
    *,
    nodes: int,
    time: str,
    environ: Mapping[str, str],
    now: datetime,
    site: str | None = None,
    template: str = DEFAULT_TEMPLATE,
    gpus_per_node: int | None = None,
    run_dir: Path | None = None,
    job_name: str | None = None,
    signal_before_s: int = 60,
    run_args: Sequence[str] = (),
    sbatch: Sequence[str] = (),
    overrides: Mapping[str, Any] = {},
    may_resume: bool = False,
) -> Prepared:
    """Check everything that can be checked before the queue. Raises InputError.

    time: as `parse_job_time` reads it. now: for the run folder's name.
    """
    if nodes < 1:
        raise InputError(f"--nodes {nodes}: must be 1 or more")
    if gpus_per_node is not None and gpus_per_node < 1:
        raise InputError(f"--gpus-per-node {gpus_per_node}: must be 1 or more")
    if not LEAST_SIGNAL_S <= signal_before_s <= MOST_SIGNAL_S:
        raise InputError(
            f"--signal-before {signal_before_s}: must be {LEAST_SIGNAL_S} to {MOST_SIGNAL_S} seconds"
        )
    time_s = parse_job_time(time)
    if signal_before_s >= time_s:
        raise InputError(f"--signal-before {signal_before_s}: not less than the job's time of {time_s:.0f} s")
    chosen = load_site(site, environ)
    # In a container the command may exist in the image only.
    spec = load_experiment(file, overrides=overrides, simulate=template in CONTAINER_TEMPLATES)
    root = neat(run_dir or new_run_dir(spec, now))
    if (root / "journal").is_dir() and template != "requeue" and not may_resume:
        raise InputError(
            f"{root}: holds a run already; go on with it by --template requeue, or give another --run-dir"
        )
    request = JobRequest(
        file=neat(file),
        run_dir=root,
        job_name=_job_name(job_name or spec.experiment.name),
        nodes=nodes,
        time_s=time_s,
        gpus_per_node=gpus_per_node,
        python=chosen.python or sys.executable,
        run_args=tuple(run_args),
        signal_before_s=signal_before_s,
        sbatch=tuple(sbatch),
    )
    return Prepared(request, chosen, spec)


def new_run_dir(spec: ExperimentSpec, now: datetime) -> Path:
    """`[experiment] run_dir`, else `runs/NAME-DATE-TIME` beside the file, under a name that is free."""
    if spec.experiment.run_dir is not None:
        return Path(spec.experiment.run_dir)
    base = neat(spec.file).parent / "runs"
    stem = f"{spec.experiment.name}-{now:%Y%m%d-%H%M%S}"
    root, number = base / stem, 1
    while root.exists():
        number += 1
        root = base / f"{stem}-{number}"
    return root


def _job_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", name)[:64] or "hpcsched"
