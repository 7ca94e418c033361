"""How many atoms each running trial should have (algorithms.md 1.8, T15, T16).

All n trials get one atom; the others are handed out by one of five rules. `uniform`, the published one, raises the
smallest trial first and among equals the better one, each time to the next allowed size. As all trials climb the
same ladder of sizes, the outcome is a whole number of rounds for everyone and one step more for the best few:
a formula, no loop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hpcsched.core.sizes import Sizes


def uniform_size(num_atoms: int, num_trials: int, position: int, sizes: Sizes) -> int:
    """The size of the trial at `position` (0: the best) among `num_trials` that share `num_atoms` uniformly.

    O(1) but for one step a round below `multiple_of`.
    """
    assert 0 <= position < num_trials
    if num_atoms < num_trials:
        return 1  # more trials than atoms that are up: nobody can give anything away
    spare = num_atoms - num_trials
    size = 1
    first_step = sizes.next(1)
    if first_step is None:
        return 1
    step = first_step - 1
    if spare < step * num_trials:
        return first_step if position < spare // step else 1
    spare -= step * num_trials
    size = first_step
    step = sizes.multiple_of
    rounds = spare // (step * num_trials)
    if sizes.largest is not None:
        rounds = min(rounds, (sizes.floor(sizes.largest) - size) // step)
    size += rounds * step
    spare -= rounds * step * num_trials
    if position < spare // step and sizes.allows(size + step):
        size += step
    return size


def uniform(num_atoms: int, num_trials: int, sizes: Sizes) -> list[int]:
    """Sizes of all trials, best first."""
    return [uniform_size(num_atoms, num_trials, position, sizes) for position in range(num_trials)]


def top(num_atoms: int, num_trials: int, sizes: Sizes) -> list[int]:
    """As much as possible to the best, what an allowed size leaves over to the next one, and so on."""
    spare = num_atoms - num_trials
    shares = []
    for _ in range(num_trials):
        size = max(1, sizes.floor(1 + max(0, spare)))
        spare -= size - 1
        shares.append(size)
    return shares


def softmax(num_atoms: int, scores: Sequence[float | None], sizes: Sizes) -> list[int]:
    """Spare atoms by softmax of the raw scores, rounded down, the rest to the best; then down to allowed sizes.

    A trial without a score counts as good as the best (the 2020 program hung on it: inf - inf).
    """
    num_trials = len(scores)
    spare = max(0, num_atoms - num_trials)
    known = [score for score in scores if score is not None]
    highest = max(known, default=0.0)
    weights = [1.0 if score is None else math.exp(score - highest) for score in scores]
    total = sum(weights)
    shares = [1 + math.floor(spare * weight / total) for weight in weights]
    largest = max(range(num_trials), key=lambda i: (weights[i], -i))
    shares[largest] += spare - sum(share - 1 for share in shares)
    return _allowed(shares, sizes)


def at_random(num_atoms: int, num_trials: int, sizes: Sizes, rng: random.Random) -> list[int]:
    """Each spare atom to a random trial; then down to allowed sizes."""
    shares = [1] * num_trials
    for _ in range(max(0, num_atoms - num_trials)):
        shares[rng.randrange(num_trials)] += 1
    return _allowed(shares, sizes)


def _allowed(shares: Sequence[int], sizes: Sizes) -> list[int]:
    """Round down to allowed sizes; what that frees goes to the first trials that it lifts to the next size."""
    rounded = [max(1, sizes.floor(share)) for share in shares]
    spare = sum(shares) - sum(rounded)
    for i, size in enumerate(rounded):
        larger = sizes.next(size)
        if larger is not None and larger - size <= spare:
            spare -= larger - size
            rounded[i] = larger
    return rounded
