"""Which rank the others wait for. Pure: no sockets, no clock.

Theory. Supervisors tell every few seconds where each rank is (`hpcsched.progress`). Ranks that train in step enter the same
collectives in the same order; so when nothing moves, the ranks that have entered the fewest are those that the others wait for, and what
each of them does meanwhile (stopped, asleep, computing, waiting for data) is read by its supervisor. Where all have entered equally
many nobody waits for anybody: they compute, however long that takes, and nothing is said, unless a rank is stopped or all of
them wait for data.
"""

from __future__ import annotations

import msgspec

from hpcsched.wire import RankNow

STALLED_AFTER_S = 15.0
"""Nothing is said before a rank has not come further for so long."""
AGAIN = 4.0
"""A stall that lasts is told again after so many times as long."""
FRESH_S = 15.0
"""What was told longer ago says nothing about now."""


class Stall(msgspec.Struct, frozen=True):
    """A stall has begun, lasts, or (`over`) has ended."""

    ranks: tuple[int, ...]
    doing: str
    for_s: float
    iteration: int
    num_waiting: int
    over: bool = False

    @property
    def text(self) -> str:
        who, many = _ranks(self.ranks), len(self.ranks) > 1
        if self.over:
            return f"{who} {'go' if many else 'goes'} on after {self.for_s:.0f} s"
        where = f"at iteration {self.iteration}" if self.iteration else "before the first iteration"
        doing = self.doing.replace("has", "have", 1).replace("it uses", "they use") if many else self.doing
        text = f"{who} {doing} for {self.for_s:.0f} s {where}"
        if self.num_waiting:
            whom = "them" if many else "it"
            others = "other waits" if self.num_waiting == 1 else f"{self.num_waiting} others wait"
            text += f"; the {others} for {whom}"
        return text


class _Seen(msgspec.Struct, frozen=True):
    now: RankNow
    at: float


class Stalls:
    """Of one incarnation."""

    def __init__(self, world_size: int, *, after_s: float = STALLED_AFTER_S) -> None:
        self._world_size = world_size
        self._after_s = after_s
        self._seen: dict[int, _Seen] = {}
        self._current: Stall | None = None
        self._tell_again_s = 0.0

    def heard(self, ranks: tuple[RankNow, ...], now: float) -> Stall | None:
        """What is to be told, if anything."""
        for rank in ranks:
            self._seen[rank.rank] = _Seen(rank, now)
        found = self._find(now)
        before = self._current
        if before is not None and (found is None or found.ranks != before.ranks):
            self._current = None
            if found is None:
                return msgspec.structs.replace(before, over=True, for_s=self._lasted(before, now))
        if found is None:
            return None
        if self._current is None:
            self._began_at = now - found.for_s
            self._tell_again_s = AGAIN * found.for_s
        elif found.for_s < self._tell_again_s and found.doing == self._current.doing:
            return None
        else:
            self._tell_again_s = AGAIN * found.for_s
        self._current = found
        return found

    _began_at: float = 0.0

    def _lasted(self, stall: Stall, now: float) -> float:
        return max(stall.for_s, now - self._began_at)

    def _find(self, now: float) -> Stall | None:
        seen = list(self._seen.values())
        if len(seen) < self._world_size or any(now - each.at > FRESH_S for each in seen):
            return None
        still_s = {each.now.rank: each.now.still_s + now - each.at for each in seen}
        least = min(each.now.num_collectives for each in seen)
        behind = [each.now for each in seen if each.now.num_collectives == least]
        ahead = [each.now for each in seen if each.now.num_collectives > least]
        if not ahead:
            stopped = [rank for rank in behind if rank.doing == "stopped"]
            waits = all(rank.doing == "data" for rank in behind)
            behind = stopped or (behind if waits else [])
        # One that has just been overtaken is on its way; all that are behind must have been still for long.
        behind = [rank for rank in behind if still_s[rank.rank] >= self._after_s]
        if not behind or (ahead and len(behind) + len(ahead) < self._world_size):
            return None
        first = max(behind, key=lambda rank: still_s[rank.rank])
        return Stall(
            ranks=tuple(sorted(rank.rank for rank in behind)),
            doing=_WORDS[first.doing],
            for_s=min(still_s[rank.rank] for rank in behind),
            iteration=first.iteration,
            num_waiting=self._world_size - len(behind),
        )


_WORDS = {
    "stopped": "has been stopped (by a signal)",
    "sleeps": "has stalled (it uses no processor)",
    "computes": "has been computing",
    "data": "has been waiting for data",
}


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"ranks {shown}"
