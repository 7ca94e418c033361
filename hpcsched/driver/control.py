"""Orders as files in `control/`, dropped by rename, and the answers to them: the way that needs no network.

A file works from any node that sees the run folder, also where a firewall stands before the driver's host. The driver
looks each second and takes the files in order of their names. Each stays until what it asked for is in the journal, so that a driver
that dies in between leaves it to the next life; then the answer (`ORDERID.answer`) stands in its place for a while.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import msgspec

from hpcsched.errors import MessageError, RunFolderError
from hpcsched.orders import (
    MAX_BYTES,
    Answer,
    Order,
    decode_answer,
    decode_order,
    encode_answer,
    encode_order,
)
from hpcsched.runfolder import RunFolder

ANSWER_KEPT_S = 60.0
"""Whoever has given the order has read the answer by then, or is gone."""
MOST_AT_ONCE = 100
"""Files taken at one look: a script that runs wild must not hold up the trials' reports."""
_ANSWER = ".answer"


class Letter(msgspec.Struct, frozen=True):
    """An order and the file that it came in."""

    order: Order
    file: Path


def drop_order(folder: RunFolder, order: Order) -> Path:
    """Hand an order to whatever driver serves this run folder. Raises RunFolderError, MessageError."""
    name = f"{time.time_ns():020d}-{os.getpid()}"
    temporary = folder.control / f".{name}"
    try:
        _write(temporary, encode_order(order))
        target = folder.control / f"{name}.json"
        temporary.rename(target)
    except OSError as error:
        raise RunFolderError(
            f"{folder.control}: cannot leave a message for the driver ({error}); is this a run folder of yours?"
        ) from error
    return target


def take_answer(folder: RunFolder, order_id: str) -> Answer | None:
    """What the driver says to an order that was dropped; None: nothing yet. It is removed."""
    file = folder.control / f"{order_id}{_ANSWER}"
    try:
        # By the folder's list: NFS asks the server for it, while it may remember that a file was not there.
        if all(path.name != file.name for path in folder.control.iterdir()):
            return None
        answer = decode_answer(_read(file))
        file.unlink(missing_ok=True)
    except (OSError, ValueError, MessageError):
        return None
    return answer


class Letterbox:
    """The driver's side. `look` belongs to one thread; `answer` may be called from another one."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: set[str] = set()
        """Names of files that have been handed out and are still there."""

    def look(self) -> tuple[list[Letter], list[str]]:
        """The orders that are new, and a complaint for each file that is none, which is removed.

        Only plain files of the run folder's owner are taken: a pipe would never end, a link may lead anywhere. What is no
        file and cannot be deleted (a folder) is put out of sight under another name, so that it is complained about once.
        """
        letters: list[Letter] = []
        complaints: list[str] = []
        try:
            paths = sorted(path for path in self._folder.control.iterdir() if path.name[0] != ".")
        except OSError:
            return [], []
        files = [path for path in paths if path.suffix == ".json"]
        self._seen &= {path.name for path in files}
        for path in [path for path in files if path.name not in self._seen][:MOST_AT_ONCE]:
            try:
                letters.append(Letter(decode_order(_read(path)), path))
                self._seen.add(path.name)
            except FileNotFoundError:
                continue  # whoever dropped it has taken it back
            except (OSError, ValueError, MessageError) as error:
                complaints.append(f"control message {path.name} ignored: {error}")
                complaints += _remove(path)
        for path in paths:
            if path.suffix == _ANSWER and _is_old(path):
                complaints += _remove(path)
        return letters, complaints

    def answer(self, letter: Letter, answer: Answer) -> str:
        """The order is not looked at again. Returns what went wrong, else ""."""
        target = self._folder.control / f"{answer.order_id}{_ANSWER}"
        temporary = target.with_name(f".{target.name}")
        wrong = ""
        try:
            _write(temporary, encode_answer(answer))
            temporary.rename(target)
        except OSError as error:
            wrong = f"the answer to control message {letter.file.name} cannot be written: {error}"
        try:
            letter.file.unlink(missing_ok=True)
        except OSError as error:
            wrong = f"control message {letter.file.name} cannot be removed: {error}"
        return wrong


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)


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


def _remove(path: Path) -> list[str]:
    """Nothing, or a complaint."""
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            path.rename(path.with_name(f".refused-{path.name}"))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        return [f"control message {path.name} cannot be removed: {error}"]
    return []


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > ANSWER_KEPT_S
    except OSError:
        return False
