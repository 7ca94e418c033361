"""What a script reports -> what the wire carries: floats, or None with the problem's name."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from hpcsched.errors import TrialError


def read_metrics(metrics: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, str]]:
    """(values, problems). Takes numbers, and tensors or arrays of one element; NaN and infinities become None with
    "nan", "inf" or "-inf". Raises TrialError for anything else, and what torch raises when it cannot be read: an earlier
    kernel on the GPU that has failed says so here, where the CPU waits for it."""
    values: dict[str, float | None] = {}
    problems: dict[str, str] = {}
    for name, given in metrics.items():
        value = _number(name, given)
        if math.isfinite(value):
            values[name] = value
        else:
            values[name] = None
            problems[name] = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return values, problems


def _number(name: str, given: Any) -> float:
    item = getattr(given, "item", None)
    if callable(item) and not isinstance(given, (int, float)):
        try:
            given = item()  # a tensor or a numpy array or scalar
        except (ValueError, RuntimeError) as error:
            if _num_elements(given) == 1:
                error.add_note(f"(raised while trial.report() read the metric {name!r})")
                raise
            raise TrialError(
                f"trial.report({name}=...): {error}; a metric is one number (take its mean)"
            ) from error
    if isinstance(given, (bool, int, float)):
        try:
            return float(given)
        except OverflowError:
            return math.inf if given > 0 else -math.inf
    raise TrialError(
        f"trial.report({name}={reprlib.repr(given)}): a metric is one number, not a {type(given).__name__}"
    )


def _num_elements(given: Any) -> int | None:
    """Of a tensor or an array; None: not known."""
    numel = getattr(given, "numel", None)
    num = numel() if callable(numel) else getattr(given, "size", None)
    return num if isinstance(num, int) else None
