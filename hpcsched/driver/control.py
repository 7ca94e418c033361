"""Control of a live driver from another shell: messages as files in `control/`, dropped by rename.

A file works from any node that sees the run folder, also where a firewall stands before the driver's host. The
driver looks each second, takes the files in order of their names, and removes each once it is read.
"""

from __future__ import annotations

import os
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

    Only files of the run folder's owner are taken.
    """
    messages: list[Control] = []
    complaints: list[str] = []
    try:
        files = sorted(path for path in folder.control.iterdir() if path.suffix == ".json")
    except OSError:
        return [], []
    for path in files:
        try:
            facts = path.lstat()
            if facts.st_uid != os.geteuid() or facts.st_size > MAX_BYTES or path.is_symlink():
                raise ValueError("not a message of this run's owner")
            messages.append(_decoder.decode(path.read_bytes()))
        except (OSError, ValueError, msgspec.DecodeError) as error:
            complaints.append(f"control message {path.name} ignored: {error}")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            complaints.append(f"control message {path.name} cannot be removed: {error}")
    return messages, complaints
