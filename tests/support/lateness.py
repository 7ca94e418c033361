"""A simulated world in which everything is later than it was before, for the deadline's sake.

Saves get slower (all at once or bit by bit), iterations too; learning curves cross, so that the best trial changes late; the
deadline moves while it runs. What was promised is judged from outside: which results had been reported, which checkpoints
were complete, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hpcsched.core.actions import FinishExperiment, KillTrial
from hpcsched.core.enums import Outcome
from hpcsched.core.events import (
    CheckpointFailed,
    CheckpointSaved,
    DeadlineChanged,
    Event,
    ExperimentBegan,
    NodeDown,
    ResultReported,
    TrialExited,
)
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from hpcsched.runtime.budget import OVERHEAD_S
from hpcsched.sim.crossing import CrossingWorkload
from hpcsched.sim.curves import Curve
from hpcsched.sim.faults import Faults, FaultSettings
from hpcsched.sim.scaling import Throughput
from hpcsched.sim.simulate import WorkloadSampler
from hpcsched.sim.world import World, WorldSettings, _Live, _What
from hpcsched.topology.machine import Machine

Slowness = Callable[[float], float]
"""Time -> by how much everything of that kind is slower than at the beginning."""


class _Slow:
    """A curve whose iterations take longer as time goes on."""

    step_s = None
    recorded = None

    def __init__(self, curve: Curve, world: LateWorld) -> None:
        self._curve = curve
        self._world = world
        self._took: dict[int, float] = {}
        self.length = curve.length

    def metric(self, iteration: int) -> float:
        return self._curve.metric(iteration)

    def duration_s(self, iteration: int) -> float:
        if iteration not in self._took:
            self._took[iteration] = self._curve.duration_s(iteration) * self._world.iterations(
                self._world.now
            )
        return self._took[iteration]

    def forget(self) -> None:
        self._took.clear()


class LateWorld(World):
    """`saves`, `iterations`: how slow they are at a time. `moves`: (when, the new deadline)."""

    def __init__(
        self, *args: Any, saves: Slowness, iterations: Slowness, moves: tuple[tuple[float, float], ...], **options: Any
    ) -> None:  # fmt: skip
        super().__init__(*args, **options)
        self.saves = saves
        self.iterations = iterations
        self._usual_save_s = self._settings.save_s
        self._share = self._settings.save_budget or 0.0
        self._took_s: dict[tuple[int, int], float] = {}
        self._last_save_s: dict[tuple[int, int], float] = {}
        for when, deadline_s in moves:
            self._push(when, _What.NODE_UP, f"deadline {deadline_s!r}")

    def _node_up(self, node: str) -> Event:
        word, _, number = node.partition(" ")
        if word == "deadline":
            return DeadlineChanged(self.now, float(number), "the allocation's end has changed")
        return super()._node_up(node)

    def save_s(self) -> float:
        """Seconds of a save that begins now."""
        return self._usual_save_s * self.saves(self.now)

    def _go_on(self, live: _Live) -> None:
        """As the runtime does: what the last save of this process took says whether the next one pays."""
        expected_s = self._last_save_s.get((live.trial_id, live.incarnation), OVERHEAD_S)
        due = expected_s <= self._share * (self.now - live.saved_at_s)
        self._settings = msgspec.structs.replace(
            self._settings, save_s=self.save_s(), save_budget=math.inf if due else -1.0
        )
        super()._go_on(live)

    def _saved(self, live: _Live, iteration: int) -> Event:
        event = super()._saved(live, iteration)
        if isinstance(event, CheckpointSaved):
            took_s = self._took_s.get((live.trial_id, live.incarnation), event.save_time_s)
            self._last_save_s[live.trial_id, live.incarnation] = took_s
            return msgspec.structs.replace(event, save_time_s=took_s)
        return event

    def _save(self, live: _Live, done_s: float) -> None:
        self._took_s[live.trial_id, live.incarnation] = self._settings.save_s
        super()._save(live, done_s)

    def _leave(self, live: _Live, outcome: Outcome) -> None:
        self._settings = msgspec.structs.replace(self._settings, save_s=self.save_s())
        super()._leave(live, outcome)

    def _started(self, live: _Live) -> Event | None:
        if isinstance(live.curve, _Slow):
            live.curve.forget()
        else:
            live.curve = self._curves[live.trial_id] = _Slow(live.curve, self)
            live.step_s = None
        return super()._started(live)


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """One experiment with a deadline, and how late things get."""

    seed: int
    settings: Settings
    machine: Machine
    deadline_s: float
    world: WorldSettings
    step_s: float
    saves: Slowness
    iterations: Slowness
    moves: tuple[tuple[float, float], ...] = ()
    faults: FaultSettings | None = None
    predictable: bool = True
    """Nothing gets late faster than measurements can tell: then the leader's last word must be saved, too."""


