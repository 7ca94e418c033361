"""What a simulated trial is made of: a configuration, and a learning curve over its iterations.

A `Workload` is bound to one seed. Both its methods are pure functions of their arguments and that seed: a trial's
value at an iteration does not depend on what was asked before, so that policies are compared on the same trials.
"""

from __future__ import annotations

from typing import Protocol

from hpcsched.core.events import Config


class Curve(Protocol):
    """The course of one trial. Iterations count from 1."""

    step_s: float | None
    """Seconds of every iteration on one atom; None: ask `duration_s`."""
    length: int | None
    """The trial is done after so many iterations; None: never by itself."""
    recorded: int | None
    """Iterations that are known; beyond them the last value is held. None: all are."""

    def metric(self, iteration: int) -> float:
        """In the user's sign; may be NaN or infinite where a record says so."""
        ...

    def duration_s(self, iteration: int) -> float:
        """Seconds that this iteration takes on one atom."""
        ...


class Workload(Protocol):
    """Configurations and curves of one seed."""

    def config(self, trial_id: int) -> Config | None:
        """The configuration that this workload itself would draw for its trial of this number; None: no more."""
        ...

    def curve(self, trial_id: int, config: Config) -> Curve: ...
