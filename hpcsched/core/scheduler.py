"""The core: events in, actions out.

`Scheduler.handle(event)` is the only thing that changes anything. It reads no clock, no file and no random state: the
same events give the same actions, in the driver, in the simulator and in replay. It works in three steps:

1. Time goes on to the event's (never back), and the accounts with it. Past the deadline nothing counts any more.
2. The handler of the event's type updates trials and ledger. Trials change state only by `transitions.TRANSITIONS`.
   What to do about a result is the policy's decision (`view.Policy`); how it is done (preempt, wait for the exit,
   start again elsewhere) is the same for all policies and is done here.
3. If anything can start, it starts; if nothing can ever happen again, the experiment finishes.

An event of an incarnation that is not the trial's current one is ignored, except that the exit of a killed one whose
node was silent gives its quarantined atoms back.

Rules that are decided here and not by policies:

- A result counts when its iteration is higher than the last one of its incarnation and it is not later than the
  deadline. Repeated ones and ones that go backwards are ignored. Results of a PREEMPTING trial are recorded, and shown
  to the policy when the trial runs again (if they are not lost by then).
- At iteration R the trial is done: it saves and leaves by itself; past R it is asked to.
- Nothing starts that cannot bring a result (and save it) before the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from hpcsched.core.actions import (
    Action,
    CheckpointRef,
    DeleteCheckpoint,
    FinishExperiment,
    KillTrial,
    PreemptTrial,
    PublishBest,
    RequestTrial,
    SetTimer,
    StartTrial,
    SuspendExperiment,
)
from hpcsched.core.checkpoints import Best, better_than, forget, keep_new, superfluous
from hpcsched.core.costs import Costs
from hpcsched.core.countdown import Countdown
from hpcsched.core.enums import (
    AtomState,
    ExperimentState,
    Mode,
    Outcome,
    PreemptReason,
    TimerKind,
    TrialState,
)
from hpcsched.core.events import (
    AllocationEnding,
    AtomsReturned,
    CheckpointFailed,
    CheckpointLost,
    CheckpointSaved,
    DeadlineChanged,
    Event,
    ExperimentBegan,
    ExperimentResumed,
    LaunchRefused,
    MachineChanged,
    NodeDown,
    NodeUp,
    ResultReported,
    SearchExhausted,
    ShutdownRequested,
    TimerFired,
    TrialExited,
    TrialStarted,
    TrialStopRequested,
    TrialSubmitted,
)
from hpcsched.core.failfast import FailFast
from hpcsched.core.fate import Blame, fate_of
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.ledger import AtomSeconds, Ledger
from hpcsched.core.policies.registry import policy_of
from hpcsched.core.quarantine import Quarantine
from hpcsched.core.results import take_in
from hpcsched.core.scaling import Measurements
from hpcsched.core.settings import Settings
from hpcsched.core.sizes import Sizes
from hpcsched.core.snapshots import Snapshots
from hpcsched.core.speeds import Speeds
from hpcsched.core.transitions import ENDED, LIVE, TRANSITIONS, Cause
from hpcsched.core.trial import Trial
from hpcsched.core.view import Decision, Drop, Pause, Policy, Resize, Stop, TrialView
from hpcsched.core.words import atoms_are
from hpcsched.topology.machine import AtomId, Machine, Placement
from hpcsched.topology.pool import Pool

SLACK = 2.0
"""Leaving may take so many times the measured iteration and save, whatever the time-out says; restoring so many times a save."""
NEXT_ITERATION = 1.1
"""The next iteration is expected to take at most so many times the last one."""


class Counts(msgspec.Struct):
    """How often what has happened so far."""

    started: int = 0
    """Trials that were launched at least once."""
    paused: int = 0
    promoted: int = 0
    """PAUSED trials that were started again."""
    resized_up: int = 0
    resized_down: int = 0
    failed: int = 0
    killed: int = 0
    """Incarnations that were killed."""


class Scheduler:
    """One experiment. Also the `View` that its policy sees."""

    def __init__(
        self,
        settings: Settings,
        *,
        policy: Policy | None = None,
        make_pool: Callable[[Machine], Pool] = Pool,
    ) -> None:
        """`policy`, `make_pool`: in place of the one that the settings name, and of the usual placement (studies, profiles)."""
        self.settings = settings
        self._make_pool = make_pool
        self.sizes = Sizes.within(settings.multiple_of, settings.max_trial_atoms)
        """Those of the settings, as far as the machine allows them."""
        self.state = ExperimentState.RUNNING
        self.now = 0.0
        self.trials: list[Trial] = []
        """By trial id."""
        self.best: Best | None = None
        self.counts = Counts()
        self.why_ended = ""

        self._policy = policy_of(settings) if policy is None else policy
        self._costs = Costs(settings.scaling.restart_s)
        self._ledger = Ledger(Machine(nodes=(), atoms=()))
        self._speeds = Speeds(settings.scaling, self._ledger)
        self._countdown = Countdown()
        self._has_begun = False
        self._actions: list[Action] = []
        self._sign = 1.0 if settings.mode is Mode.MAX else -1.0

        self._live: dict[TrialId, Trial] = {}
        """All that hold atoms."""
        self._going_on: dict[TrialId, Trial] = {}
        """Of these, all that are to go on: in order of their start."""
        self._refused: dict[TrialId, Trial] = {}
        """PENDING until their RETRY timer fires."""
        self._held_back: dict[TrialId, Trial] = {}
        """PENDING, but the deadline is too near; they come back when it moves."""
        self._quarantine = Quarantine()

        self._exhausted = False
        self._num_requested = 0
        self._best_seen: tuple[float, TrialId] | None = None
        self._fail_fast = FailFast(settings.retries.fail_fast)

        self._ending: ExperimentState | None = None
        """When everybody has left, the experiment is over in this way (SUSPENDED or FINISHED)."""

    # ---- what others may read

    @property
    def deadline_s(self) -> float | None:
        return self._countdown.deadline_s

    @property
    def measured(self) -> Measurements:
        """How much faster trials train on more atoms, as reported; kept whatever is assumed."""
        return self._speeds.measured

    @property
    def num_atoms(self) -> int:
        return self._ledger.num_usable

    @property
    def num_free(self) -> int:
        return self._ledger.num_free

    @property
    def num_requested(self) -> int:
        return self._num_requested

    @property
    def search_exhausted(self) -> bool:
        most = self.settings.num_trials
        return self._exhausted or (most is not None and len(self.trials) >= most)

    @property
    def is_draining(self) -> bool:
        """Everybody has been asked for a last checkpoint; nothing starts any more."""
        return self._countdown.is_draining or self._ending is not None

    @property
    def is_ending(self) -> bool:
        """It ends whatever the deadline: by a shutdown, or with its allocation."""
        return self._ending is not None

    def trial(self, trial_id: TrialId) -> Trial:
        return self.trials[trial_id]

    def live(self) -> Sequence[Trial]:
        return list(self._going_on.values())

    def time_left_s(self) -> float | None:
        return None if self.deadline_s is None else self.deadline_s - self.now

    @property
    def leaving_s(self) -> float:
        """From asking all that train to leave until their last checkpoints are complete, as far as measured. O(live trials).

        Before any save was: by the size of the state, and not below what is kept for one before a deadline."""
        longest_s = max(
            (
                self._iteration_s(trial, len(trial.atoms))
                for trial in self._live.values()
                if trial.state is TrialState.RUNNING
            ),
            default=0.0,
        )
        save_s = self._costs.kept_for_saving_s(math.inf)
        return NEXT_ITERATION * longest_s + save_s + self.settings.timeouts.deadline_margin_s

    def restart_cost_s(self, size: int) -> float | None:
        return self._costs.setup_s(size)

    def scaling(self, size: int) -> float:
        return self._speeds.alone(size)

    def planned_scaling(self, size: int, num: int) -> float:
        return self._speeds.planned(size, num)

    @property
    def knows_distance(self) -> bool:
        return self._speeds.knows_distance

    def speedup(self, trial: TrialView, size: int) -> float:
        return self._speeds.now(self.trials[trial.trial_id], size)

    def speedups_after(
        self, giver: TrialView, keeps: int, taker: TrialView, size: int
    ) -> tuple[float, float]:
        return self._speeds.after(self.trials[giver.trial_id], keeps, self.trials[taker.trial_id], size)

    def restart_costs_s(self) -> dict[int, float]:
        """Measured so far: size -> p90 of starts, end to end."""
        return self._costs.setups_by_size_s()

    @property
    def starts_are_warm(self) -> bool:
        """Some start came from a spare; `restart_costs_s` are those of such starts."""
        return self._costs.are_warm

    def atom_state(self, atom_id: AtomId) -> AtomState:
        return self._ledger.state(atom_id)

    def holder(self, atom_id: AtomId) -> TrialId | None:
        """The trial that has the atom (held, reserved or in quarantine), or None."""
        return self._ledger.holder(atom_id)

    def atom_seconds(self, now: float | None = None) -> AtomSeconds:
        """Where the atoms have been until `now` (default: the last event); nothing is added after the end."""
        running = self.state is ExperimentState.RUNNING
        return self._ledger.seconds(now if running and now is not None else self.now)

    def check(self) -> None:
        """Raise AssertionError when the records contradict each other. O(trials + atoms): for tests."""
        self._ledger.check()
        assert self._ledger.is_conserved()
        for trial in self.trials:
            assert (trial.state in LIVE) == (trial.trial_id in self._live), f"trial {trial.trial_id}"
            assert bool(trial.atoms) == (trial.state in LIVE), f"trial {trial.trial_id}"
            assert not trial.reserved or trial.state in LIVE, f"trial {trial.trial_id}"
            for atom_id in trial.atoms:
                assert self._ledger.state(atom_id) is AtomState.HELD
                assert self._ledger.holder(atom_id) == trial.trial_id
            for atom_id in trial.reserved:
                assert self._ledger.state(atom_id) is AtomState.RESERVED
                assert self._ledger.holder(atom_id) == trial.trial_id
        training = sum(len(trial.atoms) for trial in self.trials if trial.state is TrialState.RUNNING)
        assert training == self._ledger.num_training
        held = sum(len(trial.atoms) for trial in self.trials)
        assert held == self._ledger.num_held
        assert sum(len(trial.reserved) for trial in self.trials) == self._ledger.num_reserved

    # ---- the one way in

    def handle(self, event: Event) -> list[Action]:
        """What to do about an event. Equal events in equal order give equal actions."""
        actions: list[Action] = []
        self._actions = actions
        if self.state is not ExperimentState.RUNNING and type(event) is not ExperimentResumed:
            return actions
        if event.time > self.now:
            self.now = event.time
            self._ledger.advance(event.time)
        if (
            self.deadline_s is not None
            and event.time > self.deadline_s
            and type(event) not in _MAY_MOVE_DEADLINE
            and self._has_begun
        ):
            self._time_is_up()
            return actions
        self._HANDLERS[type(event)](self, event)
        if self.state is ExperimentState.RUNNING:
            self._go_on()
        return actions

    # ---- the experiment

    def _began(self, event: ExperimentBegan) -> None:
        assert not self._has_begun, "an experiment begins once"
        self._has_begun = True
        self._ledger = Ledger(event.machine, time=self.now, make_pool=self._make_pool)
        self._move_to(event.machine)
        self._set_deadline(event.deadline_s)

    def _resumed(self, event: ExperimentResumed) -> None:
        if self.state in {ExperimentState.FINISHED, ExperimentState.FAILED}:
            self._actions.append(
                FinishExperiment(
                    f"it had ended already: {self.why_ended}",
                    state=self.state,
                    best_trial_id=self._best_trial_id(),
                )
            )
            return
        if not self._has_begun:
            self._began(ExperimentBegan(event.time, event.machine, event.deadline_s))
            return
        self.state = ExperimentState.RUNNING
        for trial in list(self._live.values()):
            trial.node_fault = False
            # What was reserved belongs to the old machine: nobody starts before the new one is known.
            self._unreserve(trial)
            self._settle(trial, Outcome.PREEMPTED, "the driver was restarted", unproven=(), wanted_gone=True)
        self._ledger = Ledger(
            event.machine, time=self.now, sums=self._ledger.seconds(self.now), make_pool=self._make_pool
        )
        self._move_to(event.machine)
        self._quarantine.clear()
        self._num_requested = 0
        self._ending = None
        self._countdown.ends_at = None
        refused, self._refused = self._refused, {}
        for trial in refused.values():
            self._policy.trial_left(self, trial)
        self._set_deadline(event.deadline_s)
        if self.best is not None:
            self._publish("it is the best so far; said again because the driver was restarted")
        if self.deadline_s is not None and self.now >= self.deadline_s:
            self._time_is_up()  # while nobody drove

    def _move_to(self, machine: Machine) -> None:
        self.sizes = Sizes.within(
            self.settings.multiple_of, self.settings.max_trial_atoms, machine.max_trial_atoms
        )
        self._speeds.move_to(self._ledger)

    def _machine_changed(self, event: MachineChanged) -> None:
        self._ledger.set_aside(event.down)
        self._ledger.take_back(event.up)
        self._mend_reservations()

    def _node_down(self, event: NodeDown) -> None:
        self._ledger.node_down(event.node)
        atoms = self._ledger.atoms_of(event.node)
        hit = {
            self._ledger.holder(atom_id) for atom_id in atoms if self._ledger.state(atom_id) is AtomState.HELD
        }
        for trial_id in sorted(trial_id for trial_id in hit if trial_id is not None):
            trial = self.trials[trial_id]
            trial.node_fault = True
            self._kill(trial, f"node {event.node} is down: {event.why or 'no reason given'}")
        self._mend_reservations()

    def _node_up(self, event: NodeUp) -> None:
        self._ledger.node_up(event.node)

    def _atoms_returned(self, event: AtomsReturned) -> None:
        self._ledger.end_quarantine(event.atoms)
        self._quarantine.forget(set(event.atoms))

    def _mend_reservations(self) -> None:
        """A trial that grows onto atoms that went down gets others when it has left."""
        for trial in self._live.values():
            lost = [atom_id for atom_id in trial.reserved if not self._ledger.is_usable(atom_id)]
            if lost:
                self._ledger.release(lost)
                trial.reserved = tuple(atom_id for atom_id in trial.reserved if atom_id not in lost)
                trial.next_placement = None

    def _deadline_changed(self, event: DeadlineChanged) -> None:
        self._set_deadline(event.deadline_s)
        if self.deadline_s is not None and self.now > self.deadline_s:
            self._time_is_up()

    def _set_deadline(self, deadline_s: float | None) -> None:
        countdown = self._countdown
        had = countdown.deadline_s is not None
        countdown.move(deadline_s)
        if deadline_s is not None:
            self._timer(TimerKind.DEADLINE, countdown.limit_s, f"the deadline is at {deadline_s:.6g} s")
            self._plan_drain()
        elif had:
            self._timer(TimerKind.DRAIN, None, "there is no deadline any more")
            self._timer(TimerKind.DEADLINE, countdown.limit_s, "there is no deadline any more")
        held_back, self._held_back = self._held_back, {}
        for trial in held_back.values():
            if trial.state is TrialState.PENDING:
                self._policy.trial_left(self, trial)

    def _reserve_s(self) -> float:
        """Time kept before the deadline for one last checkpoint; 0 when nobody saves."""
        if not self.settings.save_at_deadline:
            return 0.0
        return (
            self._costs.kept_for_saving_s(self.deadline_s or 0.0) + self.settings.timeouts.deadline_margin_s
        )

    def _plan_drain(self) -> None:
        """Set the DRAIN timer, or move it when saves turn out to take another time than thought."""
        if not self.settings.save_at_deadline:
            return
        reserve_s = self._reserve_s()
        at = self._countdown.plan_drain(self.now, reserve_s)
        if at is not None:
            self._timer(TimerKind.DRAIN, at, f"a last checkpoint takes {reserve_s:.6g} s, margin included")

    def _allocation_ending(self, event: AllocationEnding) -> None:
        later = self.deadline_s is None or self.deadline_s > event.at
        self._countdown.ends_at = event.at
        how = ExperimentState.SUSPENDED if later else ExperimentState.FINISHED
        why = f"the allocation ends at {event.at:.6g} s" + (f": {event.why}" if event.why else "")
        self._timer(TimerKind.DEADLINE, self._countdown.limit_s, why)
        # A user's stop stays one; it only has no longer than that.
        if self._ending is None:
            self._leave(how, why, save=True)

    def _shutdown(self, event: ShutdownRequested) -> None:
        how = ExperimentState.SUSPENDED if event.suspend else ExperimentState.FINISHED
        self._leave(how, event.why or "a shutdown was requested", save=event.save)

    def _leave(self, how: ExperimentState, why: str, *, save: bool) -> None:
        """Everybody goes; then the experiment is over."""
        self._ending = how
        self.why_ended = why
        if save:
            self._drain(why)
            return
        for trial in list(self._live.values()):
            self._kill(trial, why)
        self._end(how, why)

    def _drain(self, why: str) -> None:
        self._countdown.is_draining = True
        for trial in list(self._live.values()):
            if trial.state is TrialState.STARTING or (
                trial.state is TrialState.PREEMPTING and not trial.contacted
            ):
                self._kill(trial, f"it has not started yet: {why}")
            elif trial.state is TrialState.RUNNING and not trial.finishing:
                self._preempt(trial, PreemptReason.DEADLINE, why)

    def _time_is_up(self) -> None:
        """The deadline: what still runs is killed and does not count."""
        if self._ending is None:
            why = f"the deadline of {self.deadline_s:.6g} s has passed"
            how = ExperimentState.FINISHED
        else:
            why, how = self.why_ended, self._ending
        for trial in list(self._live.values()):
            self._kill(trial, why)
        self._end(how, why)

    def _end(self, how: ExperimentState, why: str) -> None:
        self.why_ended = why
        if how is ExperimentState.SUSPENDED:
            self.state = how
            self._actions.append(SuspendExperiment(why))
            return
        if how is ExperimentState.FINISHED and self.trials and self._best_trial_id() is None:
            how = ExperimentState.FAILED
            lack = (
                "has reported a metric that is a number"
                if self._best_seen is None
                else "has a checkpoint with a metric"
            )
            why = f"{why}; no trial {lack}"
        self.state = how
        for trial in list(self._live.values()):
            self._move(trial, Cause.STOP)
            self._unreserve(trial)
            self._ledger.release(trial.atoms)
            trial.atoms = ()
        self._live.clear()
        self._going_on.clear()
        for trial in self.trials:
            if trial.state not in ENDED:
                self._move(trial, Cause.DROP)
        self._actions.append(FinishExperiment(why, state=how, best_trial_id=self._best_trial_id()))

    def _best_trial_id(self) -> TrialId | None:
        if self.best is not None:
            return self.best.trial_id
        if self.settings.save_at_deadline or self._best_seen is None:
            return None
        return self._best_seen[1]

    # ---- the search

    def _request(self, num: int, because: str) -> None:
        self._num_requested += num
        self._actions.append(RequestTrial(because, num=num))

    def _submitted(self, event: TrialSubmitted) -> None:
        assert event.trial_id == len(self.trials), f"trial {event.trial_id} is not the next one"
        trial = Trial(event.trial_id, event.config)
        self.trials.append(trial)
        self._num_requested = max(0, self._num_requested - 1)
        self._policy.trial_added(self, trial)

    def _search_exhausted(self, _: SearchExhausted) -> None:
        self._exhausted = True
        self._num_requested = 0

    # ---- a trial

    def _current(self, trial_id: TrialId, incarnation: Incarnation) -> Trial | None:
        """The trial, when the event is of its current incarnation."""
        if trial_id >= len(self.trials):
            return None
        trial = self.trials[trial_id]
        return trial if trial.incarnation == incarnation and incarnation > 0 else None

    def _move(self, trial: Trial, cause: Cause) -> None:
        """The only place where a trial's state changes (but for the end of everything)."""
        old = trial.state
        new = TRANSITIONS[old, cause]
        if old is not new:
            if old is TrialState.RUNNING:
                self._ledger.num_training -= len(trial.atoms)
            elif new is TrialState.RUNNING:
                self._ledger.num_training += len(trial.atoms)
            trial.state = new

    def _launch(self, trial: Trial, placement: Placement, because: str) -> None:
        if trial.incarnation == 0:
            self.counts.started += 1
        self._ledger.hold(trial.trial_id, placement.atoms)
        trial.incarnation = Incarnation(trial.incarnation + 1)
        trial.atoms = placement.atoms
        trial.span = self._speeds.span_of(placement.atoms)
        trial.last_num_atoms = len(placement.atoms)
        trial.started_at = trial.heard_at = self.now
        trial.contacted = trial.killing = trial.finishing = trial.node_fault = False
        trial.preempt_reason = None
        trial.incarnation_iteration = 0
        trial.snapshots = Snapshots()
        self._move(trial, Cause.LAUNCH)
        self._live[trial.trial_id] = trial
        self._going_on.setdefault(trial.trial_id, trial)
        self._actions.append(
            StartTrial(
                because,
                trial_id=trial.trial_id,
                incarnation=trial.incarnation,
                placement=placement,
                checkpoint=trial.restart_ref,
            )
        )
        limit = self._start_limit_s(trial)
        if limit is not None:
            self._timer(TimerKind.START_TIMEOUT, self.now + limit, f"a start may take {limit:.6g} s", trial)
        self._policy.trial_started(self, trial)

    def _start_limit_s(self, trial: Trial) -> float | None:
        """A start that restores reads what a save has written, and gets SLACK times as long for it: a large state on a slow file system
        is no reason to kill anybody."""
        limit = self.settings.timeouts.start_s
        if limit is None:
            return None
        restores = trial.restart_ref is not None
        restore_s = (self._costs.last_save_s or self._costs.unseen_save_s) if restores else 0.0
        trial.start_limit_s = limit + SLACK * restore_s
        return trial.start_limit_s

    def _started(self, event: TrialStarted) -> None:
        trial = self._current(event.trial_id, event.incarnation)
        if trial is not None and trial.state in LIVE and not trial.contacted:
            is_news = self._costs.observe_state(event.state_bytes)
            self._contact(trial, event.setup_time_s, warm=event.warm)
            if is_news:
                self._plan_drain()

    def _contact(self, trial: Trial, setup_time_s: float, *, warm: bool = False) -> None:
        """All ranks are up."""
        trial.contacted = True
        trial.heard_at = self.now
        trial.setup_time_s = setup_time_s
        trial.warm = warm
        self._costs.observe_setup(len(trial.atoms), setup_time_s, warm=warm)
        self._prune(trial)
        self._move(trial, Cause.CONTACT)
        if trial.state is TrialState.PREEMPTING:
            if not trial.killing and trial.preempt_reason is not None:
                self._deliver_preemption(
                    trial, f"it was to leave before it had started ({trial.preempt_reason})"
                )
            return
        limit = self.settings.timeouts.silence_s
        if limit is not None:
            self._timer(
                TimerKind.SILENCE_TIMEOUT, self.now + limit, f"an iteration may take {limit:.6g} s", trial
            )
        if trial.training_iteration > trial.judged_iteration and trial.score is not None:
            self._judge(trial)

    def _reported(self, event: ResultReported) -> None:
        trial = self._current(event.trial_id, event.incarnation)
        if trial is None or trial.state not in LIVE:
            return
        if not trial.contacted:
            assert trial.started_at is not None
            self._contact(trial, self.now - trial.started_at)
        trial.heard_at = self.now
        iteration = event.training_iteration
        if iteration <= trial.incarnation_iteration:
            return
        take_in(trial, event, sign=self._sign, metric_window=self.settings.metric_window)
        self._observe(trial)
        if trial.state is not TrialState.RUNNING:
            return
        most = self.settings.max_iterations
        if iteration >= most:
            if iteration > most or trial.finishing:
                self._preempt(trial, PreemptReason.STOP, f"iteration {iteration} is past R = {most}")
            else:
                trial.finishing = True
                trial.judged_iteration = iteration
                limit = self._grace_s(trial)
                if limit is not None:
                    why = f"iteration R = {most} is done and leaving may take {limit:.6g} s"
                    self._timer(TimerKind.PREEMPT_GRACE, self.now + limit, why, trial)
            return
        if self._must_save_now(trial):
            return
        self._judge(trial)

    def _observe(self, trial: Trial) -> None:
        """What its latest result says of others."""
        if trial.score is not None and (self._best_seen is None or trial.score > self._best_seen[0]):
            self._best_seen = (trial.score, trial.trial_id)
        took_s = trial.last_iter_s or 0.0
        self._costs.observe_iteration(took_s * self._speeds.at(trial.ran_at, trial.ran_over))
        self._speeds.measure(trial, trial.ran_at, took_s)

    def _must_save_now(self, trial: Trial) -> bool:
        """One more iteration and its checkpoint would not be done before the deadline: leave now."""
        deadline = self.deadline_s
        if deadline is None or not self.settings.save_at_deadline:
            return False
        iteration = NEXT_ITERATION * (trial.last_iter_s or 0.0)
        reserve = self._reserve_s()
        left = deadline - self.now
        if iteration + reserve <= left:
            return False
        self._preempt(
            trial,
            PreemptReason.DEADLINE,
            f"{left:.6g} s are left; an iteration takes {iteration:.6g} s and the last checkpoint {reserve:.6g} s",
        )
        return True

    def _judge(self, trial: Trial) -> None:
        trial.judged_iteration = trial.training_iteration
        for decision in self._policy.result_reported(self, trial):
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        trial = self.trials[decision.trial_id]
        if isinstance(decision, Drop):
            self._drop(trial, decision.because)
        elif trial.finishing or trial.state not in {TrialState.RUNNING, TrialState.STARTING}:
            return
        elif isinstance(decision, Pause):
            self._preempt(trial, PreemptReason.PAUSE, decision.because)
        elif isinstance(decision, Stop):
            self._preempt(trial, PreemptReason.STOP, decision.because)
        elif isinstance(decision, Resize):
            self._resize(trial, decision.size, decision.because)

    def _resize(self, trial: Trial, size: int, because: str) -> None:
        """Reserve the atoms now; the trial leaves, and starts on them."""
        assert self.sizes.allows(size), f"{size} atoms are not an allowed size"
        if size == len(trial.atoms) or self.is_draining or not self._deadline_allows(trial, size):
            return
        placement = self._ledger.find(size, held=trial.atoms)
        if placement is None:
            return
        new = tuple(atom_id for atom_id in placement.atoms if atom_id not in trial.atoms)
        self._ledger.reserve(trial.trial_id, new)
        trial.reserved = new
        trial.next_placement = placement
        trial.resize_because = because
        trial.last_num_atoms = size
        self._preempt(trial, PreemptReason.RESIZE, because)

    def _preempt(self, trial: Trial, reason: PreemptReason, because: str) -> None:
        """Ask it to leave. A trial that has not started yet hears of it at its first contact."""
        trial.preempt_reason = reason
        self._move(trial, Cause.LEAVE)
        if reason is not PreemptReason.RESIZE:
            self._going_on.pop(trial.trial_id, None)
            self._unreserve(trial)
        if trial.contacted:
            self._deliver_preemption(trial, because)

    def _deliver_preemption(self, trial: Trial, because: str) -> None:
        assert trial.preempt_reason is not None
        self._actions.append(
            PreemptTrial(
                because, trial_id=trial.trial_id, incarnation=trial.incarnation, reason=trial.preempt_reason
            )
        )
        limit = self._grace_s(trial)
        if limit is not None:
            self._timer(TimerKind.PREEMPT_GRACE, self.now + limit, f"leaving may take {limit:.6g} s", trial)

    def _grace_s(self, trial: Trial) -> float | None:
        """From asking it to leave until it is killed: never less than twice what its iteration and a last save take by what
        was measured (before any save was, by the size of its state), so that no healthy trial loses its work because these are long."""
        grace = self.settings.timeouts.preempt_grace_s
        if grace is None:
            return None
        needs = (trial.last_iter_s or 0.0) + (self._costs.last_save_s or self._costs.unseen_save_s)
        trial.grace_s = max(grace, SLACK * needs)
        return trial.grace_s

    def _unreserve(self, trial: Trial) -> None:
        self._ledger.release(trial.reserved)
        trial.reserved = ()
        trial.next_placement = None

    def _kill(self, trial: Trial, because: str) -> None:
        if trial.killing:
            return
        trial.killing = True
        self.counts.killed += 1
        self._move(trial, Cause.KILL)
        self._actions.append(KillTrial(because, trial_id=trial.trial_id, incarnation=trial.incarnation))
        limit = self.settings.timeouts.kill_wait_s
        if limit is not None:
            self._timer(TimerKind.KILL_WAIT, self.now + limit, f"a kill may take {limit:.6g} s", trial)

    def _stop_requested(self, event: TrialStopRequested) -> None:
        if event.trial_id >= len(self.trials):
            return
        trial = self.trials[event.trial_id]
        if trial.state in {TrialState.PENDING, TrialState.PAUSED}:
            self._refused.pop(trial.trial_id, None)
            self._held_back.pop(trial.trial_id, None)
            self._drop(trial, event.why)
        elif trial.state is TrialState.PREEMPTING:
            trial.preempt_reason = PreemptReason.STOP  # it is leaving already
            self._going_on.pop(trial.trial_id, None)
            self._unreserve(trial)
        elif trial.state in LIVE:
            self._preempt(trial, PreemptReason.STOP, event.why)

    def _drop(self, trial: Trial, because: str) -> None:
        """A PENDING or PAUSED trial will not run again."""
        if trial.state not in {TrialState.PENDING, TrialState.PAUSED}:
            return
        self._move(trial, Cause.DROP)
        trial.dropped_because = because
        self._prune(trial, because)
        self._policy.trial_left(self, trial)

    # ---- the end of an incarnation

    def _exited(self, event: TrialExited) -> None:
        trial = self._current(event.trial_id, event.incarnation)
        if trial is None or trial.state not in LIVE:
            self._late_exit(event)
            return
        if any(self._ledger.node_is_down(atom_id) for atom_id in trial.atoms):
            trial.node_fault = True
        self._settle(trial, event.outcome, event.why, unproven=event.unproven)

    def _late_exit(self, event: TrialExited) -> None:
        """A killed incarnation whose node was silent is gone after all."""
        atoms = self._quarantine.of(event.trial_id, event.incarnation)
        proven = {atom_id for atom_id in atoms if atom_id not in event.unproven}
        if proven:
            self._ledger.end_quarantine(sorted(proven))
            self._quarantine.forget(proven)

    def _settle(
        self,
        trial: Trial,
        outcome: Outcome,
        why: str,
        *,
        unproven: Sequence[AtomId],
        wanted_gone: bool = False,
    ) -> None:
        """The incarnation is over: atoms go back, and the trial to the state that is its fate."""
        wanted_gone = wanted_gone or (
            trial.preempt_reason in {PreemptReason.DEADLINE, PreemptReason.STOP} or self.is_draining
        )
        if outcome is Outcome.PREEMPTED and trial.training_iteration > trial.restart.training_iteration:
            trial.fruitless += 1  # a new checkpoint sets this to 0
        fate = fate_of(
            trial,
            outcome,
            why=why,
            wanted_gone=wanted_gone,
            max_iterations=self.settings.max_iterations,
            retries=self.settings.retries,
        )
        if fate.blame is Blame.TRIAL:
            trial.crashes += 1
        elif fate.blame is Blame.NODE:
            trial.node_failures += 1
        elif fate.blame is Blame.LAUNCH:
            trial.launch_failures += 1

        resizing = trial.preempt_reason is PreemptReason.RESIZE and fate.cause is Cause.RESTART
        placement = trial.next_placement if resizing and not self.is_draining else None
        was = len(trial.atoms)
        self._move(trial, fate.cause)
        del self._live[trial.trial_id]
        silent = tuple(atom_id for atom_id in trial.atoms if atom_id in unproven)
        if placement is not None and not all(
            self._ledger.is_usable(atom_id) and atom_id not in silent for atom_id in placement.atoms
        ):
            placement = None
        if placement is None:
            kept: set[AtomId] = set()
            self._unreserve(trial)
        else:
            kept = set(placement.atoms)
        if silent:
            self._ledger.quarantine(silent)
            self._quarantine.put(trial.trial_id, trial.incarnation, silent)
        self._ledger.release(
            atom_id for atom_id in trial.atoms if atom_id not in silent and atom_id not in kept
        )
        trial.atoms = ()
        if fate.cause is not Cause.FINISH:
            trial.go_back()
        if fate.cause is Cause.PAUSE:
            self.counts.paused += 1
        elif fate.cause is Cause.GIVE_UP:
            self.counts.failed += 1
        if placement is not None and self._deadline_allows(trial, len(placement.atoms)):
            trial.reserved = ()
            trial.next_placement = None
            if len(placement.atoms) > was:
                self.counts.resized_up += 1
            else:
                self.counts.resized_down += 1
            self._launch(trial, placement, trial.resize_because)
            return
        if placement is not None:
            self._ledger.release(atom_id for atom_id in placement.atoms if atom_id not in trial.reserved)
            self._unreserve(trial)
        self._going_on.pop(trial.trial_id, None)
        self._prune(trial)
        self._policy.trial_left(self, trial)
        self._count_failure(trial, fate.blame, fate.cause, fate.why)

    def _count_failure(self, trial: Trial, blame: Blame, cause: Cause, why: str) -> None:
        """`fail_fast`: the search may be over before it has begun."""
        if self._best_seen is not None:
            return
        text = self._fail_fast.count(
            trial.trial_id,
            crashed=blame is Blame.TRIAL or cause is Cause.GIVE_UP,
            lacks_metric=trial.lacks_metric and trial.state in ENDED,
            why=why,
        )
        if text is None:
            return
        for other in list(self._live.values()):
            self._kill(other, text)
        self._end(ExperimentState.FAILED, text)

    def _launch_refused(self, event: LaunchRefused) -> None:
        trial = self._current(event.trial_id, event.incarnation)
        if trial is None or trial.state not in LIVE:
            return
        if trial.state is not TrialState.STARTING or self.is_draining:
            self._settle(trial, Outcome.PREEMPTED, event.why, unproven=())
            return
        self._move(trial, Cause.REFUSE)
        del self._live[trial.trial_id]
        self._going_on.pop(trial.trial_id, None)
        self._ledger.release(trial.atoms)
        trial.atoms = ()
        self._refused[trial.trial_id] = trial
        self._timer(
            TimerKind.RETRY, max(self.now, event.retry_at), f"the launch was refused: {event.why}", trial
        )

    # ---- checkpoints

    def _saved(self, event: CheckpointSaved) -> None:
        trial = self._current(event.trial_id, event.incarnation)
        if trial is None:
            return
        trial.heard_at = self.now
        self._costs.observe_save(event.save_time_s, in_background=event.blocked_s is not None)
        self._plan_drain()
        iteration = event.training_iteration
        if trial.restart_ref is not None and (
            trial.restart_ref.incarnation == event.incarnation
            and iteration <= trial.restart.training_iteration
        ):
            return  # word of it has come before, or a newer one is complete already
        trial.fruitless = 0
        ref = CheckpointRef(trial.trial_id, trial.incarnation, iteration)
        snapshot = trial.snapshot_at(iteration)
        keep_new(trial, ref, snapshot)
        if trial.state not in LIVE and trial.state is not TrialState.COMPLETED:
            trial.go_back()
        if snapshot.score is not None:
            self._compare_with_best(trial, iteration, snapshot.score)
        self._prune(trial)

    def _compare_with_best(self, trial: Trial, iteration: int, score: float) -> None:
        old = self.best
        than = better_than(old, trial.trial_id, iteration, score)
        if than is None:
            return
        metric = self._sign * score
        self.best = Best(trial.trial_id, trial.incarnation, iteration, metric, score, self.now)
        self._publish(f"{metric:.6g} at iteration {iteration}: {than}")
        if old is not None and old.trial_id != trial.trial_id:
            self._prune(self.trials[old.trial_id])

    def _save_failed(self, event: CheckpointFailed) -> None:
        trial = self._current(event.trial_id, event.incarnation)
        if trial is not None:
            trial.heard_at = self.now

    def _lost(self, event: CheckpointLost) -> None:
        trial = self._current(event.trial_id, event.incarnation)
        if trial is None:
            return
        trial.heard_at = self.now
        forget(trial, event.checkpoint)
        if trial.state in LIVE and not trial.incarnation_iteration:
            trial.go_back()

    def _publish(self, because: str) -> None:
        assert self.best is not None
        self._actions.append(PublishBest(because, checkpoint=self.best.checkpoint, metric=self.best.metric))

    def _prune(self, trial: Trial, because: str = "a newer one is complete, or the trial has ended") -> None:
        if trial.kept:
            for ref in superfluous(trial, self.best):
                self._actions.append(DeleteCheckpoint(because, checkpoint=ref))

    # ---- timers

    def _timer(self, kind: TimerKind, at: float | None, because: str, trial: Trial | None = None) -> None:
        self._actions.append(
            SetTimer(
                because,
                timer=kind,
                at=at,
                trial_id=None if trial is None else trial.trial_id,
                incarnation=None if trial is None else trial.incarnation,
            )
        )

    def _fired(self, event: TimerFired) -> None:
        kind = event.timer
        if kind is TimerKind.DEADLINE:
            self._deadline_fired()
            return
        if kind is TimerKind.DRAIN:
            self._drain_fired()
            return
        if event.trial_id is None or event.incarnation is None:
            return
        trial = self._current(event.trial_id, event.incarnation)
        if trial is None:
            return
        if kind is TimerKind.RETRY:
            if self._refused.pop(trial.trial_id, None) is not None:
                self._policy.trial_left(self, trial)
        elif trial.state in LIVE:
            self._limit_reached(trial, kind)

    def _limit_reached(self, trial: Trial, kind: TimerKind) -> None:
        timeouts = self.settings.timeouts
        if kind is TimerKind.START_TIMEOUT and not trial.contacted:
            why = f"it did not start within {trial.start_limit_s:.6g} s (does its script call hpcsched.trial()?)"
            self._kill(trial, why)
        elif kind is TimerKind.SILENCE_TIMEOUT and timeouts.silence_s is not None:
            due = trial.heard_at + timeouts.silence_s
            if trial.state is not TrialState.RUNNING:
                return  # it is leaving, and that has a limit of its own
            if self.now < due:
                self._timer(kind, due, f"it was heard of at {trial.heard_at:.6g} s", trial)
            else:
                never = " (does its script call trial.report()?)" if trial.incarnation_iteration == 0 else ""
                self._kill(trial, f"nothing was heard of it for {timeouts.silence_s:.6g} s{never}")
        elif kind is TimerKind.PREEMPT_GRACE and (trial.state is TrialState.PREEMPTING or trial.finishing):
            self._kill(trial, f"it did not leave within {trial.grace_s:.6g} s")
        elif kind is TimerKind.KILL_WAIT and trial.killing:
            self._settle(
                trial,
                Outcome.NODE_FAILED if trial.node_fault else Outcome.KILLED,
                f"its end was not confirmed within {timeouts.kill_wait_s:.6g} s",
                unproven=trial.atoms,
            )

    def _deadline_fired(self) -> None:
        limit = self._countdown.limit_s
        if limit is None:
            return
        if self.now < limit:
            self._timer(TimerKind.DEADLINE, limit, f"the deadline is at {limit:.6g} s")
            return
        self._time_is_up()

    def _drain_fired(self) -> None:
        countdown = self._countdown
        if countdown.deadline_s is None or countdown.drain_at is None or countdown.is_draining:
            return
        if self.now < countdown.drain_at:
            self._timer(TimerKind.DRAIN, countdown.drain_at, "the last checkpoints were planned anew")
            return
        left_s = countdown.deadline_s - self.now
        self._drain(f"{left_s:.6g} s are left and a last checkpoint takes {self._reserve_s():.6g} s")

    # ---- starts, and the end

    def _go_on(self) -> None:
        """Start what can start; finish when nothing can happen any more."""
        if not self._has_begun:
            return
        assert self._ledger.is_conserved(), "atoms were lost or made"
        if self._ending is not None:
            if not self._live:
                self._end(self._ending, self.why_ended)
            return
        if not self._countdown.is_draining:
            self._start_trials()
            self._ask_for_trials()
            for move in self._policy.idle_moves(self):
                self._carry_out(move)
        if not self._live and not self._refused:
            self._finish_if_over()

    def _start_trials(self) -> None:
        policy = self._policy
        while (choice := policy.next_start(self)) is not None:
            trial = self.trials[choice.trial_id]
            if isinstance(choice, Drop):
                self._drop(trial, choice.because)
                continue
            assert self.sizes.allows(choice.size), f"{choice.size} atoms are not an allowed size"
            promoted = trial.state is TrialState.PAUSED
            if promoted:
                self._move(trial, Cause.PROMOTE)
            if not self._deadline_allows(trial, choice.size):
                self._held_back[trial.trial_id] = trial
                continue
            placement = self._ledger.find(choice.size)
            assert placement is not None, f"{choice.size} atoms were given out, {self.num_free} are free"
            self.counts.promoted += promoted
            self._launch(trial, placement, choice.because)

    def _deadline_allows(self, trial: Trial | None, size: int) -> bool:
        """Can it start, do an iteration and (where trials save) save it before the deadline? None: a new trial."""
        left = self.time_left_s()
        if left is None:
            return True
        if self.is_draining:
            return False
        setup = self._costs.setup_s(size) or 0.0
        iteration = self._iteration_s(trial, size)
        if self.settings.save_at_deadline:
            iteration *= NEXT_ITERATION
        return left > 0.0 and setup + iteration + self._reserve_s() <= left

    def _iteration_s(self, trial: Trial | None, size: int) -> float:
        """What its next one may take there: by its last one, else (None: a new trial) by those of others; 0 before any."""
        speedup = self._speeds.at(size, self._speeds.span_now(trial, size))
        if trial is not None and trial.last_iter_s is not None and trial.ran_at:
            return trial.last_iter_s * self._speeds.at(trial.ran_at, trial.ran_over) / speedup
        return (self._costs.one_atom_iteration_s or 0.0) / speedup

    def _ask_for_trials(self) -> None:
        if self._num_requested or self.search_exhausted:
            return
        most = self.settings.num_trials
        missing = None if most is None else most - len(self.trials)
        if missing is not None and not self.settings.request_ahead:
            self._request(missing, f"all {most} configurations are asked for at the start")
            return
        if not self._ledger.num_free or not self._deadline_allows(None, 1):
            return
        # Whose launch was refused waits for as many atoms as it had: they are no newcomers', or an outage would fill the search with
        # trials that never began.
        num = self._policy.num_wanted(self) - sum(trial.last_num_atoms for trial in self._refused.values())
        if missing is not None:
            num = min(num, missing)
        if num > 0:
            self._request(num, f"{atoms_are(self._ledger.num_free)} free and nobody waits for them")

    def _finish_if_over(self) -> None:
        if self._num_requested:
            return
        why = self._policy.finished(self)
        if self._countdown.is_draining:
            why = "everybody has left before the deadline"
        elif why is None and self._held_back and self._ledger.num_free:
            why = "what is left would bring no result before the deadline"
        elif why is None and self._ledger.num_free and not self._deadline_allows(None, 1):
            why = "nothing that could start would bring a result before the deadline"
        elif why is None and self._ledger.num_free:
            why = "nothing that is left can be started"
        if why is not None:
            self._end(ExperimentState.FINISHED, why)

    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        ExperimentBegan: _began,
        ExperimentResumed: _resumed,
        MachineChanged: _machine_changed,
        TrialSubmitted: _submitted,
        SearchExhausted: _search_exhausted,
        TrialStarted: _started,
        ResultReported: _reported,
        CheckpointSaved: _saved,
        CheckpointFailed: _save_failed,
        CheckpointLost: _lost,
        TrialExited: _exited,
        LaunchRefused: _launch_refused,
        AtomsReturned: _atoms_returned,
        NodeDown: _node_down,
        NodeUp: _node_up,
        DeadlineChanged: _deadline_changed,
        AllocationEnding: _allocation_ending,
        TimerFired: _fired,
        TrialStopRequested: _stop_requested,
        ShutdownRequested: _shutdown,
    }


_MAY_MOVE_DEADLINE = frozenset({DeadlineChanged, ExperimentResumed, ExperimentBegan})