@dataclass
class Seen:
    """What an onlooker sees."""

    results: list[ResultReported] = field(default_factory=list)
    saved: list[CheckpointSaved] = field(default_factory=list)
    troubled: set[int] = field(default_factory=set)
    """Trials that something happened to besides lateness."""
    end_s: float = 0.0
    last_announced_s: float = 0.0
    deadline_s: float = 0.0
    best: Any = None
    longest_save_s: float = 0.0
    longest_iteration_s: float = 0.0


def run(given: Deadline) -> Seen:
    """To its end."""
    scheduler = Scheduler(given.settings)
    workload = CrossingWorkload(given.seed, step_s=given.step_s)
    faults = given.faults
    world = LateWorld(
        given.machine, workload, WorkloadSampler(workload, None), Throughput("linear"), given.world,
        saves=given.saves, iterations=given.iterations, moves=given.moves, max_iterations=given.settings.max_iterations,
        faults=Faults(faults, given.seed) if faults is not None and faults.any else None, atom_state=scheduler.atom_state,
    )  # fmt: skip
    seen = Seen(deadline_s=given.deadline_s)
    event: Event = ExperimentBegan(0.0, given.machine, given.deadline_s)
    while True:
        actions = scheduler.handle(event)
        _see(seen, event, scheduler)
        for action in actions:
            if (
                isinstance(action, KillTrial)
                and scheduler.deadline_s is not None
                and world.now < scheduler.deadline_s
            ):
                seen.troubled.add(action.trial_id)
            world.perform(action)
        if isinstance(world.finished, FinishExperiment):
            break
        event = world.next_event()
    seen.end_s = world.now
    seen.best = scheduler.best
    return seen


def _see(seen: Seen, event: Event, scheduler: Scheduler) -> None:
    match event:
        case ResultReported():
            seen.results.append(event)
            seen.longest_iteration_s = max(seen.longest_iteration_s, event.time_this_iter_s)
        case CheckpointSaved():
            seen.saved.append(event)
            seen.longest_save_s = max(seen.longest_save_s, event.save_time_s)
        case CheckpointFailed():
            seen.troubled.add(event.trial_id)
        case TrialExited(outcome=outcome) if outcome not in (Outcome.PREEMPTED, Outcome.COMPLETED):
            seen.troubled.add(event.trial_id)
        case NodeDown():
            seen.troubled.update(trial.trial_id for trial in scheduler.live())
        case DeadlineChanged(deadline_s=deadline_s) if deadline_s is not None:
            seen.deadline_s = deadline_s
            seen.last_announced_s = event.time
        case _:
            pass


def missed(given: Deadline, seen: Seen) -> str | None:
    """Why this run did not keep the promise; None when it did."""
    deadline_s = seen.deadline_s
    need_s = 1.1 * seen.longest_iteration_s + seen.longest_save_s + given.settings.timeouts.deadline_margin_s
    need_s += 2 * given.world.verdict_delay_s
    told_s = seen.last_announced_s
    in_time = [result for result in seen.results if result.time <= deadline_s and result.metric is not None]
    early = [
        result
        for result in in_time
        if result.time + need_s <= deadline_s and result.trial_id not in seen.troubled
    ]
    if told_s + need_s > deadline_s:  # the new end was nearer than one iteration and its save
        share = given.world.save_budget
        assert share is not None
        unsaved_s = OVERHEAD_S / share + 2 * need_s + given.world.start_up_s
        early = [result for result in early if unsaved_s <= result.time <= told_s]
    best = seen.best
    if best is None:
        return f"no complete checkpoint, though {len(early)} results came in time" if early else None
    its = [
        saved for saved in seen.saved
        if (saved.trial_id, saved.incarnation, saved.training_iteration)
        == (best.checkpoint.trial_id, best.checkpoint.incarnation, best.checkpoint.training_iteration)
    ]  # fmt: skip
    if not its or its[0].time > deadline_s:
        return f"the best checkpoint was complete at {its[0].time if its else None}, the deadline is {deadline_s}"
    if not given.predictable or not early or told_s + 2 * need_s > deadline_s:
        return None
    leader = max(early, key=lambda result: result.metric or 0.0)
    if best.metric >= (leader.metric or 0.0):
        return None
    covered = any(
        saved.trial_id == leader.trial_id and saved.training_iteration >= leader.training_iteration and saved.time <= deadline_s
        for saved in seen.saved
    )  # fmt: skip
    if covered:
        return None
    return (
        f"trial {leader.trial_id} led with {leader.metric} at iteration {leader.training_iteration} ({leader.time:.3f} s), and no "
        f"checkpoint of it holds that; the best has {best.metric}; deadline {deadline_s:.3f} s, needed {need_s:.3f} s"
    )
