"""Signals become inputs of the loop, and until there is a loop they end the start in order.

Ctrl-C once and the warnings USR1, USR2: save everything. Ctrl-C twice, SIGTERM: end now. (contract.md, "Signals") While a driver
starts (it reads the past, sets nodes up, probes) there is nothing to save: any of them ends it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class StartInterrupted(BaseException):
    """A signal came while the driver was starting. Not an Exception: nothing that mends failures may swallow it."""


class Signals:
    """While entered, the signals above raise StartInterrupted (the first one; later ones do nothing), or after `begin_queueing`
    call `put(name)`."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._before: dict[signal.Signals, object] = {}
        self._queueing = self._interrupted = False

    def __enter__(self) -> Signals:
        for number in CAUGHT:
            self._before[number] = signal.signal(number, self._caught)
        return self

    def begin_queueing(self) -> None:
        """From here on somebody handles what is put."""
        self._queueing = True

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._queueing:
            self._put(name)
        elif not self._interrupted:
            self._interrupted = True
            raise StartInterrupted(name)

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # what signal() itself returned
