"""Standard normal numbers z(trial, iteration): drawn once, by seed, whatever the order in which they are asked for.

Drawn in blocks by a counter-based generator (Philox, Salmon et al. 2011), whose key names the block, so that a number
costs nanoseconds and needs no state to be kept.
"""

from __future__ import annotations

from array import array

import numpy as np

FIRST_COLUMNS = 16
FIRST_ROWS = 64
"""Most trials of a search end early: the first block serves 64 trials for 16 iterations."""
LATER_COLUMNS = 64
LATER_ROWS = 8


class Noise:
    """z(trial, iteration) of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._group: tuple[int, int] | None = None
        self._block: np.ndarray[tuple[int, int], np.dtype[np.float64]] | None = None

    def row(self, trial_id: int, block: int) -> array[float]:
        """Of block 0: iterations 1 .. 16; of block b > 0: the 64 after 16 + 64 (b - 1)."""
        rows, columns = (FIRST_ROWS, FIRST_COLUMNS) if block == 0 else (LATER_ROWS, LATER_COLUMNS)
        group = (block, trial_id // rows)
        if group != self._group or self._block is None:
            key = np.array([self._seed & 0xFFFFFFFFFFFFFFFF, (group[1] << 24) | block], dtype=np.uint64)
            self._block = np.random.Generator(np.random.Philox(key=key)).standard_normal((rows, columns))
            self._group = group
        return array("d", self._block[trial_id % rows].tobytes())

    def extend(self, trial_id: int, known: array[float]) -> None:
        """Append the next block to what is known of a trial."""
        have = len(known)
        block = 0 if have == 0 else 1 + (have - FIRST_COLUMNS) // LATER_COLUMNS
        known.extend(self.row(trial_id, block))
