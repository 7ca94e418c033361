"""An experiment in several driver lives over the simulated world, with a real journal in a real folder.

Theory. A life handles an event, appends it with the core's answer to the journal, and performs the answer: as the
driver's loop does, with the disk's delay left out. SIGKILL leaves the journal cut at any byte of the last record, whose
actions nobody has performed. The next life reads it by the driver's own `read_past`; every process of the old life is
gone, and trials go on from what their last complete checkpoint holds.

To compare the outcome with a life that never ended, the time that the crash costs has to be taken out of the clock:
`NextWorld(lossless=True)` lets a trial that is restarted pass through what it had already done in no time (its start-up
and the iterations since its checkpoint), and finish the iteration in which it was cut off in the time that was left.
What the core is told about durations stays the truth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import msgspec

from hpcsched.core.actions import CheckpointRef, FinishExperiment, StartTrial
from hpcsched.core.enums import ExperimentState
from hpcsched.core.events import (
    AtomsReturned,
    CheckpointSaved,
    Event,
    ExperimentBegan,
    ExperimentResumed,
    LaunchRefused,
    ResultReported,
    TrialExited,
    TrialStarted,
)
from hpcsched.core.ids import TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from hpcsched.driver.past import Past, read_past
from hpcsched.eventlog.journal import JournalWriter
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header, Step
from hpcsched.runfolder import RunFolder
from hpcsched.search.samplers import Sampler
from hpcsched.sim.curves import Curve
from hpcsched.sim.faults import Faults, FaultSettings
from hpcsched.sim.paper import PaperWorkload
from hpcsched.sim.scaling import Throughput
from hpcsched.sim.world import _RESULT, World, WorldSettings, _Live, _Stage, _What
from hpcsched.topology.machine import AtomId, Machine
from tests.support.journals import same


class _Source:
    """The workload's configurations as the driver's sampler sees a source."""

    def __init__(self, workload: PaperWorkload) -> None:
        self._workload = workload

    def configuration(self, index: int) -> dict[str, Any] | None:
        return self._workload.config(index)

    def tell(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class Position:
    """How far a trial's process really was when it was killed."""

    iteration: int
    work_left_s: float
    """Of the iteration after that, on one atom."""
    start_up_left_s: float


class _Ahead:
    """A curve whose first iterations have been done before."""

    recorded = None
    step_s = None

    def __init__(self, curve: Curve, position: Position) -> None:
        self._curve = curve
        self.position = position
        self.length = curve.length

    def metric(self, iteration: int) -> float:
        return self._curve.metric(iteration)

    def true_duration_s(self, iteration: int) -> float:
        step_s = self._curve.step_s
        return self._curve.duration_s(iteration) if step_s is None else step_s

    def duration_s(self, iteration: int) -> float:
        if iteration <= self.position.iteration:
            return 0.0
        if iteration == self.position.iteration + 1:
            return self.position.work_left_s
        return self.true_duration_s(iteration)


class NextWorld(World):
    """The world after a crash: nothing runs; `before` gave way to it."""

    def __init__(
        self, *args: Any, now: float, configs: list[dict[str, Any]], positions: dict[TrialId, Position], curve: Callable[[TrialId], Curve],
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **options)
        self.now = now
        self.configs = configs
        self._positions = positions
        self._usual_start_up_s = self._start_up_s
        for trial_id, position in positions.items():
            self._curves[trial_id] = _Ahead(curve(trial_id), position)

    def _start(self, action: StartTrial) -> None:
        position = self._positions.pop(action.trial_id, None)
        if position is not None:
            self._start_up_s = position.start_up_left_s
        super()._start(action)
        self._start_up_s = self._usual_start_up_s

    def _started(self, live: _Live) -> Event | None:
        event = super()._started(live)
        if isinstance(event, TrialStarted):
            return msgspec.structs.replace(event, setup_time_s=self._usual_start_up_s)
        return event

    def _result(self, live: _Live) -> Event | None:
        event = super()._result(live)
        if isinstance(event, ResultReported) and isinstance(live.curve, _Ahead):
            took_s = live.curve.true_duration_s(event.training_iteration) / live.speed
            return msgspec.structs.replace(event, time_this_iter_s=took_s)
        return event

    _DOES = World._DOES | {StartTrial: _start}


