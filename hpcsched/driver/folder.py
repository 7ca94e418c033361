"""Making a run folder, and finding out that one cannot be used before anything starts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec

from hpcsched.errors import RunFolderError
from hpcsched.runfolder import RunFolder, neat

LEAST_FREE_MB = 64
SETUP_LOGS = "setup-*.log"
"""All that a refused start leaves in its folder: its refusal speaks of them."""


class Start(msgspec.Struct, frozen=True):
    """With what a run is to begin (`start.json`): until its journal has a first record, nothing else says so."""

    experiment_folder: str
    """Where the experiment file's relative paths start."""
    overrides: dict[str, Any] = {}


def write_start(folder: RunFolder, start: Start) -> None:
    """Raises OSError."""
    folder.start.touch(mode=0o600)
    folder.start.write_bytes(msgspec.json.encode(start))


def read_start(folder: RunFolder) -> Start:
    """Of a run that was never begun. Raises RunFolderError."""
    try:
        return msgspec.json.decode(folder.start.read_bytes(), type=Start)
    except (OSError, msgspec.DecodeError) as error:
        raise RunFolderError(
            f"{folder.root}: its driver ended before anything was begun; begin it by the experiment file: "
            f"`hpcsched run FILE --run-dir {folder.root}`"
        ) from error


def was_never_begun(folder: RunFolder) -> bool:
    """A driver has made this folder and died before its journal had a first record: nothing was started, nothing can be lost."""
    made = folder.experiment.is_file() or folder.start.is_file()
    return made and folder.journal.is_dir() and not _has_record(folder.journal)


def _has_record(journal: Path) -> bool:
    for path in journal.iterdir():
        if re.fullmatch(r"\d{4,}\.jsonl", path.name):
            with path.open("rb") as stream:
                if stream.readline().endswith(b"\n"):
                    return True
    return False


def make_run_folder(root: Path, experiment_text: str, *, start: Start | None) -> RunFolder:
    """Create the folder (mode 0700) and its parts, or check the one to resume. One that was never begun can be begun.

    `start`: with what the run begins; None: it goes on.
    Raises RunFolderError: it holds another run and this one begins, it does not hold one and this one goes on, it
    cannot be written, belongs to somebody else, or the disk is (nearly) full.
    """
    folder = RunFolder(neat(root))
    resume = start is None
    try:
        is_other = folder.root.exists() and not folder.root.is_dir()
        has_run = folder.journal.is_dir() and any(folder.journal.iterdir())
        is_fresh = was_never_begun(folder) and (
            not folder.experiment.exists() or folder.experiment.read_bytes() == experiment_text.encode()
        )
        has_something = folder.root.is_dir() and any(
            not path.match(SETUP_LOGS) for path in folder.root.iterdir()
        )
    except OSError as error:
        raise RunFolderError(
            f"{root}: cannot be looked into: {error.strerror or error}. Give another folder with --run-dir"
        ) from error
    if is_other:
        raise RunFolderError(f"{root}: is a file, not a folder; give an empty or new folder with --run-dir")
    if is_fresh:
        has_run = has_something = resume = False
    if resume and not has_run:
        raise RunFolderError(f"{root}: there is no run here to resume (no journal/)")
    if has_run and not resume:
        raise RunFolderError(
            f"{root}: holds a run already. Go on with it by --resume, or give another folder with --run-dir"
        )
    if not resume and has_something:
        raise RunFolderError(
            f"{root}: is not empty and holds no run of ours; give an empty or new folder with --run-dir"
        )
    try:
        folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.root.stat()
        if facts.st_uid != os.geteuid():
            raise RunFolderError(
                f"{root}: belongs to user {facts.st_uid}, not to you; give a folder of your own"
            )
        folder.root.chmod(0o700)
        for part in (folder.journal, folder.keys, folder.trials, folder.control):
            part.mkdir(mode=0o700, exist_ok=True)
        if start is not None:
            write_start(folder, start)
            folder.experiment.write_text(experiment_text)
    except OSError as error:
        raise RunFolderError(
            f"{root}: cannot be written: {error.strerror or error}. Give a folder on a writable file system "
            "with free space by --run-dir"
        ) from error
    free_mb = shutil.disk_usage(folder.root).free // 2**20
    if free_mb < LEAST_FREE_MB:
        raise RunFolderError(
            f"{root}: only {free_mb} MiB are free there; checkpoints and the log need more (at least {LEAST_FREE_MB} MiB "
            "to begin). Free space or give another folder with --run-dir"
        )
    return folder


def unmake_run_folder(folder: RunFolder, *, keep_root: bool) -> None:
    """After a start that was refused: the corrected one shall find the folder as this one did. Does nothing where something was
    recorded. What `[setup]` printed stays, for the refusal speaks of it. Call it while nobody else can have the folder; never raises."""
    with contextlib.suppress(OSError):
        if not was_never_begun(folder):
            return
        for file in (folder.experiment, folder.start, folder.lease, folder.machine, folder.setup):
            file.unlink(missing_ok=True)
        for part in (folder.journal, folder.keys, folder.trials, folder.control):
            shutil.rmtree(part, ignore_errors=True)
        if not keep_root:
            folder.root.rmdir()
