"""Standard normal numbers z(trial, iteration): drawn once, by seed, whatever the order in which they are asked for.

Drawn in blocks of several trials and iterations by a counter-based generator (Philox, Salmon et al. 2011) whose key
names the block. So a number costs nanoseconds, and needs no state beyond the block it lies in, which its trials share.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

FIRST_COLUMNS = 16
FIRST_ROWS = 64
"""Most trials of a search end early: the first block serves 64 trials for 16 iterations."""
LATER_COLUMNS = 64
LATER_ROWS = 8

Block: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float64]]"


class Noise:
    """All numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._key: tuple[int, int] = (-1, -1)
        self._block: Block = np.empty((0, 0))

    def block(self, number: int, group: int) -> Block:
        """Block 0 holds iterations 1 .. 16, block b > 0 the 64 after 16 + 64 (b - 1); rows are the group's trials."""
        key = (number, group)
        if key != self._key:
            shape = (FIRST_ROWS, FIRST_COLUMNS) if number == 0 else (LATER_ROWS, LATER_COLUMNS)
            bits = np.random.Philox(key=np.array([self._seed, (group << 24) | number], dtype=np.uint64))
            self._block = np.random.Generator(bits).standard_normal(shape)
            self._key = key
        return self._block


class TrialNoise:
    """z(iteration) of one trial; holds the block that was asked for last."""

    __slots__ = ("_after", "_block", "_noise", "_row", "_to", "_trial_id")

    def __init__(self, noise: Noise, trial_id: int) -> None:
        self._noise = noise
        self._trial_id = trial_id
        self._after = 0
        self._to = FIRST_COLUMNS
        self._row = trial_id % FIRST_ROWS
        self._block = noise.block(0, trial_id // FIRST_ROWS)

    def z(self, iteration: int) -> float:
        if not self._after < iteration <= self._to:
            self._move_to(iteration)
        return self._block.item(self._row, iteration - self._after - 1)

    def _move_to(self, iteration: int) -> None:
        if iteration <= FIRST_COLUMNS:
            number, rows = 0, FIRST_ROWS
            self._after, self._to = 0, FIRST_COLUMNS
        else:
            number, rows = 1 + (iteration - FIRST_COLUMNS - 1) // LATER_COLUMNS, LATER_ROWS
            self._after = FIRST_COLUMNS + LATER_COLUMNS * (number - 1)
            self._to = self._after + LATER_COLUMNS
        self._row = self._trial_id % rows
        self._block = self._noise.block(number, self._trial_id // rows)
