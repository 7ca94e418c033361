"""`[scaling]`: throughput relative to one atom, by assumption or from a measured profile.

A profile is a JSON file, `{"spans": {"island": {"1": 1.0, "2": 1.9}, "node": {...}, "switch": ..., "beyond": ...}}`:
for each span of a placement (its atoms lie in one NVLink island, one node, under one switch, or further apart), s(atoms).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from hpcsched.config.kinds import WrongValueError, did_you_mean, show
from hpcsched.core.settings import ScalingSettings

ASSUME_ALLOWED = (
    '"linear" | "sqrt" | "none" | "measured" | a table of atoms and speed-up, such as { 1 = 1.0, 2 = 1.8 }'
)
SPANS = ("island", "node", "switch", "beyond")
_WORDS = ("linear", "sqrt", "none", "measured")
_LARGEST_FILE = 10_000_000


def read_assume(value: object) -> ScalingSettings:
    """The `assume` key. Raises WrongValueError."""
    if isinstance(value, dict):
        return ScalingSettings(assume=_curve(value))
    if value == "measured":
        return ScalingSettings(assume=None)
    if value == "linear" or value == "sqrt" or value == "none":
        return ScalingSettings(assume=value)
    raise WrongValueError(did_you_mean(value, _WORDS).strip())


def read_profile(path: Path) -> ScalingSettings:
    """The `profile` key's file; `assume` becomes the best span's curve at each size. Raises WrongValueError."""
    try:
        if not path.is_file():
            raise WrongValueError(f"no such file: {path}")
        if path.stat().st_size > _LARGEST_FILE:
            raise WrongValueError(f"larger than {_LARGEST_FILE} bytes: {path}")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise WrongValueError(f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, WrongValueError):
            raise
        raise WrongValueError(f"is not JSON: {error}") from error
    spans = document.get("spans") if isinstance(document, dict) else None
    if not isinstance(spans, dict) or not spans:
        raise WrongValueError('has no "spans" object (write it with `hpcsched profile`)')
    curves: dict[str, dict[int, float]] = {}
    for span, curve in spans.items():
        if span not in SPANS:
            raise WrongValueError(f'unknown span "{span}": {", ".join(SPANS)}.{did_you_mean(span, SPANS)}')
        if not isinstance(curve, dict):
            raise WrongValueError(f"span {span} is not a table of atoms and speed-up")
        curves[span] = _curve(curve, relative_to_one=False)
    best: dict[int, float] = {}
    for curve_by_size in curves.values():
        for size, speed in curve_by_size.items():
            best[size] = max(speed, best.get(size, 0.0))
    if best.setdefault(1, 1.0) != 1.0:
        raise WrongValueError(f"says that one atom is {best[1]:g} times as fast as one atom")
    return ScalingSettings(assume=dict(sorted(best.items())), spans=curves)


def _curve(table: dict[str, object], *, relative_to_one: bool = True) -> dict[int, float]:
    curve: dict[int, float] = {}
    for name, speed in table.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 9 and int(name) >= 1):
            raise WrongValueError(f"{show(name)} is not a number of atoms")
        if isinstance(speed, bool) or not isinstance(speed, (int, float)):
            raise WrongValueError(f"{name} = {show(speed)} is not a speed-up")
        try:
            number = float(speed)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number <= 0:
            raise WrongValueError(f"{name} = {show(speed)} is not a finite number above 0")
        if int(name) in curve:
            raise WrongValueError(f"{int(name)} atoms twice")
        curve[int(name)] = number
    if not curve:
        raise WrongValueError("empty")
    if relative_to_one and curve.setdefault(1, 1.0) != 1.0:
        raise WrongValueError(f"speed-up is relative to one atom, so 1 = 1.0, not {curve[1]:g}")
    return dict(sorted(curve.items()))
