"""What a policy may see and what it may decide.

A policy reads values and returns decisions; it never mutates anything but itself. The engine (`Scheduler`) turns
decisions into actions and keeps the records. Nothing here but `live()` is proportional to the number of trials.

How to write one: keep the PENDING trials that `trial_added` and `trial_left` hand over, answer `next_start`, and
decide about a trial in `result_reported`. `policies/fifo.py` is the smallest example.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeAlias

import msgspec

from hpcsched.core.enums import TrialState
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.settings import Settings
from hpcsched.core.sizes import Sizes


class TrialView(Protocol):
    """One trial as policies see it: the engine's own record, read-only."""

    @property
    def trial_id(self) -> TrialId: ...
    @property
    def state(self) -> TrialState: ...
    @property
    def incarnation(self) -> Incarnation: ...
    @property
    def training_iteration(self) -> int:
        """Of the last result that counts (after a crash: of the checkpoint it goes on from); 0 before."""
        ...

    @property
    def score(self) -> float | None:
        """Windowed, higher is better (negated for mode min); None before the first, or when the last metric is None."""
        ...

    @property
    def problem(self) -> str | None:
        """Of the last result: "nan", "inf", "-inf" (it has diverged) or "missing"; None when it has a score."""
        ...

    @property
    def num_atoms(self) -> int:
        """Held or reserved now; 0 when it holds none."""
        ...

    @property
    def last_num_atoms(self) -> int:
        """Of its latest incarnation (of the one it was to become, when resized); 1 before."""
        ...

    @property
    def training_s(self) -> float:
        """Accumulated iteration times (Tune's time_total_s: without set-up)."""
        ...

    @property
    def last_iter_s(self) -> float | None: ...
    @property
    def setup_time_s(self) -> float | None:
        """Of its current or latest incarnation."""
        ...

    @property
    def warm(self) -> bool:
        """Whether that incarnation was started from a spare."""
        ...

    @property
    def started_at(self) -> float | None:
        """When its current or latest incarnation was launched."""
        ...


class View(Protocol):
    """The experiment as policies see it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def sizes(self) -> Sizes: ...
    @property
    def now(self) -> float: ...
    @property
    def deadline_s(self) -> float | None: ...
    @property
    def num_atoms(self) -> int:
        """Atoms that are not down or quarantined."""
        ...

    @property
    def num_free(self) -> int: ...
    @property
    def num_requested(self) -> int:
        """Configurations asked of the sampler and not answered yet."""
        ...

    @property
    def search_exhausted(self) -> bool:
        """No more configurations will come."""
        ...

    def trial(self, trial_id: TrialId) -> TrialView: ...
    def live(self) -> Collection[TrialView]:
        """Trials that hold atoms and are to go on (STARTING, RUNNING, being resized), in order of their start.
        Proportional to their number when iterated: not on the hot path."""
        ...

    def time_left_s(self) -> float | None: ...
    def restart_cost_s(self, size: int) -> float | None:
        """Measured, end to end, for a start at this size (p90, nearest measured size; of warm and cold ones as expected); None
        before the first."""
        ...

    def scaling(self, size: int) -> float:
        """s(size): assumed, from a profile, or measured; at the span that a trial of that size gets which is alone on this
        machine. (More atoms than are up: the best of any span.)"""
        ...

    def planned_scaling(self, size: int, num: int) -> float:
        """s(size), the mean of `num` trials of that size which share this machine, each where placement would put it.

        For plans: "n contenders on so many atoms each". Equal to `scaling(size)` where distance is not known. Looked up once it
        was asked for; a new question costs one placement a trial."""
        ...

    @property
    def knows_distance(self) -> bool:
        """Whether `speedup` differs from `scaling`: a profile is given, or speed is measured."""
        ...

    def speedup(self, trial: TrialView, size: int) -> float:
        """s(size, span): of the placement that the trial has, where `size` is its own, else of the one that it would get now
        (out of the free atoms and its own). `scaling(size)` where that does not fit, or distance is not known.

        About 30 us among 10,000 atoms where distance is known: ask for the sizes in question, not for all."""
        ...

    def speedups_after(
        self, giver: TrialView, keeps: int, taker: TrialView, size: int
    ) -> tuple[float, float]:
        """s of both where they would be when `giver` has shrunk to `keeps` atoms and `taker` then grows to `size` on what is free."""
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

    Order for a result: the engine updates the trial (iteration, score, times), handles R and the deadline, then
    calls `result_reported`. After every event it calls `next_start` until it returns None, asks `num_wanted`, and
    then calls `idle_moves` once.
    """

    def trial_added(self, view: View, trial: TrialView) -> None:
        """A new PENDING trial."""
        ...

    def trial_started(self, view: View, trial: TrialView) -> None:
        """An incarnation has been launched: it holds atoms from here on."""
        ...

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """At most one decision about the reporting trial, and any about others."""
        ...

    def trial_left(self, view: View, trial: TrialView) -> None:
        """It is not running any more: look at `trial.state` (PENDING: to be started again, after a crash, a resize
        that found no atoms, a new life of the driver; PAUSED, STOPPED, COMPLETED, FAILED)."""
        ...

    def num_wanted(self, view: View) -> int:
        """How many more configurations to ask of the sampler now (never asked while some are under way)."""
        ...

    def next_start(self, view: View) -> Start | Drop | None:
        """The next trial to start on the free atoms, best first, or one to drop; None: nobody (now). A trial that
        is handed out here counts as started; the engine hands it back by `trial_left` if it could not be."""
        ...

    def idle_moves(self, view: View) -> Sequence[Decision]:
        """Moves of running trials after the starts (a resize when atoms are left over, say). May be empty."""
        ...

    def finished(self, view: View) -> str | None:
        """Why nothing more can come of the experiment although time is left, or None. Asked when nobody runs."""
        ...
