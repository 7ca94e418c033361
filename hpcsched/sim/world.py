"""The simulated world: a heap and a clock. It performs the core's actions and says what happened.

Theory. The world holds what the driver's launcher, supervisors and trials hold in reality: the incarnations that live,
each with where it is in its learning curve, and one pending happening a live incarnation in a heap ordered by (time,
order of scheduling). A pending happening is dropped by giving the incarnation a new token, never by searching the heap.
What follows at once (the answer of the sampler, a start without delay, the exit of a trial that leaves where it stands)
goes through a queue that is emptied before the clock moves on.

The life of an incarnation::

    StartTrial --start-up--> TrialStarted --iteration--> ResultReported --iteration--> ResultReported ...
        PreemptTrial: it leaves at its next boundary (where it stands when it is just reporting):
                      [CheckpointSaved] TrialExited(PREEMPTED)
        iteration R, or the end of its record: [CheckpointSaved] TrialExited(COMPLETED)
        KillTrial: TrialExited(KILLED)

Two numbers are the real channel's: a report waits `verdict_delay_s` for the verdict, and a trial that is asked to leave in
the middle of an iteration does so at the iteration's end, or within `boundary_s` (its part of the iteration is then lost). In
parity with the 2020 program the first is 0; there only a reporting trial is ever asked to leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, ClassVar, Protocol

import msgspec

from hpcsched.core.actions import (
    Action,
    FinishExperiment,
    KillTrial,
    PreemptTrial,
    RequestTrial,
    SetTimer,
    StartTrial,
    SuspendExperiment,
)
from hpcsched.core.enums import AtomState, Outcome, PreemptReason, TimerKind
from hpcsched.core.events import (
    AtomsReturned,
    CheckpointFailed,
    CheckpointSaved,
    Config,
    Event,
    LaunchRefused,
    NodeDown,
    NodeUp,
    ResultReported,
    SearchExhausted,
    TimerFired,
    TrialExited,
    TrialStarted,
    TrialSubmitted,
)
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.errors import HpcschedError
from hpcsched.sim.curves import Curve, Workload
from hpcsched.sim.faults import Faults, IncarnationFaults
from hpcsched.topology.machine import AtomId, Machine


class SimulationStuckError(HpcschedError):
    """Nothing can happen any more and the core has not finished: the core's mistake, never the user's."""


class WorldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What things cost. Seconds."""

    start_up_s: float = 0.001
    """Of every start, resume and resize."""
    save_s: float = 0.0
    """Of one checkpoint; training stands still meanwhile."""
    save_budget: float | None = None
    """Save after a report when that costs at most this share of the training since the last save; None: only on
    leaving and at the end of the training."""
    verdict_delay_s: float = 0.0
    boundary_s: float | None = None
    """None: a trial leaves at the end of an iteration only."""
    kill_s: float = 0.0
    """From KillTrial to the exit."""


class Sampler(Protocol):
    """Where configurations come from."""

    def ask(self, trial_id: int) -> Config | None: ...


class _Stage(IntEnum):
    STARTING = 0
    RUNNING = 1
    LEAVING = 2
    GONE = 3


class _What(IntEnum):
    """What a heap entry is."""

    RESULT = 0
    STARTED = 1
    EXIT = 2
    SAVED = 3
    LEAVE = 4
    TIMER = 5
    NODE_DOWN = 6
    NODE_UP = 7
    REFUSED = 8
    RETURNED = 9


class _Live:
    """One incarnation that lives."""

    __slots__ = (
        "atoms",
        "curve",
        "fault",
        "incarnation",
        "iteration",
        "leaves_as",
        "left_s",
        "preempted",
        "saved_at_s",
        "saved_iteration",
        "silent",
        "size",
        "speed",
        "stage",
        "started_s",
        "step_s",
        "token",
        "trained_until_s",
        "trial_id",
        "wanted_s",
        "why",
    )

    def __init__(
        self, action: StartTrial, curve: Curve, speed: float, now: float, fault: IncarnationFaults | None
    ) -> None:
        self.trial_id = action.trial_id
        self.incarnation = action.incarnation
        self.atoms = action.placement.atoms
        self.size = len(self.atoms)
        self.curve = curve
        self.speed = speed
        step_s = curve.step_s
        self.step_s = None if step_s is None else step_s / speed
        self.iteration = 0 if action.checkpoint is None else action.checkpoint.training_iteration
        self.saved_iteration = self.iteration
        self.stage = _Stage.STARTING
        self.preempted = False
        self.wanted_s = now
        self.started_s: float | None = None
        self.left_s: float | None = None
        self.silent = False
        self.saved_at_s = now
        self.trained_until_s = now
        self.token = 0
        self.fault = fault
        self.leaves_as = Outcome.PREEMPTED
        self.why = ""


