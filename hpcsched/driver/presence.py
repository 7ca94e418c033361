"""Nodes as the driver hears them: is one lost, or only one of the supervisors there? Pure: no clock, no sockets.

Theory. A supervisor that is silent is one process: it may have died, or wait for something. A node that is gone silences *all* that
runs there, trials and spares alike, and each of them sends a heartbeat a second. So a node on which a supervisor was missed is lost
once nothing at all has been heard from it for `SILENT_AFTER_S`, which, when it really is gone, is at most one heartbeat after the
first of them was missed. Until then nothing new is started there.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcsched.driver.crew import SILENT_AFTER_S


class Presence:
    """One driver life's nodes."""

    def __init__(self) -> None:
        self._heard_at: dict[str, float] = {}
        """Of any supervisor or spare there."""
        self._missed_at: dict[str, float] = {}
        """Nodes of which it is not known whether they are lost."""

    def heard(self, node: str, now: float) -> None:
        """A message of a process of ours there."""
        self._heard_at[node] = now
        self._missed_at.pop(node, None)

    def missed(self, node: str, now: float) -> None:
        """A supervisor there has been silent for `SILENT_AFTER_S`."""
        self._missed_at.setdefault(node, now)

    def lost(self, now: float) -> list[str]:
        """Nodes that are lost, each told once."""
        found = [node for node in self._missed_at if now > self._known_at(node)]
        for node in found:
            del self._missed_at[node]
        return found

    def doubtful_until(self, nodes: Iterable[str]) -> float | None:
        """When it is known of all of `nodes` whether they are lost; None: of none is there a doubt."""
        return max((self._known_at(node) for node in nodes if node in self._missed_at), default=None)

    def forgive(self, gap_s: float) -> None:
        """The driver itself was stopped for so long: nobody's silence counts."""
        for times in (self._heard_at, self._missed_at):
            for node in times:
                times[node] += gap_s

    def _known_at(self, node: str) -> float:
        return self._heard_at.get(node, self._missed_at[node] - SILENT_AFTER_S) + SILENT_AFTER_S
