"""The search space: one dimension a hyperparameter.

::

    learning_rate = { log_uniform = [1e-4, 1.0] }
    dropout       = { uniform = [0.0, 0.5] }
    num_layers    = { integer = [2, 8] }              # both included; log = true: by orders of magnitude
    momentum      = { choice = [0.9, 0.95, 0.99] }
    batch_size    = { constant = 64 }                 # or simply: batch_size = 64

For sampler "grid" the first three take `num`, the number of points (integers: all of them by default).
"""

from __future__ import annotations

import math
import re
from typing import Any

from hpcsched.config.kinds import LARGEST_INT, WrongValueError, did_you_mean, show
from hpcsched.config.spec import Choice, Constant, Dimension, Integer, LogUniform, Uniform

SHAPES = ("uniform", "log_uniform", "integer", "choice", "constant")

ALLOWED = (
    "{ uniform = [low, high] } | { log_uniform = [low, high] } | { integer = [low, high] } | "
    "{ choice = [a, b, ...] } | { constant = value }"
)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", re.ASCII)
"""Hyperparameter names."""

_EXTRAS = {
    "uniform": ("num",),
    "log_uniform": ("num",),
    "integer": ("num", "log"),
    "choice": (),
    "constant": (),
}
_DEEPEST = 16


def read_dimension(value: object) -> Dimension:
    """One hyperparameter's range. Raises WrongValueError with the reason."""
    if isinstance(value, (str, bool, int, float)):
        return Constant(check_json(value))
    if isinstance(value, list):
        raise WrongValueError(f"a bare list; write {{ choice = {show(value)} }}")
    if not isinstance(value, dict):
        raise WrongValueError("")
    shapes = [key for key in value if key in SHAPES]
    if len(shapes) != 1:
        if shapes:
            raise WrongValueError(f"{' and '.join(shapes)}: one dimension, one shape")
        unknown = next(iter(value), None)
        raise WrongValueError(did_you_mean(unknown, SHAPES).strip() if value else "empty")
    shape = shapes[0]
    extras = _EXTRAS[shape]
    for key in value:
        if key != shape and key not in extras:
            takes = (
                f"besides its range it takes {' and '.join(extras)}" if extras else "it takes nothing else"
            )
            raise WrongValueError(f'unknown key "{key}" of {shape}: {takes}.{did_you_mean(key, extras)}')
    given = value[shape]
    if shape == "constant":
        return Constant(check_json(given))
    if shape == "choice":
        return _choice(given)
    num = value.get("num")
    if num is not None and (isinstance(num, bool) or not isinstance(num, int) or not 1 <= num <= 1_000_000):
        raise WrongValueError(f"num = {show(num)}: a whole number, 1 to 1000000")
    if shape == "integer":
        log = value.get("log", False)
        if not isinstance(log, bool):
            raise WrongValueError(f"log = {show(log)}: true or false")
        low, high = _integers(given)
        if log and low < 1:
            raise WrongValueError(f"log needs low >= 1, not {low}")
        return Integer(low, high, log, num)
    low_f, high_f = _floats(given, shape)
    if shape == "log_uniform":
        if low_f <= 0:
            raise WrongValueError(f"log_uniform needs low > 0, not {low_f:g}: zero has no logarithm")
        return LogUniform(low_f, high_f, num)
    if not math.isfinite(high_f - low_f):
        raise WrongValueError("too wide a range")
    return Uniform(low_f, high_f, num)


def check_json(value: Any, depth: int = 0) -> Any:
    """The value, when it can be written as JSON and read back equal. Raises WrongValueError."""
    if depth > _DEEPEST:
        raise WrongValueError(f"nested more than {_DEEPEST} deep")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if abs(value) > LARGEST_INT:
            raise WrongValueError(f"{show(value)} does not fit 64 bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise WrongValueError(f"{value} is not finite")
        return value
    if isinstance(value, list):
        return [check_json(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: check_json(item, depth + 1) for key, item in value.items()}
    raise WrongValueError(
        f"a {type(value).__name__} cannot be a hyperparameter: numbers, texts, true, false, lists, tables"
    )


def _choice(given: object) -> Choice:
    if not isinstance(given, list):
        raise WrongValueError("choice takes a list")
    if not given:
        raise WrongValueError("choice is empty: nothing to choose from")
    return Choice(tuple(check_json(item) for item in given))


def _pair(given: object, shape: str) -> tuple[Any, Any]:
    if not isinstance(given, list) or len(given) != 2:
        raise WrongValueError(f"{shape} takes [low, high]")
    return given[0], given[1]


def _integers(given: object) -> tuple[int, int]:
    low, high = _pair(given, "integer")
    for number in (low, high):
        if isinstance(number, bool) or not isinstance(number, int):
            raise WrongValueError(f"{show(number)} is not a whole number")
        if abs(number) > LARGEST_INT:
            raise WrongValueError(f"{show(number)} does not fit 64 bits")
    if low >= high:
        raise WrongValueError(f"low must be below high, not {low} and {high}")
    return low, high


def _floats(given: object, shape: str) -> tuple[float, float]:
    low, high = _pair(given, shape)
    for number in (low, high):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise WrongValueError(f"{show(number)} is not a number")
        try:
            finite = math.isfinite(number)
        except OverflowError:
            finite = False
        if not finite:
            raise WrongValueError(f"{show(number)} is not finite")
    if low >= high:
        raise WrongValueError(f"low must be below high, not {low:g} and {high:g}")
    return float(low), float(high)
