"""Who held which GPU from when to when, folded from the steps.

A holding begins with the StartTrial action and ends when the core gives the atom free: with the exit (or refusal) of the incarnation,
or, where its end was not proven then (quarantine), when the atom comes back. So as long as something of an incarnation
may still run on a GPU, its holding lasts, and two holdings of a GPU never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hpcsched.core.actions import StartTrial
from hpcsched.core.enums import AtomState, TimerKind
from hpcsched.core.events import (
    ExperimentBegan,
    ExperimentResumed,
    LaunchRefused,
    TimerFired,
    TrialExited,
)
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.eventlog.records import Step
from hpcsched.topology.machine import AtomId, Machine


class Holding(msgspec.Struct, frozen=True):
    """One atom in the hands of one incarnation."""

    trial_id: TrialId
    incarnation: Incarnation
    atom: AtomId
    node: str
    gpus: tuple[str, ...]
    from_s: float
    to_s: float | None
    """None: still."""


class Holdings:
    """The open holdings; `take` hands out those that a step has ended. Proportional to the atoms, not to the log."""

    def __init__(self) -> None:
        self._machine: Machine | None = None
        self._open: dict[TrialId, list[Holding]] = {}
        """Of each trial's newest incarnation, while it lives."""
        self._lingering: list[Holding] = []
        """Of incarnations that are over for the core, on atoms that may still be in quarantine."""

    @property
    def machine(self) -> Machine | None:
        """As of the newest life; None before the experiment began."""
        return self._machine

    def take(self, step: Step, scheduler: Scheduler) -> list[Holding]:
        """The holdings that end with this step. `scheduler` has handled its event already."""
        event = step.event
        ended: list[Holding] = []
        match event:
            case ExperimentBegan(machine=machine):
                self._machine = machine
            case ExperimentResumed(machine=machine):
                ended = self.end_all(event.time)
                self._machine = machine
            case (
                TrialExited(trial_id=trial_id, incarnation=incarnation)
                | LaunchRefused(trial_id=trial_id, incarnation=incarnation)
            ):
                self._let_go(trial_id, incarnation)
            case TimerFired(timer=TimerKind.KILL_WAIT, trial_id=int() as trial_id, incarnation=incarnation):
                self._let_go(TrialId(trial_id), incarnation)
            case _:
                pass
        begun = [action for action in step.actions if isinstance(action, StartTrial)]
        for action in begun:
            self._let_go(action.trial_id, None)
        if self._lingering:
            ended += self._end_what_is_free(event.time, scheduler)
        for action in begun:
            self._begin(action, event.time)
        return ended

    def end_all(self, at: float) -> list[Holding]:
        """Everything is over at `at`: a life has ended in order, or a new one has ended what was left."""
        ended = [msgspec.structs.replace(holding, to_s=at) for holding in self.still_open()]
        self._open.clear()
        self._lingering.clear()
        return ended

    def still_open(self) -> Iterator[Holding]:
        for holdings in self._open.values():
            yield from holdings
        yield from self._lingering

    def _begin(self, action: StartTrial, at: float) -> None:
        machine = self._machine
        assert machine is not None, "the core starts nothing before ExperimentBegan"
        self._open[action.trial_id] = [
            Holding(
                trial_id=action.trial_id,
                incarnation=action.incarnation,
                atom=atom,
                node=machine.atoms[atom].node,
                gpus=machine.atoms[atom].gpus,
                from_s=at,
                to_s=None,
            )
            for atom in action.placement.atoms
        ]

    def _let_go(self, trial_id: TrialId, incarnation: Incarnation | None) -> None:
        """The incarnation (None: whichever there is) is over; its atoms are free or in quarantine."""
        holdings = self._open.get(trial_id)
        if holdings and incarnation in (None, holdings[0].incarnation):
            self._lingering += self._open.pop(trial_id)

    def _end_what_is_free(self, at: float, scheduler: Scheduler) -> list[Holding]:
        ended: list[Holding] = []
        staying: list[Holding] = []
        for holding in self._lingering:
            if scheduler.atom_state(holding.atom) is AtomState.QUARANTINED:
                staying.append(holding)
            else:
                ended.append(msgspec.structs.replace(holding, to_s=at))
        self._lingering = staying
        return ended
