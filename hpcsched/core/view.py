"""What a policy may see: values and read-only accessors; nothing here is proportional to the number of trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from hpcsched.core.enums import TrialState
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.settings import Settings
from hpcsched.core.sizes import Sizes


class TrialView(Protocol):
    """One trial as policies see it. The engine's own record; policies must not write to it."""

    trial_id: TrialId
    state: TrialState
    incarnation: Incarnation
    training_iteration: int
    """Of the last result that counts (after a crash: of the checkpoint it goes on from); 0 before."""
    score: float | None
    """Windowed, higher is better (negated for mode min); None before the first, or when the last metric is None."""
    num_atoms: int
    """Held or reserved now; 0 when it holds none."""
    last_num_atoms: int
    """Of its latest incarnation; 1 before."""
    training_s: float
    """Accumulated iteration times (Tune's time_total_s: without set-up)."""
    last_iter_s: float | None
    started_at: float | None
    """When its current incarnation was started."""


class View(Protocol):
    """The experiment as policies see it."""

    settings: Settings
    sizes: Sizes
    now: float
    deadline_s: float | None
    num_atoms: int
    """Atoms that are not down or quarantined."""
    num_free: int
    search_exhausted: bool

    def trial(self, trial_id: TrialId) -> TrialView: ...
    def running(self) -> Sequence[TrialId]:
        """RUNNING trials in order of their current start. Proportional to their number: not on the hot path."""
        ...

    def time_left_s(self) -> float | None: ...
    def setup_times_s(self) -> Sequence[float]:
        """Distinct observed set-up times (TrialStarted), in order of observation."""
        ...

    def restart_cost_s(self, size: int) -> float | None:
        """Measured, end to end, for a start at this size (p90, nearest measured size); None before the first."""
        ...

    def scaling(self, size: int) -> float:
        """s(size): assumed, from a profile, or measured."""
        ...


class Pause(msgspec.Struct, frozen=True):
    trial_id: TrialId
    because: str


class Stop(msgspec.Struct, frozen=True):
    """For good."""

    trial_id: TrialId
    because: str


class Resize(msgspec.Struct, frozen=True):
    """To `size` atoms (an allowed size); the engine reserves the atoms now, or does nothing when there are too few."""

    trial_id: TrialId
    size: int
    because: str


class Start(msgspec.Struct, frozen=True):
    """Start a PENDING trial, or promote a PAUSED one, on `size` free atoms."""

    trial_id: TrialId
    size: int
    because: str


class Drop(msgspec.Struct, frozen=True):
    """A PENDING or PAUSED trial becomes STOPPED: it will not run again."""

    trial_id: TrialId
    because: str


Decision: TypeAlias = Pause | Stop | Resize | Drop


class Policy(Protocol):
    """Decides; never mutates. Called by the engine, which turns decisions into actions.

    Order for a result: the engine updates the trial (iteration, score, times), handles R and the deadline,
    then calls `result_reported`; after every event that may have freed atoms or added trials it calls
    `next_start` until it returns None, and then `idle_moves` once.
    """

    def trial_added(self, view: View, trial: TrialView) -> None: ...

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """At most one decision about the reporting trial, and any about others."""
        ...

    def trial_left(self, view: View, trial: TrialView) -> None:
        """It is not running any more: look at `trial.state` (PENDING after a crash or resize, PAUSED, STOPPED,
        COMPLETED, FAILED)."""
        ...

    def trial_started(self, view: View, trial: TrialView) -> None: ...

    def num_wanted(self, view: View) -> int:
        """How many more configurations to ask of the sampler now (never when one is already asked for)."""
        ...

    def next_start(self, view: View) -> Start | None:
        """The next trial to start on the free atoms, best first; None: nobody (now)."""
        ...

    def idle_moves(self, view: View) -> Sequence[Decision]:
        """Moves of running trials after the starts (a resize when atoms are left over, say). May be empty."""
        ...

    def finished(self, view: View) -> str | None:
        """Why nothing more can come of the experiment although time is left (a reason), or None."""
        ...