def positions_of(world: World) -> dict[TrialId, Position]:
    """Where the processes of a world stand now."""
    pending = {
        id(subject): (at, what)
        for at, _, what, subject, token in world._heap
        if isinstance(subject, _Live) and subject.token == token and what in (_RESULT, _What.STARTED)
    }
    found = {}
    for (trial_id, _), live in world._live.items():
        at, what = pending.get(id(live), (world.now, None))
        left_s = max(0.0, at - world.now)
        if live.stage is _Stage.STARTING:
            ahead = live.curve
            if isinstance(ahead, _Ahead):  # killed again while it passes through what it had done
                found[trial_id] = replace(ahead.position, start_up_left_s=left_s)
            else:
                found[trial_id] = Position(live.iteration, _work_s(live), left_s)
        elif what is _RESULT:
            position = Position(live.iteration, left_s * live.speed, 0.0)
            if isinstance(live.curve, _Ahead) and live.iteration < live.curve.position.iteration:
                position = live.curve.position
            found[trial_id] = position
        else:
            found[trial_id] = Position(live.iteration, _work_s(live), 0.0)
    return found


def _work_s(live: _Live) -> float:
    curve = live.curve
    if isinstance(curve, _Ahead):
        return curve.true_duration_s(live.iteration + 1)
    return curve.duration_s(live.iteration + 1) if curve.step_s is None else curve.step_s


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One experiment of the simulated world."""

    seed: int
    settings: Settings
    machine: Machine
    deadline_s: float | None
    num_trials: int
    world: WorldSettings
    faults: FaultSettings | None = None
    step_s: float = 1.0
    deadline_changes: tuple[tuple[float, float], ...] = ()
    """(when, new deadline): an allocation that is shortened or extended."""

    def sampler(self) -> Sampler:
        return Sampler(_Source(self.workload()), num_trials=self.num_trials)

    def workload(self) -> PaperWorkload:
        return PaperWorkload(self.seed, step_s=self.step_s)


@dataclass
class Lives:
    """The outcome of all lives of one experiment."""

    folder: RunFolder
    num_lives: int = 0
    state: ExperimentState = ExperimentState.RUNNING
    best: tuple[int, int] | None = None
    """Trial and iteration of the best complete checkpoint."""
    acknowledged: list[Step] = field(default_factory=list)
    """Steps whose answer has been performed: others have seen them."""


def live(
    scenario: Scenario, folder: RunFolder, kills: list[int], rng: Random, *, lossless: bool = True
) -> Lives:
    """Run to the finish; the driver is killed at each event whose number is in `kills`."""
    lives = Lives(folder)
    folder.journal.mkdir(parents=True, exist_ok=True)
    past: Past | None = None
    world: World | None = None
    positions: dict[TrialId, Position] = {}
    for life in itertools.count(1):
        sampler = scenario.sampler()
        if life > 1:
            past = read_past(folder, sampler)
            check_acknowledged(lives, folder)
        scheduler = Scheduler(scenario.settings) if past is None else past.scheduler
        header = Header(
            life=life,
            experiment="",
            name="simulated",
            metric="score",
            settings=scenario.settings,
            began_at=0.0,
            deadline_s=scenario.deadline_s,
            earlier=() if past is None else past.ends,
        )
        writer = JournalWriter(folder, header, sync=lambda _: None, group_s=0.0)
        now = 0.0 if past is None else past.last_time_s
        world = _world(scenario, scheduler, sampler, now, positions if lossless else {}, life)
        later = [life_kill for life_kill in kills if life_kill > (0 if past is None else past.last_n)]
        kill_at = min(later, default=None)
        kills = [each for each in later if each != kill_at]
        deadline_s = scenario.deadline_s
        for when, new in scenario.deadline_changes:
            if when <= now:
                deadline_s = new
        first: Event
        if past is None:
            first = ExperimentBegan(now, scenario.machine, deadline_s)
        else:
            first = ExperimentResumed(now, scenario.machine, deadline_s)
        lives.num_lives = life
        ended = _one_life(
            lives, scheduler, writer, world, first, 0 if past is None else past.last_n, kill_at, rng
        )
        if ended is None:
            lives.state = scheduler.state
            if scheduler.best is not None:
                lives.best = (scheduler.best.trial_id, scheduler.best.training_iteration)
            return lives
        positions = ended
    raise AssertionError("unreachable")


def _world(
    scenario: Scenario, scheduler: Scheduler, sampler: Sampler, now: float, positions: dict[TrialId, Position], life: int
) -> World:  # fmt: skip
    workload = scenario.workload()
    faults = scenario.faults
    args = (scenario.machine, workload, sampler, Throughput("linear"), scenario.world)
    options: dict[str, Any] = {
        "max_iterations": scenario.settings.max_iterations,
        "faults": Faults(faults, scenario.seed) if faults is not None and faults.any else None,
        "atom_state": scheduler.atom_state,
    }
    if life == 1:
        return World(*args, **options)
    configs = [trial.config for trial in scheduler.trials]
    return NextWorld(
        *args,
        now=now,
        configs=configs,
        positions=positions,
        curve=lambda trial_id: workload.curve(trial_id, configs[trial_id]),
        **options,
    )


def _one_life(
    lives: Lives, scheduler: Scheduler, writer: JournalWriter, world: World, event: Event, n: int, kill_at: int | None, rng: Random
) -> dict[TrialId, Position] | None:  # fmt: skip
    """None when the experiment has come to its end, else where the processes stood when the driver was killed."""
    whole = rng.random() < 0.5
    where: dict[TrialId, Position] = {}
    while True:
        actions = scheduler.handle(event)
        n += 1
        step = Step(n=n, event=event, actions=tuple(actions))
        writer.append(step)
        if n == kill_at:
            assert writer.close(60.0)
            if whole:
                return positions_of(world)
            data = writer.file.read_bytes()
            last = data.rindex(b"\n", 0, len(data) - 1) + 1
            writer.file.write_bytes(data[: rng.randrange(last, len(data))])
            return where
        lives.acknowledged.append(step)
        for action in actions:
            world.perform(action)
        if isinstance(world.finished, FinishExperiment):
            assert writer.close(60.0)
            return None
        if n + 1 == kill_at and not whole:
            where = positions_of(world)  # of the event that will be torn off nothing has happened
        event = world.next_event()


# ---- what must hold


class LostError(AssertionError):
    """Something that others had seen is not in the journal."""


def check_acknowledged(lives: Lives, folder: RunFolder) -> None:
    """Raises LostError when a step that was answered is not in the journal."""
    found = {step.n: step for step in read_journal(folder) if isinstance(step, Step)}
    for step in lives.acknowledged:
        if not same(found.get(step.n), step):
            raise LostError(f"step {step.n} was acknowledged and is lost or changed")


def double_holdings(folder: RunFolder) -> list[str]:
    """From the log: every atom that was given out while somebody still held it."""
    held: dict[AtomId, tuple[int, int]] = {}
    unproven: dict[AtomId, tuple[int, int]] = {}
    wrong = []
    for record in read_journal(folder):
        if not isinstance(record, Step):
            continue
        event = record.event
        match event:
            case ExperimentResumed():
                held.clear()
                unproven.clear()
            case TrialExited() | LaunchRefused():
                who = (event.trial_id, event.incarnation)
                silent = event.unproven if isinstance(event, TrialExited) else ()
                for atom in [atom for atom, holder in held.items() if holder == who]:
                    del held[atom]
                    if atom in silent:
                        unproven[atom] = who
                for atom in [
                    atom for atom, holder in unproven.items() if holder == who and atom not in silent
                ]:
                    del unproven[atom]
            case AtomsReturned(atoms=atoms):
                for atom in atoms:
                    unproven.pop(atom, None)
                    held.pop(atom, None)
            case _:
                pass
        for action in record.actions:
            if isinstance(action, StartTrial):
                for atom in action.placement.atoms:
                    before = held.get(atom) or unproven.get(atom)
                    if before is not None:
                        wrong.append(
                            f"step {record.n}: atom {atom} to trial {action.trial_id}, {before} has it"
                        )
                    held[atom] = (action.trial_id, action.incarnation)
    return wrong


def restores_what_is_not_there(folder: RunFolder) -> list[str]:
    """From the log: every start from a checkpoint that was not complete, and each incarnation number used twice."""
    saved: set[CheckpointRef] = set()
    begun: set[tuple[int, int]] = set()
    wrong = []
    for record in read_journal(folder):
        if not isinstance(record, Step):
            continue
        event = record.event
        if isinstance(event, CheckpointSaved):
            saved.add(CheckpointRef(event.trial_id, event.incarnation, event.training_iteration))
        for action in record.actions:
            if isinstance(action, StartTrial):
                key = (action.trial_id, action.incarnation)
                if key in begun:
                    wrong.append(f"step {record.n}: incarnation {key} is used twice")
                begun.add(key)
                if action.checkpoint is not None and action.checkpoint not in saved:
                    wrong.append(
                        f"step {record.n}: trial {action.trial_id} restores {action.checkpoint}, which is not complete"
                    )
    return wrong
