"""Paths and small files that an experiment file names; all trouble becomes a WrongValueError with a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcsched.config.kinds import WrongValueError

LARGEST_LIST = 1_000_000_000
"""Bytes of a list of configurations."""


def expand(text: str, start: Path) -> Path:
    """An absolute path; "~" is a home folder, relative paths begin at `start`."""
    try:
        return Path(start, Path(text).expanduser()).absolute()
    except (RuntimeError, ValueError, OSError) as error:
        raise WrongValueError(str(error)) from error


def is_file(path: Path) -> bool:
    """False also for names that no file system takes."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def find_program(word: str, *, cwd: Path, environ: Mapping[str, str]) -> Path | None:
    """Where the first word of a command is found: a path (from `cwd`) or a name on PATH; None: nowhere."""
    search = str(cwd) if "/" in word else environ.get("PATH", "")
    name = str(Path(cwd, word)) if "/" in word else word
    try:
        found = shutil.which(name, path=search)
    except (OSError, ValueError):
        return None
    return None if found is None else Path(found)


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line from 1, value) of each line that is not blank."""
    try:
        if path.stat().st_size > LARGEST_LIST:
            raise WrongValueError(f"larger than {LARGEST_LIST} bytes: {path}")
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise WrongValueError(f"line {number} is not JSON: {error}") from error
    except OSError as error:
        raise WrongValueError(f"cannot be read: {error.strerror}") from error
