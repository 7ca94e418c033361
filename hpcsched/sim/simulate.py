"""One simulated run: the core of the real driver over a simulated world, until it says that it is finished."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from hpcsched.core.actions import Action, FinishExperiment, SuspendExperiment
from hpcsched.core.enums import ExperimentState, Mode, TrialState
from hpcsched.core.events import Config, Event, ExperimentBegan, ResultReported, TrialExited
from hpcsched.core.ids import TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from hpcsched.sim.curves import Workload
from hpcsched.sim.faults import Faults, FaultSettings
from hpcsched.sim.machine import simulated_machine
from hpcsched.sim.scaling import Scaling, Throughput
from hpcsched.sim.world import Sampler, World, WorldSettings
from hpcsched.topology.machine import Machine

Observer: TypeAlias = Callable[[Event, Sequence[Action]], None]
"""Sees each event with the actions it led to (the log)."""


class AtomSeconds(msgspec.Struct, frozen=True):
    """What the atoms were used for, as the simulated world saw it."""

    training: float
    restart: float
    """Start-up, checkpoints on leaving, late exits."""
    idle: float
    """Held by nobody, from the beginning to the finish."""


class SimulatedRun(msgspec.Struct, frozen=True):
    """The outcome of one run."""

    best_metric: float | None
    """The windowed score in the user's sign: of the best result by the deadline where nobody saves
    (`save_at_deadline` off, as in the paper's simulations), else of the best complete checkpoint."""
    best_iteration: int | None
    best_trial_id: int | None
    trials_started: int
    finished_s: float
    atom_seconds: AtomSeconds
    num_results: int
    num_events: int
    num_resizes: int
    state: ExperimentState
    beyond_record: bool
    """The best result lies beyond what its curve recorded: it is a held value, no measurement."""


class Learner(Protocol):
    """A sampler that learns from results."""

    def tell(
        self, trial_id: int, config: Config, training_iteration: int, score: float | None, state: TrialState
    ) -> None: ...


class WorkloadSampler:
    """The workload's own distribution as a sampler."""

    def __init__(self, workload: Workload, num_trials: int | None) -> None:
        self._workload = workload
        self._num_trials = num_trials

    def ask(self, trial_id: int) -> Config | None:
        if self._num_trials is not None and trial_id >= self._num_trials:
            return None
        return self._workload.config(trial_id)


def simulate(
    settings: Settings,
    workload: Workload,
    *,
    num_atoms: int | None = None,
    machine: Machine | None = None,
    deadline_s: float | None,
    scaling: Scaling = "linear",
    world: WorldSettings | None = None,
    faults: FaultSettings | None = None,
    fault_seed: int = 0,
    sampler: Sampler | None = None,
    learner: Learner | None = None,
    observer: Observer | None = None,
    scheduler: Scheduler | None = None,
) -> SimulatedRun:
    """Run to the finish. `scaling` is the truth; what the scheduler assumes is in `settings`.

    `learner` (a sampler that learns) is told each trial's score after every result of it.
    `scheduler` may be given to look at it afterwards. Raises `SimulationStuckError` when the core waits for ever.
    """
    if machine is None:
        if num_atoms is None:
            raise ValueError("give num_atoms or a machine")
        machine = simulated_machine(num_atoms)
    core = Scheduler(settings) if scheduler is None else scheduler
    backend = World(
        machine,
        workload,
        WorkloadSampler(workload, settings.num_trials) if sampler is None else sampler,
        Throughput(scaling),
        world or WorldSettings(),
        max_iterations=settings.max_iterations,
        faults=Faults(faults, fault_seed) if faults is not None and faults.any else None,
        atom_state=core.atom_state,
    )
    best = _Best(settings, backend)
    handle = core.handle
    next_event = backend.next_event
    perform = backend.perform
    see_best = None if settings.save_at_deadline else best.see
    num_events = 0
    event: Event = ExperimentBegan(0.0, machine, deadline_s)
    while True:
        actions = handle(event)
        num_events += 1
        if see_best is not None and type(event) is ResultReported:
            see_best(event)
        if learner is not None and isinstance(event, (ResultReported, TrialExited)):
            trial = core.trials[event.trial_id]
            config = backend.configs[event.trial_id]
            learner.tell(event.trial_id, config, trial.training_iteration, trial.score, trial.state)
        if observer is not None:
            observer(event, actions)
        for action in actions:
            perform(action)
        if backend.finished is not None:
            break
        event = next_event()
    if settings.save_at_deadline:
        final = core.best
        if final is not None:
            best.metric, best.iteration, best.trial_id = (
                final.metric,
                final.training_iteration,
                final.trial_id,
            )
    idle_s = len(machine.atoms) * backend.now - backend.training_atom_s - backend.restart_atom_s
    return SimulatedRun(
        best_metric=best.metric,
        best_iteration=best.iteration,
        best_trial_id=best.trial_id,
        trials_started=backend.trials_started,
        finished_s=backend.now,
        atom_seconds=AtomSeconds(backend.training_atom_s, backend.restart_atom_s, max(0.0, idle_s)),
        num_results=backend.num_results,
        num_events=num_events,
        num_resizes=backend.num_resizes,
        state=_state(backend.finished),
        beyond_record=best.is_beyond_record(),
    )


class _Best:
    """The best windowed score among all results: what counts where nobody saves a checkpoint."""

    def __init__(self, settings: Settings, backend: World) -> None:
        self._sign = 1.0 if settings.mode is Mode.MAX else -1.0
        self._window = settings.metric_window
        self._recent: dict[TrialId, deque[float]] = {}
        self._backend = backend
        self._score = -math.inf
        self.metric: float | None = None
        self.iteration: int | None = None
        self.trial_id: int | None = None

    def see(self, event: ResultReported) -> None:
        metric = event.metric
        if metric is None:
            return
        if self._window > 1:
            recent = self._recent.get(event.trial_id)
            if recent is None:
                recent = self._recent[event.trial_id] = deque(maxlen=self._window)
            recent.append(metric)
            metric = math.fsum(recent) / len(recent)
        score = self._sign * metric
        if score > self._score:
            self._score = score
            self.metric = metric
            self.iteration = event.training_iteration
            self.trial_id = event.trial_id

    def is_beyond_record(self) -> bool:
        if self.trial_id is None or self.iteration is None:
            return False
        recorded = self._backend.curve(TrialId(self.trial_id)).recorded
        return recorded is not None and self.iteration > recorded


def _state(last: FinishExperiment | SuspendExperiment | None) -> ExperimentState:
    if isinstance(last, FinishExperiment):
        return last.state
    return ExperimentState.SUSPENDED
