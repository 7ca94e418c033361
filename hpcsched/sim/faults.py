"""What goes wrong, from a seed: the same faults for the same (seed, trial, incarnation), whatever the scheduler does.

Rates are per second of simulated time (exponentially distributed times to failure); the others are chances.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec


class FaultSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All off by default. `[simulation.faults]` of an experiment file."""

    crash_rate: float = 0.0
    """Crashes a second of a running incarnation."""
    out_of_memory: float = 0.0
    """Chance that a crash is an out-of-memory."""
    hang_rate: float = 0.0
    """Hangs a second of a running incarnation: no word any more until it is killed."""
    refuse: float = 0.0
    """Chance that a launch is refused for now."""
    refuse_s: float = 1.0
    """And may be tried again after so long."""
    launch_fail: float = 0.0
    """Chance that a launch fails."""
    never_start: float = 0.0
    """Chance that a launch hangs before the first word."""
    late_exit: float = 0.0
    """Chance that an incarnation which was told to leave, or is killed, takes `late_exit_s` longer."""
    late_exit_s: float = 30.0
    node_rate: float = 0.0
    """Failures a second of a node."""
    node_back_s: float | None = None
    """A lost node is back after so long; None: never."""
    unproven: float = 0.0
    """Chance that the end of a killed incarnation is not proven: its atoms are quarantined ..."""
    unproven_s: float = 10.0
    """... for so long."""
    bad_metric: float = 0.0
    """Chance that a result has no finite metric."""
    repeat_report: float = 0.0
    """Chance that a report arrives twice."""
    lost_report: float = 0.0
    """Chance that a report never arrives (the next one does)."""
    save_fail: float = 0.0
    """Chance that a save fails."""

    def problem(self) -> str | None:
        """The name of the first value out of its range, with what is allowed; None: all are fine."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if value < 0:
                return f"{name} = {value}: must not be negative"
            if not name.endswith(("_s", "_rate")) and value > 1:
                return f"{name} = {value}: is a chance, between 0 and 1"
        return None

    @property
    def any(self) -> bool:
        return self != FaultSettings(
            refuse_s=self.refuse_s,
            late_exit_s=self.late_exit_s,
            node_back_s=self.node_back_s,
            unproven_s=self.unproven_s,
        )


class IncarnationFaults:
    """What will befall one incarnation."""

    __slots__ = (
        "_rng",
        "_settings",
        "crash_after_s",
        "fails",
        "hang_after_s",
        "late_s",
        "never_starts",
        "out_of_memory",
        "refused",
        "unproven",
    )

    def __init__(self, settings: FaultSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        chance = rng.random
        self.refused = chance() < settings.refuse
        self.fails = chance() < settings.launch_fail
        self.never_starts = chance() < settings.never_start
        self.crash_after_s = _after(rng, settings.crash_rate)
        self.out_of_memory = chance() < settings.out_of_memory
        self.hang_after_s = _after(rng, settings.hang_rate)
        self.late_s = settings.late_exit_s if chance() < settings.late_exit else 0.0
        self.unproven = chance() < settings.unproven

    def bad_metric(self) -> bool:
        return self._rng.random() < self._settings.bad_metric

    def repeats(self) -> bool:
        return self._rng.random() < self._settings.repeat_report

    def is_lost(self) -> bool:
        return self._rng.random() < self._settings.lost_report

    def save_fails(self) -> bool:
        return self._rng.random() < self._settings.save_fail


class Faults:
    """All faults of one run."""

    def __init__(self, settings: FaultSettings, seed: int) -> None:
        self.settings = settings
        self._seed = seed

    def of(self, trial_id: int, incarnation: int) -> IncarnationFaults:
        # A string seed goes through SHA-512: independent of PYTHONHASHSEED, and streams do not overlap.
        return IncarnationFaults(self.settings, random.Random(f"trial {self._seed} {trial_id} {incarnation}"))

    def node_losses(self, node: str) -> Iterator[float]:
        """Seconds from one (re)appearance of a node to its next loss; empty when nodes do not fail."""
        rng = random.Random(f"node {self._seed} {node}")
        while self.settings.node_rate > 0:
            yield rng.expovariate(self.settings.node_rate)


def _after(rng: random.Random, rate: float) -> float | None:
    return rng.expovariate(rate) if rate > 0 else None
