"""Which experiment is to run, in which folder, and whether it begins or goes on."""

from __future__ import annotations

import difflib
from datetime import datetime
from pathlib import Path

import msgspec

from hpcsched.config.load import load_experiment
from hpcsched.config.spec import ExperimentSpec
from hpcsched.driver.folder import Start, read_start, was_never_begun
from hpcsched.driver.request import Request
from hpcsched.errors import AllocationError, InputError, LogError, RunFolderError
from hpcsched.eventlog.reader import JournalReader
from hpcsched.eventlog.records import Header
from hpcsched.launch.allocation import Allocation
from hpcsched.runfolder import RunFolder, neat


def spec_and_folder(request: Request) -> tuple[ExperimentSpec, Path, Start | None]:
    """The last is None for a run that goes on. One whose driver died before its journal had a record begins now."""
    if not request.resume:
        spec, start = _spec_of_file(request)
        return spec, request.run_dir or _new_run_dir(spec), start
    if request.target.is_dir():
        root = request.target
    elif not request.target.exists():
        raise RunFolderError(f"{request.target}: there is no run here to resume (no such folder)")
    elif request.run_dir is not None:
        root = request.run_dir
    else:
        raise InputError(
            f"--resume: which run? Give its folder: `hpcsched run --resume RUN` ({request.target} is a file)"
        )
    folder = RunFolder(root)
    if was_never_begun(folder):
        spec, start = _spec_of_file(request) if request.target.is_file() else _spec_of_start(request, folder)
        return spec, root, start
    header = _first_header(folder)
    if request.target.is_file() and (given := request.target.read_text()) != header.experiment:
        lines = difflib.unified_diff(
            header.experiment.splitlines(),
            given.splitlines(),
            "the run's",
            str(request.target),
            lineterm="",
            n=0,
        )
        raise InputError(
            f"{request.target} is not what this run began with; a run goes on as it began. Put it back or begin a new "
            "run:\n" + "\n".join(lines)
        )
    spec = load_experiment(
        folder.experiment,
        overrides={**start_of(header).overrides, **request.overrides},
        folder=Path(start_of(header).experiment_folder),
        simulate=False,
        now=header.began_at,
    )
    if spec.text != header.experiment:
        raise RunFolderError(
            f"{folder.experiment} was changed after the run began; the journal has the original text: "
            f"`hpcsched replay {root}` still works, but a run goes on only as it began. Put the file back"
        )
    return spec, root, None


def _spec_of_file(request: Request) -> tuple[ExperimentSpec, Start]:
    spec = load_experiment(request.target, overrides=request.overrides, simulate=False)
    return spec, Start(str(spec.file.absolute().parent), request.overrides)


def _spec_of_start(request: Request, folder: RunFolder) -> tuple[ExperimentSpec, Start]:
    start = read_start(folder)
    start = msgspec.structs.replace(start, overrides={**start.overrides, **request.overrides})
    spec = load_experiment(
        folder.experiment,
        overrides=start.overrides,
        folder=Path(start.experiment_folder),
        simulate=False,
    )
    return spec, start


def start_of(header: Header) -> Start:
    return Start(str(header.provenance["experiment_folder"]), header.provenance.get("overrides", {}))


def _first_header(folder: RunFolder) -> Header:
    if not folder.journal.exists():
        raise RunFolderError(f"{folder.root}: there is no run here to resume (no journal/)")
    for record in JournalReader(folder).poll():
        if isinstance(record, Header):
            return record
    raise LogError(f"{folder.journal}: the journal has no header: nothing was ever begun here")


def _new_run_dir(spec: ExperimentSpec) -> Path:
    if spec.experiment.run_dir is not None:
        return Path(spec.experiment.run_dir)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = neat(spec.file).parent / "runs"
    root = base / f"{spec.experiment.name}-{stamp}"
    number = 1
    while root.exists():
        number += 1
        root = base / f"{spec.experiment.name}-{stamp}-{number}"
    return root


def is_local(spec: ExperimentSpec, allocation: Allocation | None) -> bool:
    match spec.launcher.kind:
        case "local":
            return True
        case "srun":
            if allocation is None:
                raise AllocationError(
                    f'{spec.file}: launcher.kind = "srun" needs a Slurm allocation and this is none '
                    "(SLURM_JOB_ID is not set). Start inside `salloc` or `sbatch`, or use --launcher local"
                )
            return False
        case "auto":
            return allocation is None