_RESULT = _What.RESULT
_RUNNING = _Stage.RUNNING
_LAST = 1 << 60
"""Added to the order of timers: at equal times a result still counts before the deadline falls."""


class World:
    """Backend of the one loop: `next_event()`, `perform(action)`."""

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        sampler: Sampler,
        throughput: Callable[[int], float],
        settings: WorldSettings,
        *,
        max_iterations: int,
        faults: Faults | None = None,
        atom_state: Callable[[AtomId], AtomState] | None = None,
    ) -> None:
        """`atom_state` is the core's ledger; asked only where faults are on, to know which atoms it has quarantined."""
        self.now = 0.0
        self.finished: FinishExperiment | SuspendExperiment | None = None
        self.trials_started = 0
        self.num_results = 0
        self.num_resizes = 0
        self.training_atom_s = 0.0
        self.restart_atom_s = 0.0
        self.configs: list[Config] = []
        self._machine = machine
        self._workload = workload
        self._sampler = sampler
        self._throughput = throughput
        self._settings = settings
        self._simple = settings.verdict_delay_s == 0 and settings.save_budget is None and faults is None
        self._start_up_s = settings.start_up_s
        self._max_iterations = max_iterations
        self._faults = faults
        self._atom_state = atom_state
        self._heap: list[tuple[float, int, _What, object, int]] = []
        self._order = 0
        self._at_once: deque[Event] = deque()
        self._live: dict[tuple[TrialId, Incarnation], _Live] = {}
        self._occupied: set[AtomId] = set()
        """Atoms that processes really use, whatever the core believes."""
        self._curves: dict[TrialId, Curve] = {}
        self._reporting: _Live | None = None
        self._timers: dict[tuple[TimerKind, TrialId | None], int] = {}
        self._node_losses: dict[str, Iterator[float]] = {}
        if faults is not None and faults.settings.node_rate > 0:
            for node in machine.nodes:
                losses = self._node_losses[node.name] = faults.node_losses(node.name)
                self._push(next(losses), _What.NODE_DOWN, node.name)

    def curve(self, trial_id: TrialId) -> Curve:
        """Of a trial that was started."""
        return self._curves[trial_id]

    # ---- what has happened

    def next_event(self) -> Event:
        """The next event; the clock stands at its time afterwards."""
        live = self._reporting
        if live is not None:
            self._reporting = None
            if live.stage is _RUNNING:
                self._go_on(live)
        at_once = self._at_once
        heap = self._heap
        while True:
            if at_once:
                return at_once.popleft()
            if not heap:
                raise SimulationStuckError(
                    f"at {self.now:g} s nothing runs, no timer is set and the experiment is not finished: "
                    f"{len(self.configs)} configurations were given, {self.trials_started} trials started"
                )
            time, _, what, subject, token = heappop(heap)
            if what is _RESULT:
                assert isinstance(subject, _Live)
                if subject.token != token:
                    continue
                self.now = time
                event = self._result(subject)
            else:
                event = self._other(time, what, subject, token)
            if event is not None:
                return event

    def _result(self, live: _Live) -> Event | None:
        live.iteration = iteration = live.iteration + 1
        curve = live.curve
        metric = curve.metric(iteration)
        took_s = live.step_s
        if took_s is None:
            took_s = curve.duration_s(iteration) / live.speed
        live.trained_until_s = self.now
        self._reporting = live
        self.num_results += 1
        if live.fault is not None:
            return self._faulty_result(live, live.fault, metric, took_s)
        if metric - metric == 0.0:  # finite
            return ResultReported(self.now, live.trial_id, live.incarnation, iteration, metric, took_s)
        return ResultReported(
            self.now, live.trial_id, live.incarnation, iteration, None, took_s, _problem(metric)
        )

    def _faulty_result(
        self, live: _Live, fault: IncarnationFaults, metric: float, took_s: float
    ) -> Event | None:
        if fault.bad_metric():
            metric = float("nan")
        finite = metric - metric == 0.0
        event = ResultReported(
            self.now,
            live.trial_id,
            live.incarnation,
            live.iteration,
            metric if finite else None,
            took_s,
            None if finite else _problem(metric),
        )
        if fault.is_lost() and live.iteration < self._max_iterations:
            self._reporting = None
            if live.preempted:
                self._leave(live, Outcome.PREEMPTED)
            else:
                self._go_on(live)
            return None
        if fault.repeats():
            self._at_once.append(event)
        return event

    def _go_on(self, live: _Live) -> None:
        """After a report: the next iteration, or the end of the training."""
        iteration = live.iteration
        curve = live.curve
        if live.preempted:
            self._leave(live, Outcome.PREEMPTED)
            return
        if iteration >= self._max_iterations or (curve.length is not None and iteration >= curve.length):
            self._leave(live, Outcome.COMPLETED)
            return
        took_s = live.step_s
        if took_s is None:
            took_s = curve.duration_s(iteration + 1) / live.speed
        if self._simple:
            self._order = order = self._order + 1
            heappush(self._heap, (self.now + took_s, order, _RESULT, live, live.token))
            return
        begins_s = max(self.now, live.trained_until_s) + self._settings.verdict_delay_s
        budget = self._settings.save_budget
        if budget is not None and self._settings.save_s <= budget * (self.now - live.saved_at_s):
            begins_s += self._settings.save_s
            self._save(live, begins_s)
        self._schedule(live, begins_s + took_s, _What.RESULT, begins_s)

    def _schedule(self, live: _Live, at: float, what: _What, begins_s: float) -> None:
        """The next happening of a running incarnation, unless a fault comes before it."""
        fault = live.fault
        if fault is not None and live.started_s is not None:
            crash_s = (
                None if fault.crash_after_s is None else max(begins_s, live.started_s + fault.crash_after_s)
            )
            hang_s = (
                None if fault.hang_after_s is None else max(begins_s, live.started_s + fault.hang_after_s)
            )
            if hang_s is not None and hang_s < at and (crash_s is None or hang_s < crash_s):
                live.silent = True  # only a kill ends it
                return
            if crash_s is not None and crash_s < at:
                live.leaves_as = Outcome.OUT_OF_MEMORY if fault.out_of_memory else Outcome.CRASHED
                live.why = "simulated crash"
                self._push(crash_s, _What.EXIT, live, live.token)
                return
        self._push(at, what, live, live.token)

    def _other(self, time: float, what: _What, subject: object, token: int) -> Event | None:
        """Everything that is not a result: rare."""
        if isinstance(subject, _Live):
            if subject.token != token and what not in (_What.SAVED, _What.RETURNED):
                return None
            if subject.stage is _Stage.GONE and what is not _What.RETURNED:
                return None
            self.now = time
            if what is _What.STARTED:
                return self._started(subject)
            if what is _What.EXIT:
                return self._exited(subject)
            if what is _What.SAVED:
                return self._saved(subject, token)
            if what is _What.LEAVE:
                self._leave(subject, Outcome.PREEMPTED)
                return None
            if what is _What.REFUSED:
                return self._refused(subject)
            return self._returned(subject)
        if what is _What.TIMER:
            assert isinstance(subject, SetTimer)
            key = (subject.timer, subject.trial_id)
            if self._timers.get(key) != token:
                return None
            del self._timers[key]
            self.now = time
            return TimerFired(time, subject.timer, subject.trial_id, subject.incarnation)
        assert isinstance(subject, str)
        self.now = time
        return self._node_down(subject) if what is _What.NODE_DOWN else self._node_up(subject)

    def _started(self, live: _Live) -> Event | None:
        fault = live.fault
        if fault is not None and fault.fails:
            live.leaves_as = Outcome.LAUNCH_FAILED
            live.why = "simulated launch failure"
            return self._exited(live)
        now = self.now
        live.stage = _Stage.RUNNING
        live.started_s = live.saved_at_s = live.trained_until_s = now
        self._reporting = live  # it goes on, or leaves, once this event has been handled
        return TrialStarted(now, live.trial_id, live.incarnation, now - live.wanted_s)

    def _leave(self, live: _Live, outcome: Outcome) -> None:
        """At a boundary: a last checkpoint, then the exit."""
        live.stage = _Stage.LEAVING
        live.left_s = self.now
        live.leaves_as = outcome
        live.token += 1
        at = self.now + (self._settings.verdict_delay_s if live.iteration else 0.0)
        if live.iteration > live.saved_iteration:
            at += self._settings.save_s
            self._save(live, at)
        if live.fault is not None:
            at += live.fault.late_s
        self._end(live, at)

    def _end(self, live: _Live, at: float) -> None:
        if at <= self.now:
            event = self._exited(live)
            assert event is not None
            self._at_once.append(event)
        else:
            self._push(at, _What.EXIT, live, live.token)

    def _save(self, live: _Live, done_s: float) -> None:
        if done_s <= self.now:
            self._at_once.append(self._saved(live, live.iteration))
        else:
            self._push(done_s, _What.SAVED, live, live.iteration)

    def _saved(self, live: _Live, iteration: int) -> Event:
        if live.fault is not None and live.fault.save_fails():
            return CheckpointFailed(
                self.now, live.trial_id, live.incarnation, iteration, "simulated failure of a save"
            )
        live.saved_iteration = iteration
        live.saved_at_s = self.now
        return CheckpointSaved(self.now, live.trial_id, live.incarnation, iteration, self._settings.save_s)

    def _exited(self, live: _Live) -> Event | None:
        self._account(live)
        live.stage = _Stage.GONE
        live.token += 1
        self._live.pop((live.trial_id, live.incarnation), None)
        self._occupied.difference_update(live.atoms)
        unproven: tuple[AtomId, ...] = ()
        if live.leaves_as is Outcome.KILLED and live.fault is not None and live.fault.unproven:
            unproven = live.atoms
            self._occupied.update(unproven)
            assert self._faults is not None
            self._push(self.now + self._faults.settings.unproven_s, _What.RETURNED, live)
        elif live.fault is not None and self._quarantined(live):
            # It was given up on before it ended: now it is proven gone.
            self._at_once.append(AtomsReturned(self.now, self._quarantined(live)))
        return TrialExited(self.now, live.trial_id, live.incarnation, live.leaves_as, live.why, unproven)

    def _quarantined(self, live: _Live) -> tuple[AtomId, ...]:
        state = self._atom_state
        if state is None:
            return ()
        return tuple(atom for atom in live.atoms if state(atom) is AtomState.QUARANTINED)

    def _returned(self, live: _Live) -> Event | None:
        self._occupied.difference_update(live.atoms)
        atoms = self._quarantined(live)
        return AtomsReturned(self.now, atoms) if atoms else None

    def _refused(self, live: _Live) -> Event:
        assert self._faults is not None
        self._account(live)
        live.stage = _Stage.GONE
        del self._live[live.trial_id, live.incarnation]
        self._occupied.difference_update(live.atoms)
        return LaunchRefused(
            self.now,
            live.trial_id,
            live.incarnation,
            self.now + self._faults.settings.refuse_s,
            "simulated refusal",
        )

    def _node_down(self, node: str) -> Event:
        assert self._faults is not None
        mine = {atom.atom_id for atom in self._machine.atoms if atom.node == node}
        for live in list(self._live.values()):
            if mine.isdisjoint(live.atoms):
                continue
            live.leaves_as = Outcome.NODE_FAILED
            live.why = f"{node} was lost"
            if self._reporting is live:
                self._reporting = None
            event = self._exited(live)
            assert event is not None
            self._at_once.append(event)
        if self._faults.settings.node_back_s is not None:
            self._push(self.now + self._faults.settings.node_back_s, _What.NODE_UP, node)
        return NodeDown(self.now, node, "simulated loss")

    def _node_up(self, node: str) -> Event:
        self._push(self.now + next(self._node_losses[node]), _What.NODE_DOWN, node)
        return NodeUp(self.now, node)

    # ---- what is to be done

    def perform(self, action: Action) -> None:
        """One action of the core; what follows at once is queued."""
        do = self._DOES.get(type(action))
        if do is not None:
            do(self, action)

    def _finish(self, action: FinishExperiment | SuspendExperiment) -> None:
        self.finished = action
        for live in self._live.values():
            self._account(live)

    def _request(self, action: RequestTrial) -> None:
        for _ in range(action.num):
            trial_id = TrialId(len(self.configs))
            config = self._sampler.ask(trial_id)
            if config is None:
                self._at_once.append(SearchExhausted(self.now))
                return
            self.configs.append(config)
            self._at_once.append(TrialSubmitted(self.now, trial_id, config))

    def _start(self, action: StartTrial) -> None:
        trial_id = action.trial_id
        curve = self._curves.get(trial_id)
        if curve is None:
            curve = self._curves[trial_id] = self._workload.curve(trial_id, self.configs[trial_id])
        if action.incarnation == 1:
            self.trials_started += 1
        fault = None if self._faults is None else self._faults.of(trial_id, action.incarnation)
        live = _Live(action, curve, self._throughput(len(action.placement.atoms)), self.now, fault)
        assert self._occupied.isdisjoint(live.atoms), f"trial {trial_id} started on atoms that are in use"
        self._occupied.update(live.atoms)
        self._live[trial_id, action.incarnation] = live
        if fault is not None and fault.refused:
            self._push(self.now, _What.REFUSED, live)
        elif fault is None or not fault.never_starts:
            self._push(self.now + self._start_up_s, _What.STARTED, live)

    def _preempt(self, action: PreemptTrial) -> None:
        live = self._live.get((action.trial_id, action.incarnation))
        if live is None or live.stage >= _Stage.LEAVING:
            return
        live.preempted = True
        if action.reason is PreemptReason.RESIZE:
            self.num_resizes += 1
        if live is self._reporting or live.stage is _Stage.STARTING:
            return  # it leaves once this event is handled, or at its first word
        boundary_s = self._settings.boundary_s
        if boundary_s is None or live.silent:
            return
        at = self.now
        if boundary_s > 0:
            within_s = (self.now - live.trained_until_s) % boundary_s
            at += boundary_s - within_s if within_s else 0.0
        self._push(at, _What.LEAVE, live, live.token)

    def _kill(self, action: KillTrial) -> None:
        live = self._live.get((action.trial_id, action.incarnation))
        if live is None:
            return
        if self._reporting is live:
            self._reporting = None
        live.stage = _Stage.LEAVING
        live.leaves_as = Outcome.KILLED
        live.why = "killed"
        live.token += 1
        at = self.now + self._settings.kill_s
        if live.fault is not None:
            at += live.fault.late_s
        self._end(live, at)

    def _set_timer(self, action: SetTimer) -> None:
        key = (action.timer, action.trial_id)
        if action.at is None:
            self._timers.pop(key, None)
            return
        self._order += 1
        self._timers[key] = self._order
        heappush(
            self._heap,
            (max(action.at, self.now), _LAST + self._order, _What.TIMER, action, self._order),
        )

    _DOES: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        StartTrial: _start,
        PreemptTrial: _preempt,
        RequestTrial: _request,
        SetTimer: _set_timer,
        KillTrial: _kill,
        FinishExperiment: _finish,
        SuspendExperiment: _finish,
    }
    """What the world does about an action; checkpoints cost nothing to publish or delete."""

    # ---- help

    def _push(self, at: float, what: _What, subject: object, token: int | None = None) -> None:
        self._order += 1
        if token is None:
            token = subject.token if isinstance(subject, _Live) else 0
        heappush(self._heap, (at, self._order, what, subject, token))

    def _account(self, live: _Live) -> None:
        """Atom-seconds of an incarnation that is over (or is cut off by the end)."""
        held_s = self.now - live.wanted_s
        until_s = self.now if live.left_s is None else live.left_s
        trained_s = 0.0 if live.started_s is None else until_s - live.started_s
        self.training_atom_s += live.size * trained_s
        self.restart_atom_s += live.size * (held_s - trained_s)


def _problem(metric: float) -> str:
    if metric != metric:
        return "nan"
    return "inf" if metric > 0 else "-inf"
