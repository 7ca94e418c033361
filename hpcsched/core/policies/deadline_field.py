"""How many trials share the atoms where training outweighs choice.

Most of what a training gains it gains on the way to its end, so the last contenders should get there. A trial counts as trained
when it has done the share `trained` of R , or `enough` iterations on one atom. Then

- where each of as many trials as there are atoms is trained by the deadline, one atom a trial is enough, until the end;
- else the contenders of the end are as many as can be trained by the deadline: at least one, and as many as are equally fast.
  Before, for the share `explore` of the deadline, the field is `wide` times as many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

ALIKE = 0.98
"""More contenders are preferred where each is at least so many times as fast."""


NEARLY = 0.5
"""The field is not narrowed where all would do so much of a training without."""


class Reach(NamedTuple):
    """What contenders can reach, at one moment."""

    left_s: float
    iteration_s: float
    """Median, on one atom."""
    max_iterations: int
    trained: float
    enough: int
    size_for: Callable[[int], int]
    """Useful atoms of each of so many contenders."""
    scaling: Callable[[int, int], float]
    """(size, num): the speed of so many trials on so many atoms each, placed on this machine, over one atom's."""
    restart_s: Callable[[int], float]

    def iterations(self, num: int, seconds: float) -> float:
        """Of each of `num` contenders."""
        size = self.size_for(num)
        return max(0.0, seconds - self.restart_s(size)) * self.scaling(size, num) / self.iteration_s

    def speed(self, num: int) -> float:
        return self.scaling(self.size_for(num), num)

    def needed(self) -> float:
        """Iterations of a trained trial."""
        return min(self.trained * self.max_iterations, float(self.enough))

    def all_are_trained(self, num: int, done: float = 0.0) -> bool:
        """By the deadline, or nearly, when `num` contenders that have done `done` iterations go on."""
        return done + self.iterations(num, self.left_s) >= NEARLY * self.needed()

    def contenders(self, num_atoms: int, wide: int, explore_s: float, done: float = 0.0) -> int:
        """How many can be trained, of a field that is `wide` times as wide for the first `explore_s` of the time left."""
        needed = self.needed() - done
        num = num_atoms
        while num > 1:
            first = self.iterations(min(num_atoms, wide * num), explore_s) if explore_s > 0 else 0.0
            if first + self.iterations(num, self.left_s - explore_s) >= needed:
                break
            num //= 2
        while 2 * num <= num_atoms and self.speed(2 * num) >= ALIKE * self.speed(num):
            num *= 2
        return num
