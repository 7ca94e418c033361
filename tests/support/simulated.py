"""Simulated runs for tests: settings as the paper has them, and a watcher that checks the core at every event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hpcsched.core.actions import Action, PreemptTrial, StartTrial
from hpcsched.core.enums import AtomState, PreemptReason, TrialState
from hpcsched.core.events import Event
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import PolicySettings, Settings
from hpcsched.sim.request import NO_TIMEOUTS
from hpcsched.sim.simulate import SimulatedRun, simulate
from hpcsched.topology.machine import AtomId, Machine


def paper_settings(policy: PolicySettings, **changed: Any) -> Settings:
    """r = 5, R = 500, eta = 4; free sizes, all trials at the start, nobody saves."""
    values: dict[str, Any] = {
        "policy": policy,
        "grace_period": 5,
        "max_iterations": 500,
        "reduction_factor": 4,
        "multiple_of": 1,
        "request_ahead": False,
        "timeouts": NO_TIMEOUTS,
        "save_at_deadline": False,
    }
    return Settings(**(values | changed))


class Log:
    """Remembers every event with its actions, as bytes too."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Event, tuple[Action, ...]]] = []

    def __call__(self, event: Event, actions: Sequence[Action]) -> None:
        self.pairs.append((event, tuple(actions)))

    def encoded(self) -> bytes:
        return msgspec.json.encode(self.pairs)

    def starts(self) -> list[StartTrial]:
        return [action for _, actions in self.pairs for action in actions if isinstance(action, StartTrial)]

    def preemptions(self, reason: PreemptReason) -> list[tuple[Event, PreemptTrial]]:
        return [
            (event, action)
            for event, actions in self.pairs
            for action in actions
            if isinstance(action, PreemptTrial) and action.reason is reason
        ]


class Watcher:
    """At every event: atoms are conserved, nobody shares one, sizes are allowed."""

    def __init__(self, scheduler: Scheduler, settings: Settings, machine: Machine) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._machine = machine
        self.num_checked = 0

    def __call__(self, event: Event, actions: Sequence[Action]) -> None:
        self.num_checked += 1
        for action in actions:
            if isinstance(action, StartTrial):
                size = len(action.placement.atoms)
                multiple = self._settings.multiple_of
                assert size == 1 or size % multiple == 0, f"{size} atoms are no allowed size ({action})"
                assert len(set(action.placement.atoms)) == size
        states = [self._scheduler.atom_state(AtomId(atom)) for atom in range(len(self._machine.atoms))]
        owned: dict[int, int] = {}
        for trial in self._scheduler.trials:
            for atom in (*trial.atoms, *trial.reserved):
                assert atom not in owned or owned[atom] == trial.trial_id, (
                    f"atom {atom} has two owners after {event}"
                )
                owned[atom] = trial.trial_id
                assert states[atom] in (AtomState.HELD, AtomState.RESERVED), (
                    f"atom {atom} is {states[atom]} after {event}"
                )
        used = {atom for atom, state in enumerate(states) if state in (AtomState.HELD, AtomState.RESERVED)}
        assert used == set(owned), f"atoms {used ^ set(owned)} are in use by nobody after {event}"

    def check_end(self, run: SimulatedRun) -> None:
        """Nobody is left in between."""
        for trial in self._scheduler.trials:
            assert trial.state not in (TrialState.STARTING, TrialState.RUNNING, TrialState.PREEMPTING), (
                trial.trial_id
            )


def run_watched(
    settings: Settings, workload: Any, machine: Machine, **given: Any
) -> tuple[SimulatedRun, Scheduler, Log]:
    """A run that is watched and logged."""
    scheduler = Scheduler(settings)
    log = Log()
    watcher = Watcher(scheduler, settings, machine)

    def observe(event: Event, actions: Sequence[Action]) -> None:
        log(event, actions)
        watcher(event, actions)

    run = simulate(settings, workload, machine=machine, scheduler=scheduler, observer=observe, **given)
    watcher.check_end(run)
    return run, scheduler, log
