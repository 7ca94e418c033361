"""What a key may hold: one small class a kind, each able to read a value and to say what it allows.

The same objects read experiment files and print the reference, so the two cannot differ.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from hpcsched.config import deadline as deadlines
from hpcsched.config import duration as durations

LARGEST_INT = 2**63 - 1
"""Beyond this JSON, HDF5 and numpy part ways."""


class WrongValueError(ValueError):
    """The value is not of the kind; the text says why when `allowed` does not say it already."""


class Kind(Protocol):
    """Reads one value of a TOML document."""

    @property
    def allowed(self) -> str:
        """What may stand here, for messages and the reference."""
        ...

    def read(self, value: object) -> Any:
        """The value to use. Raises WrongValueError."""
        ...


def show(value: object, *, longest: int = 80) -> str:
    """A value as the file would spell it, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError, TypeError):
        text = f"a {type(value).__name__}"
    text = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    return text if len(text) <= longest else text[: longest - 3] + "..."


def did_you_mean(
    word: object, known: Iterable[str], shown: Callable[[str], str | None] = lambda near: near
) -> str:
    """' Did you mean "x"?' or nothing. `shown`: how the nearest is spelled."""
    if not isinstance(word, str) or len(word) > 100:
        return ""
    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f' Did you mean "{shown(near[0])}"?' if near else ""


class Flag(msgspec.Struct, frozen=True):
    """true or false."""

    @property
    def allowed(self) -> str:
        return "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise WrongValueError("")
        return value


class Whole(msgspec.Struct, frozen=True):
    """A whole number; true and 3.0 are none."""

    low: int = 0
    high: int = LARGEST_INT

    @property
    def allowed(self) -> str:
        if self.high == LARGEST_INT:
            return f"a whole number, at least {self.low}"
        return f"a whole number, {self.low} to {self.high}"

    def read(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise WrongValueError("")
        return value


class Number(msgspec.Struct, frozen=True):
    """A finite number."""

    low: float = -math.inf
    high: float = math.inf
    low_excluded: bool = False
    high_excluded: bool = False

    @property
    def allowed(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'above' if self.low_excluded else 'at least'} {self.low:g}")
        if self.high < math.inf:
            parts.append(f"{'below' if self.high_excluded else 'at most'} {self.high:g}")
        return ", ".join(["a number", " and ".join(parts)]) if parts else "a finite number"

    def read(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise WrongValueError("")
        try:
            number = float(value)
        except OverflowError:
            raise WrongValueError("too large") from None
        if not math.isfinite(number):
            raise WrongValueError("not finite")
        if number < self.low or (self.low_excluded and number == self.low):
            raise WrongValueError("")
        if number > self.high or (self.high_excluded and number == self.high):
            raise WrongValueError("")
        return number


class Duration(msgspec.Struct, frozen=True):
    """Seconds."""

    zero: bool = False
    """Whether 0 is allowed."""

    @property
    def allowed(self) -> str:
        return durations.ALLOWED + (", or 0" if self.zero else ", above 0")

    def read(self, value: object) -> float:
        try:
            seconds = durations.parse_duration(value)
        except ValueError as error:
            raise WrongValueError(str(error)) from error
        if seconds == 0 and not self.zero:
            raise WrongValueError("zero")
        return seconds


class Deadline(msgspec.Struct, frozen=True):
    """(seconds from the beginning, None) or (None, clock time)."""

    @property
    def allowed(self) -> str:
        return deadlines.ALLOWED

    def read(self, value: object) -> tuple[float | None, str | None]:
        try:
            return deadlines.parse_deadline(value)
        except ValueError as error:
            raise WrongValueError(str(error)) from error


class Text(msgspec.Struct, frozen=True):
    """One line without control characters."""

    what: str = "text"
    pattern: str = ""
    """A whole-match regular expression; empty: any."""
    longest: int = 4096

    @property
    def allowed(self) -> str:
        return self.what

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise WrongValueError("not a text (put it in quotes)" if isinstance(value, (int, float)) else "")
        if not value.strip():
            raise WrongValueError("empty")
        if len(value) > self.longest:
            raise WrongValueError(f"longer than {self.longest} characters")
        if not value.isprintable():
            raise WrongValueError("holds a control character")
        if self.pattern and not re.fullmatch(self.pattern, value, re.ASCII):
            raise WrongValueError("")
        return value


class OneOf(msgspec.Struct, frozen=True):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " | ".join(f'"{word}"' for word in self.words)

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise WrongValueError(did_you_mean(value, self.words).strip())
        return value


class Words(msgspec.Struct, frozen=True):
    """A list of texts; control characters other than NUL are the user's business (`bash -c` scripts)."""

    what: str = 'a list of texts, such as ["a", "b"]'
    num_least: int = 0
    pattern: str = ""

    @property
    def allowed(self) -> str:
        return self.what

    def read(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            words = ", ".join(json.dumps(word, ensure_ascii=False) for word in value.split()[:20])
            raise WrongValueError(f"a text, not a list; write [{words}]")
        if not isinstance(value, list):
            raise WrongValueError("")
        if len(value) < self.num_least:
            raise WrongValueError("empty")
        for word in value:
            if not isinstance(word, str):
                raise WrongValueError(f"{show(word)} is not a text")
            if "\0" in word:
                raise WrongValueError("holds a NUL character")
            if self.pattern and not re.fullmatch(self.pattern, word, re.ASCII):
                raise WrongValueError(f"{show(word)} is not one")
        if self.num_least and not value[0].strip():
            raise WrongValueError("its first word is empty")
        return tuple(value)


RESERVED_NAMES = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
    }
)
RESERVED_PREFIXES = ("HPCSCHED_", "SLURM_", "PMI", "TORCHELASTIC_")
OFFERED_NAMES = frozenset({"HPCSCHED_DEVICE", "HPCSCHED_MEMORY_NODES"})
"""Ours, for the user to set (`runtime.device`, `launch.environment`)."""


class Environment(msgspec.Struct, frozen=True):
    """Environment variables for the ranks; those that hpcsched itself sets or removes are reserved."""

    @property
    def allowed(self) -> str:
        return 'a table of texts, such as { NCCL_DEBUG = "WARN" }'

    def read(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            raise WrongValueError("")
        for name, text in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
                raise WrongValueError(f"{show(name)} is not a variable's name")
            if name in RESERVED_NAMES or (name.startswith(RESERVED_PREFIXES) and name not in OFFERED_NAMES):
                raise WrongValueError(
                    f"{name} is reserved: hpcsched sets or removes it for every rank "
                    f"({', '.join(sorted(RESERVED_NAMES))}, {', '.join(prefix + '*' for prefix in RESERVED_PREFIXES)})"
                )
            if not isinstance(text, str):
                raise WrongValueError(f"{name} = {show(text)} is not a text (put it in quotes)")
            if "\0" in text:
                raise WrongValueError(f"{name} holds a NUL character")
        return dict(value)


class Typed(msgspec.Struct, frozen=True):
    """Whatever a Python type allows: for policy options that have no kind of their own yet."""

    type: Any

    @property
    def allowed(self) -> str:
        return str(getattr(self.type, "__name__", self.type)).replace("typing.", "")

    def read(self, value: object) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise WrongValueError("not finite")
        try:
            return msgspec.convert(value, self.type)
        except (msgspec.ValidationError, RecursionError) as error:
            raise WrongValueError(str(error)) from error
