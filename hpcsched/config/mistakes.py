"""All mistakes of one experiment file, collected before any is told: nobody wants to mend them one run at a time."""

from __future__ import annotations

import re
from pathlib import Path

from hpcsched.config.kinds import show
from hpcsched.errors import ExperimentFileError

ABSENT = object()
"""There is no value to show (a key is missing, say)."""

_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_\-.\s\"']+?)\s*\]")
_KEY = re.compile(r"\s*[\"']?([A-Za-z0-9_\-.]+)[\"']?\s*=")


def line_of(text: str, key: str) -> int | None:
    """The line (from 1) that sets the dotted `key`, or its table's header; None when it is not found.

    A plain look at headers and first keys: tomllib keeps no positions, and a hint need not be a parser.
    """
    table = ""
    table_line: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header:
            table = header[1].replace(" ", "").replace('"', "").replace("'", "")
            if key == table or key.startswith(table + "."):
                table_line = number
            continue
        assignment = _KEY.match(line)
        if assignment:
            full = f"{table}.{assignment[1]}" if table else assignment[1]
            if key == full or key.startswith(full + "."):
                return number
    return table_line if table_line is not None else None


class Mistakes:
    """Collects; `raise_if_any` raises one ExperimentFileError that tells them all, in the file's order."""

    def __init__(self, file: Path | str, text: str, overridden: frozenset[str] = frozenset()) -> None:
        self._file = file
        self._text = text
        self._overridden = overridden
        self._found: list[tuple[int, str, str, object]] = []
        self._bad: set[str] = set()

    def add(self, key: str, why: str, value: object = ABSENT, allowed: str = "") -> None:
        """`key` dotted, such as "trial.command"; `why` may be empty when `allowed` says enough."""
        line = None if key in self._overridden else line_of(self._text, key)
        where = f"line {line}: " if line is not None and value is not ABSENT else ""
        if key in self._overridden:
            where = "given on the command line: "
        parts = [f"{show(value)} is not allowed" if value is not ABSENT else "", why]
        message = where + ": ".join(part for part in parts if part)
        if allowed:
            message += f" (allowed: {allowed})"
        self._found.append((line or 10**9, key, message, None if value is ABSENT else value))
        self._bad.add(key)

    def clean(self, *keys: str) -> bool:
        """No mistake was found in any of these keys: they may be compared with each other."""
        return not any(bad == key or bad.startswith(key + ".") for bad in self._bad for key in keys)

    def raise_if_any(self) -> None:
        if not self._found:
            return
        found = sorted(self._found, key=lambda mistake: mistake[0])
        _, key, message, value = found[0]
        if len(found) == 1:
            raise ExperimentFileError(message, file=self._file, key=key, value=value)
        told = [f"  {key}: {message}" if key else f"  {message}" for _, key, message, _ in found[:50]]
        if len(found) > 50:
            told.append(f"  and {len(found) - 50} more")
        error = ExperimentFileError("\n".join([f"{len(found)} mistakes", *told]), file=self._file)
        error.key, error.value = key, value
        raise error
