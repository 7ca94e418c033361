"""How fast a trial trains on so many atoms, relative to one.

The tables are those of the HyperSched simulations ("LINEAR", "SQRT", "NONE" in the paper's section 6): linear
interpolation between the entries, the end values beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Scaling: TypeAlias = Literal["linear", "sqrt", "none"] | Mapping[int, float]

SQRT: dict[int, float] = {1: 1.0, 2: 1.4, 4: 2.0, 8: 2.8, 16: 4.0, 32: 5.7}
"""The published table; beyond 32 atoms it goes on with the square root itself, which the table rounds."""


class Throughput:
    """s(atoms): training iterations a second on `atoms` atoms, over those on one."""

    def __init__(self, scaling: Scaling) -> None:
        self._linear = scaling == "linear"
        self._beyond_sqrt = scaling == "sqrt"
        table: Mapping[int, float]
        if isinstance(scaling, str):
            table = {"linear": {1: 1.0}, "sqrt": SQRT, "none": {1: 1.0}}[scaling]
        else:
            table = scaling
        self._sizes = sorted(table)
        self._values = [float(table[size]) for size in self._sizes]
        self._known: dict[int, float] = {}

    def __call__(self, num_atoms: int) -> float:
        value = self._known.get(num_atoms)
        if value is None:
            value = self._known[num_atoms] = self._interpolate(num_atoms)
        return value

    def _interpolate(self, num_atoms: int) -> float:
        if self._linear:
            return float(num_atoms)
        sizes, values = self._sizes, self._values
        if self._beyond_sqrt and num_atoms > sizes[-1]:
            return float(num_atoms**0.5)
        if num_atoms <= sizes[0]:
            return values[0]
        if num_atoms >= sizes[-1]:
            return values[-1]
        upper = next(i for i, size in enumerate(sizes) if size >= num_atoms)
        low, high = sizes[upper - 1], sizes[upper]
        part = (num_atoms - low) / (high - low)
        return values[upper - 1] + part * (values[upper] - values[upper - 1])
