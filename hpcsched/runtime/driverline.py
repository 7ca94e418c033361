"""Rank 0's conversation with the driver. `DriverLine` speaks over the channel; `NoDriver` is for a script alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from hpcsched.channel.client import Client
from hpcsched.launchspec import LaunchSpec
from hpcsched.wire import (
    LeaveOrder,
    Reply,
    Report,
    ToDriver,
)

log = logging.getLogger(__name__)

LAST_WORD_S = 5.0
"""How long rank 0 waits after its goodbye, and at its end, until the driver has everything."""


class Line(Protocol):
    """What a trial says and hears; only rank 0 has one that leads anywhere."""

    def say(self, message: ToDriver) -> None: ...

    def ask(self, report: Report, wait_s: float) -> None:
        """Send a report and wait at most so long for its reply."""

    def must_leave(self) -> str | None:
        """The reason when the driver (or its absence) asks this trial to leave. Never blocks."""

    def flush(self) -> None:
        """Wait a little until the driver has all that was said."""

    def close(self) -> None: ...


class NoDriver:
    """Prints each report; nobody ever asks to leave."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def say(self, message: ToDriver) -> None:
        pass

    def ask(self, report: Report, wait_s: float) -> None:  # noqa: ARG002  (nobody answers)
        metrics = "  ".join(
            f"{name} {report.problems.get(name) if value is None else f'{value:.6g}'}"
            for name, value in report.metrics.items()
        )
        self._show(f"iteration {report.training_iteration}  {metrics}  ({report.time_this_iter_s:.2f} s)")

    def must_leave(self) -> str | None:
        return None

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class DriverLine:
    def __init__(self, launch: LaunchSpec) -> None:
        self._driver_lost_s = launch.driver_lost_s
        self._reason: str | None = None
        self._answered = 0
        self._client = Client(
            launch.channel.endpoints,
            launch.channel.server_key_file,
            launch.channel.client_key_file,
            f"{launch.trial_id}.{launch.incarnation}.rank0",
        )

    def say(self, message: ToDriver) -> None:
        self._client.send(message)

    def ask(self, report: Report, wait_s: float) -> None:
        self._client.send(report)
        until = time.monotonic() + wait_s
        while self._answered < report.seq and self._reason is None and (left := until - time.monotonic()) > 0:
            self._hear(left)

    def must_leave(self) -> str | None:
        while self._hear(0.0):
            pass
        if self._reason is None and self._client.lost_for_s > self._driver_lost_s:
            self._reason = f"the driver has been silent for {self._client.lost_for_s:.0f} s"
            log.warning("hpcsched: %s: saving and leaving", self._reason)
        return self._reason

    def flush(self) -> None:
        self._client.flush(self._patience_s)

    def close(self) -> None:
        self._client.close(self._patience_s)

    @property
    def _patience_s(self) -> float:
        return LAST_WORD_S if self._client.connected else 0.5

    def _hear(self, timeout_s: float) -> bool:
        message = self._client.receive(timeout_s)
        if isinstance(message, Reply):
            self._answered = max(self._answered, message.seq)
            if message.leave is not None:
                self._reason = message.leave
        elif isinstance(message, LeaveOrder):
            self._reason = message.reason
        return message is not None
