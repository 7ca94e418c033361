"""Signals become inputs of the loop.

Ctrl-C once and the warnings USR1, USR2: save everything. Ctrl-C twice, SIGTERM: end now. (contract.md, "Signals")
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class Signals:
    """While entered, the signals above call `put(name)` instead of ending the process."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in CAUGHT:
            self._before[number] = signal.signal(number, self._caught)
        return self

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        self._put(signal.Signals(number).name)

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # what signal() itself returned
