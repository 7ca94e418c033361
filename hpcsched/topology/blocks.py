"""Which atoms of one node to hand out, such that what stays free stays in large aligned blocks.

The buddy idea (Knowlton 1965): an aligned block is 2^k atoms at a position that is a multiple of 2^k, counted inside an island. A
trial that doubles wants one; a free atom whose buddy is taken is of use to a trial of one atom only. So of all
ways to take `num` atoms out of an island, the one is chosen after which the free atoms hold the most blocks of the largest size,
then of the next, and so on (`Profile`, compared lexicographically).

Sets of atoms of a node are bit masks, bit i being the node's i-th atom. All functions are pure, and `choose` is
remembered: nodes of a machine are alike, and a node of 8 atoms has 256 states.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

Profile: TypeAlias = tuple[int, ...]
"""Number of maximal free aligned blocks of 1, 2, 4, ... atoms, largest first."""


class Layout(NamedTuple):
    """How the atoms of a node are grouped: islands as (first atom, number of atoms), in atom order."""

    islands: tuple[tuple[int, int], ...]

    @property
    def num_atoms(self) -> int:
        return sum(size for _, size in self.islands)


class Choice(NamedTuple):
    """Atoms to take on one node."""

    mask: int
    num_islands: int
    """Islands that they touch."""
    num_kept: int
    """Of them, those that the trial holds already."""
    loss: Profile
    """Free blocks lost by it, largest first; smaller is better. (A block that is split counts against the smaller ones won.)"""


_MAX_ORDER = 8
"""Largest block that is told apart: 256 atoms of one node."""


def island_masks(layout: Layout) -> Iterator[int]:
    for first, size in layout.islands:
        yield ((1 << size) - 1) << first


@lru_cache(maxsize=1 << 16)
def profile(layout: Layout, free: int) -> Profile:
    """The free blocks of a node, of 2^8, 2^7, ... 1 atoms."""
    counts = [0] * (_MAX_ORDER + 1)
    for first, size in layout.islands:
        local = (free >> first) & ((1 << size) - 1)
        for order in range(_MAX_ORDER, -1, -1):
            width = 1 << order
            if width > size or not local:
                continue
            block = (1 << width) - 1
            for position in range(0, size - width + 1, width):
                if local >> position & block == block:
                    counts[_MAX_ORDER - order] += 1
                    local &= ~(block << position)
    return tuple(counts)


@lru_cache(maxsize=1 << 16)
def choose(layout: Layout, free: int, held: int, num: int) -> Choice | None:
    """Take `num` atoms of the node out of `free` and `held` (disjoint); None when there are too few.

    On as few islands as possible; of those, keeping as many of `held` as possible; of those, losing the least blocks.
    `held` counts as free in the profile before: the trial gives all of it back.
    """
    usable = free | held
    if num < 1 or usable.bit_count() < num:
        return None
    before = profile(layout, usable)
    parts = [mask for mask in island_masks(layout) if mask & usable]

    def finish(mask: int, islands: int) -> Choice:
        after = profile(layout, usable & ~mask)
        loss = tuple(b - a for b, a in zip(before, after, strict=True))
        return Choice(mask, islands, (mask & held).bit_count(), loss)

    best: Choice | None = None
    for part in parts:
        if (usable & part).bit_count() < num:
            continue
        found = finish(_take(layout, free & part, held & part, num), 1)
        if best is None or (-found.num_kept, found.loss) < (-best.num_kept, best.loss):
            best = found
    if best is not None:
        return best
    # Several islands: the fullest first, so that they are few; the last part from the one that it fits best.
    left = num
    mask = 0
    islands = 0
    rest = sorted(parts, key=lambda part: (-(usable & part).bit_count(), -(held & part).bit_count(), part))
    while left:
        fitting = [part for part in rest if (usable & part).bit_count() >= left]
        if fitting:
            last = min(
                fitting,
                key=lambda part: (
                    -min(left, (held & part).bit_count()),
                    finish(_take(layout, free & part, held & part, left), 1).loss,
                    part,
                ),
            )
            mask |= _take(layout, free & last, held & last, left)
            left = 0
        else:
            mask |= usable & rest[0]
            left -= (usable & rest[0]).bit_count()
            rest = rest[1:]
        islands += 1
    return finish(mask, islands)


def _take(layout: Layout, free: int, held: int, num: int) -> int:
    """`num` atoms of one island: all of `held` and some of `free`, or some of `held`.

    Greedy from the largest block down: leave it whole while what may be left allows it. Since sizes are powers of two, that
    leaves the lexicographically best profile.
    """
    if num >= held.bit_count():
        must, may = held, free
    else:
        must, may = 0, held
    usable = free | held
    leave = may.bit_count() - (num - must.bit_count())  # so many of `may` stay free
    left_free = usable & ~must & ~may  # these stay free in any case
    open_to_leave = may
    for first, size in layout.islands:
        island = ((1 << size) - 1) << first
        if not usable & island:
            continue
        for order in range(min(_MAX_ORDER, size.bit_length() - 1), -1, -1):
            if leave == 0:
                break
            width = 1 << order
            # Among equal blocks the lone ones are left before a larger one is split (so that what is taken is
            # aligned too, and comes back whole), and those at the end, so that atoms are handed out from the front.
            positions = range((size // width - 1) * width, -1, -width)
            for lone in (True, False):
                for position in positions:
                    block = ((1 << width) - 1) << (first + position)
                    if block & ~(open_to_leave | left_free):
                        continue
                    buddy = ((1 << width) - 1) << (first + (position ^ width))
                    if lone and not buddy & ~(open_to_leave | left_free):
                        continue
                    cost = (block & open_to_leave).bit_count()
                    if 0 < cost <= leave:
                        leave -= cost
                        left_free |= block
                        open_to_leave &= ~block
    return must | open_to_leave
