"""Every combination of the values of all dimensions; the last hyperparameter changes fastest.

The combinations are counted, never stored: combination i is i written in the mixed radix of the dimensions' sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from hpcsched.config.spec import Choice, Constant, Dimension, Integer, LogUniform, Uniform
from hpcsched.core.enums import TrialState
from hpcsched.core.events import Config


class Grid:
    """All combinations, in order."""

    def __init__(self, space: Mapping[str, Dimension]) -> None:
        self._axes = {name: axis(dimension) for name, dimension in space.items()}
        self.num_combinations = math.prod(len(values) for values in self._axes.values())

    def configuration(self, index: int) -> Config | None:
        if index >= self.num_combinations:
            return None
        config: Config = {}
        for name, values in reversed(self._axes.items()):
            index, position = divmod(index, len(values))
            config[name] = values[position]
        return {name: config[name] for name in self._axes}

    def tell(
        self, trial_id: int, config: Config, training_iteration: int, score: float | None, state: TrialState
    ) -> None:
        pass


def axis(dimension: Dimension) -> Sequence[Any]:
    """The points of one dimension, from low to high, both included; equal whole numbers only once."""
    if isinstance(dimension, Constant):
        return (dimension.value,)
    if isinstance(dimension, Choice):
        return dimension.values
    if isinstance(dimension, Integer):
        if dimension.num is None:
            return range(dimension.low, dimension.high + 1)
        ends = (float(dimension.low), float(dimension.high))
        points = _spread(*ends, dimension.num, log=dimension.log)
        return sorted({min(max(round(point), dimension.low), dimension.high) for point in points})
    if isinstance(dimension, (Uniform, LogUniform)):
        return _spread(
            dimension.low, dimension.high, dimension.num or 1, log=isinstance(dimension, LogUniform)
        )
    assert_never(dimension)


def _spread(low: float, high: float, num: int, *, log: bool) -> list[float]:
    """`num` points, evenly or by ratio; a single one is the middle."""
    if log:
        inner = [math.exp(point) for point in _spread(math.log(low), math.log(high), num, log=False)]
    elif num == 1:
        inner = [(low + high) / 2]
    else:
        inner = [low + (high - low) * i / (num - 1) for i in range(num)]
    if num > 1:
        inner[0], inner[-1] = low, high  # exactly, whatever rounding did
    return inner
