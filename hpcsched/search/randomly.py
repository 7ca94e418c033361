"""Random search without a random generator.

Each number is a hash of (seed, index, hyperparameter): nothing has state, the order of asking does not matter, adding a
hyperparameter leaves the others' values as they were, and any Python gives the same bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, assert_never

from hpcsched.config.spec import Choice, Constant, Dimension, Integer, LogUniform, Uniform
from hpcsched.core.enums import TrialState
from hpcsched.core.events import Config

_BITS = 256


class RandomSource:
    """Independent draws from the space; never ends."""

    def __init__(self, space: Mapping[str, Dimension], *, seed: int) -> None:
        self._space = dict(space)
        self._seed = seed

    def configuration(self, index: int) -> Config | None:
        return {
            name: draw(dimension, _hash(self._seed, index, name)) for name, dimension in self._space.items()
        }

    def tell(
        self, trial_id: int, config: Config, training_iteration: int, score: float | None, state: TrialState
    ) -> None:
        pass


def _hash(seed: int, index: int, name: str) -> int:
    """A whole number, each of 0 .. 2**256 - 1 as likely."""
    return int.from_bytes(hashlib.sha256(f"hpcsched search {seed} {index} {name}".encode()).digest())


def draw(dimension: Dimension, bits: int) -> Any:
    """The value of `dimension` at the quantile bits / 2**256."""
    if isinstance(dimension, Constant):
        return dimension.value
    if isinstance(dimension, Choice):
        return dimension.values[bits * len(dimension.values) >> _BITS]
    unit = (bits >> (_BITS - 53)) * 2.0**-53
    if isinstance(dimension, Uniform):
        return _within(dimension.low + unit * (dimension.high - dimension.low), dimension.low, dimension.high)
    if isinstance(dimension, LogUniform):
        low, high = math.log(dimension.low), math.log(dimension.high)
        return _within(math.exp(low + unit * (high - low)), dimension.low, dimension.high)
    if isinstance(dimension, Integer):
        if not dimension.log:
            return dimension.low + (bits * (dimension.high - dimension.low + 1) >> _BITS)
        low, high = math.log(dimension.low), math.log(dimension.high + 1)
        return int(_within(math.floor(math.exp(low + unit * (high - low))), dimension.low, dimension.high))
    assert_never(dimension)


def _within(number: float, low: float, high: float) -> float:
    """Rounding may step over an end."""
    return min(max(number, low), high)
