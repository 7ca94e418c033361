"""Control of a live driver from another shell: messages as files in `control/`, dropped by rename.

A file works from any node that sees the run folder, also where a firewall stands before the driver's host. The
driver looks each second, takes the files in order of their names, and removes each once it is read.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import msgspec

from hpcsched.driver.inbox import Control
from hpcsched.errors import RunFolderError
from hpcsched.runfolder import RunFolder

_decoder: msgspec.json.Decoder[Control] = msgspec.json.Decoder(Control)
MAX_BYTES = 1 << 16


def drop_control(folder: RunFolder, message: Control) -> Path:
    """Hand a message to whatever driver serves this run folder. Raises RunFolderError."""
    name = f"{time.time_ns():020d}-{os.getpid()}"
    temporary = folder.control / f".{name}"
    try:
        temporary.write_bytes(msgspec.json.encode(message))
        target = folder.control / f"{name}.json"
        temporary.rename(target)
    except OSError as error:
        raise RunFolderError(
            f"{folder.control}: cannot leave a message for the driver ({error}); is this a run folder of yours?"
        ) from error
    return target


def take_controls(folder: RunFolder) -> tuple[list[Control], list[str]]:
    """All messages that are there, and a complaint for each file that is none. Files are removed.

    Only plain files of the run folder's owner are taken: a pipe would never end, a link may lead anywhere. What is no
    file and cannot be deleted (a folder) is put out of sight under another name, so that it is complained about once.
    """
    messages: list[Control] = []
    complaints: list[str] = []
    try:
        files = sorted(
            path for path in folder.control.iterdir() if path.suffix == ".json" and path.name[0] != "."
        )
    except OSError:
        return [], []
    for path in files:
        try:
            messages.append(_decoder.decode(_read(path)))
        except (OSError, ValueError, msgspec.DecodeError) as error:
            complaints.append(f"control message {path.name} ignored: {error}")
        try:
            path.rename(path.with_name(f".refused-{path.name}")) if _is_folder(path) else path.unlink(
                missing_ok=True
            )
        except OSError as error:
            complaints.append(f"control message {path.name} cannot be removed: {error}")
    return messages, complaints


def _read(path: Path) -> bytes:
    """Without waiting for a writer and without following a link. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if facts.st_uid != os.geteuid() or facts.st_size > MAX_BYTES or not stat.S_ISREG(facts.st_mode):
            raise ValueError("not a message of this run's owner")
        return os.read(fd, MAX_BYTES)
    finally:
        os.close(fd)


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)
