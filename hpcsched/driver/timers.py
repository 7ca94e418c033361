"""The core's timers: one a (kind, trial); setting it again moves it."""

from __future__ import annotations

import heapq

from hpcsched.core.actions import SetTimer
from hpcsched.core.enums import TimerKind
from hpcsched.core.events import TimerFired
from hpcsched.core.ids import TrialId


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SetTimer]] = []
        self._current: dict[tuple[TimerKind, TrialId | None], int] = {}
        self._num = 0

    def set(self, action: SetTimer) -> None:
        """`at` None drops the timer."""
        self._num += 1
        key = (action.timer, action.trial_id)
        if action.at is None:
            self._current.pop(key, None)
            return
        self._current[key] = self._num
        heapq.heappush(self._heap, (action.at, self._num, action))

    @property
    def next_at(self) -> float | None:
        while self._heap:
            at, number, action = self._heap[0]
            if self._current.get((action.timer, action.trial_id)) == number:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> list[TimerFired]:
        """Those that are due, in order; each only once. The event's time is now, not when it was due."""
        fired = []
        while (at := self.next_at) is not None and at <= now:
            _, _, action = heapq.heappop(self._heap)
            del self._current[(action.timer, action.trial_id)]
            fired.append(
                TimerFired(
                    time=now, timer=action.timer, trial_id=action.trial_id, incarnation=action.incarnation
                )
            )
        return fired
