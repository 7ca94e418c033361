"""Allowed sizes of a trial: one atom, or a multiple of `multiple_of` (paper: 2, for NCCL's sake)."""

from __future__ import annotations

import msgspec


class Sizes(msgspec.Struct, frozen=True):
    """Which sizes a trial may have."""

    multiple_of: int = 2
    largest: int | None = None
    """Most atoms a trial may hold; None: no limit."""

    @classmethod
    def within(cls, multiple_of: int, *limits: int | None) -> Sizes:
        """Up to the least of the limits; None: no limit."""
        return cls(multiple_of, min((limit for limit in limits if limit is not None), default=None))

    def allows(self, size: int) -> bool:
        within = self.largest is None or size <= self.largest
        return size >= 1 and within and (size == 1 or size % self.multiple_of == 0)

    def floor(self, size: int) -> int:
        """The largest allowed size that is not above `size`; 0 when size < 1."""
        if self.largest is not None:
            size = min(size, self.largest)
        if size < 1:
            return 0
        return max(1, size - size % self.multiple_of)

    def next(self, size: int) -> int | None:
        """The next larger allowed size, or None."""
        larger = size + self.multiple_of - size % self.multiple_of
        if self.multiple_of == 1:
            larger = size + 1
        return larger if self.allows(larger) else None
