"""`[scaling]`: throughput relative to one atom, by assumption or from a measured profile.

A profile is a JSON file, `{"spans": {"island": {"1": 1.0, "2": 1.9}, "node": {...}, "switch": ..., "beyond": ...}, "restart_s":
{"1": 3.1, "2": 3.4}}`: for each span of a placement (its atoms lie in one NVLink island, one node, under one switch, or further
apart), s(atoms); and, where known, what a start costs by atoms, end to end. Anything else in it is for people.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcsched.config.kinds import WrongValueError, did_you_mean, show
from hpcsched.core.scaling import Point
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
    restart_s = document.get("restart_s", {})
    if not isinstance(restart_s, dict):
        raise WrongValueError("restart_s is not a table of atoms and seconds")
    costs = _curve(restart_s, relative_to_one=False, what="time in seconds") if restart_s else {}
    return ScalingSettings(assume=dict(sorted(best.items())), spans=curves, restart_s=costs)


def profile_of_run(
    points: Iterable[Point], restart_s: Mapping[int, float], *, more: Mapping[str, object] | None = None
) -> dict[str, Any] | None:
    """The document of a profile that `read_profile` takes; None when only one atom was ever measured.

    `more`: further keys, for people."""
    spans: dict[str, dict[str, float]] = {}
    reports: dict[str, dict[str, int]] = {}
    for point in points:
        spans.setdefault(str(point.span), {"1": 1.0})[str(point.size)] = round(point.speedup, 4)
        reports.setdefault(str(point.span), {})[str(point.size)] = point.num
    if not spans:
        return None
    return {
        "spans": spans,
        "restart_s": {str(size): round(cost, 4) for size, cost in sorted(restart_s.items()) if cost > 0},
        "reports": reports,
        **(more or {}),
    }


def _curve(
    table: dict[str, object], *, relative_to_one: bool = True, what: str = "speed-up"
) -> dict[int, float]:
    curve: dict[int, float] = {}
    for name, speed in table.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 9 and int(name) >= 1):
            raise WrongValueError(f"{show(name)} is not a number of atoms")
        if isinstance(speed, bool) or not isinstance(speed, (int, float)):
            raise WrongValueError(f"{name} = {show(speed)} is not a {what}")
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
