"""Leases of MASTER_PORT: one a group, per node, from 20000-29999 outside the node's ephemeral range.

Two trials of one job, or of two jobs and users on one node, must not meet: the first port tried is a hash of job
and user, the next ones follow. A port that turned out to be in use is set aside for a while.
"""

from __future__ import annotations

import zlib

from hpcsched.errors import LaunchError

FIRST, LAST = 20000, 29999


class Ports:
    """Which ports the groups of this driver hold on each node."""

    def __init__(self, *, salt: str, ephemeral: tuple[int, int] = (32768, 60999)) -> None:
        low, high = ephemeral
        self._range = [port for port in range(FIRST, LAST + 1) if not low <= port <= high]
        if not self._range:
            raise LaunchError(f"every port of {FIRST}-{LAST} is in the ephemeral range {low}-{high}")
        self._next = zlib.crc32(salt.encode()) % len(self._range)
        self._held: dict[str, set[int]] = {}

    def lease(self, node: str) -> int:
        """The next free port on `node`. Ports come back in turn, so a port in use elsewhere is not met again soon."""
        held = self._held.setdefault(node, set())
        for _ in range(len(self._range)):
            port = self._range[self._next % len(self._range)]
            self._next += 1
            if port not in held:
                held.add(port)
                return port
        raise LaunchError(f"all {len(self._range)} ports of {node} are leased")

    def give_back(self, node: str, port: int) -> None:
        self._held.get(node, set()).discard(port)


def ephemeral_range(text: str) -> tuple[int, int]:
    """From `/proc/sys/net/ipv4/ip_local_port_range`."""
    low, high = text.split()
    return int(low), int(high)
