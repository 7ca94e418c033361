"""A random, hostile world against the scheduler: what must hold whatever happens.

Each property names the fault that was put into the code once to see it fail.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hpcsched.core.enums import AtomState, ExperimentState, Outcome, TimerKind, TrialState
from hpcsched.core.events import (
    AllocationEnding,
    DeadlineChanged,
    ShutdownRequested,
    TrialStopRequested,
)
from hpcsched.core.settings import (
    AshaSettings,
    FifoSettings,
    HyperSchedSettings,
    RetrySettings,
    Settings,
    TimeoutSettings,
)
from hpcsched.topology.machine import AtomId
from tests.support.chaos import ChaosWorld, Ranks, negated, replayed, without_numbers
from tests.support.virtual import machine

POLICIES = [
    FifoSettings(),
    AshaSettings(),
    AshaSettings(stopping=True),
    HyperSchedSettings(cool_down=1),
    HyperSchedSettings(
        cool_down=0, entrance="reversible", keep_paused=True, protect_leader=True, shrink_pays=True
    ),
    HyperSchedSettings(cool_down=0, speculation=False, allocation="top", entrance="none"),
    HyperSchedSettings(cool_down=0, allocation="softmax", explore_fraction=0.5, keep_paused=True),
    HyperSchedSettings(cool_down=0, allocation="random", assume_linear=True, ignore_overhead=True),
]
PROBLEMS = [None, "missing", "nan", "inf"]


class Hostile(RuleBasedStateMachine):
    """The rules are the events; `ChaosWorld` holds what is true. Checked after each event:

    - conservation and the records (`Scheduler.check`). Fault tried: `Ledger.quarantine` that frees the atoms.
    - no atom in two placements, none on a node that is down. Fault tried: `_settle` that ignores `unproven`.
    - no checkpoint deleted that is needed. Fault tried: `superfluous` that forgets `restart_ref`.
    - allowed sizes, no trial twice, a reason for every action. (Faults that this finds only in longer runs have
      dialogues of their own in test_scheduler.)

    Checked at the end: it comes to an end (fault tried: LaunchRefused without its RETRY timer), replay is equal
    (fault tried: a policy with an unseeded `random.Random`), max and negated min decide alike (fault tried: scores
    without the sign).
    """

    @initialize(
        policy=st.sampled_from(POLICIES),
        multiple_of=st.sampled_from([1, 2]),
        num_nodes=st.integers(1, 3),
        gpus=st.integers(1, 4),
        deadline_s=st.sampled_from([None, 15.0, 60.0]),
        saves=st.booleans(),
        ahead=st.booleans(),
        window=st.sampled_from([1, 3]),
        limits=st.booleans(),
        num_trials=st.sampled_from([2, 4, 10]),
    )
    def begin(
        self,
        policy: Any,
        multiple_of: int,
        num_nodes: int,
        gpus: int,
        deadline_s: float | None,
        saves: bool,
        ahead: bool,
        window: int,
        limits: bool,
        num_trials: int,
    ) -> None:
        timeouts = (
            TimeoutSettings(
                start_s=10.0, silence_s=20.0, preempt_grace_s=5.0, kill_wait_s=2.0, deadline_margin_s=0.5
            )
            if limits
            else TimeoutSettings(
                start_s=None, silence_s=None, preempt_grace_s=None, kill_wait_s=None, deadline_margin_s=0.0
            )
        )
        self.nodes = [f"n{i}" for i in range(num_nodes)]
        self.world = ChaosWorld(
            Settings(
                policy=policy,
                metric_window=window,
                grace_period=1,
                max_iterations=9,
                reduction_factor=2,
                multiple_of=multiple_of,
                num_trials=num_trials,
                request_ahead=ahead,
                timeouts=timeouts,
                retries=RetrySettings(crashed=2),
                save_at_deadline=saves,
            ),
            machine(num_nodes, gpus),
            deadline_s,
        )

    def _some(self, number: int) -> Ranks | None:
        ranks = list(self.world.alive.values())
        return ranks[number % len(ranks)] if ranks else None

    numbers = st.integers(0, 30)

    @rule(give=st.sampled_from([True, True, True, False]))
    def the_sampler_answers(self, give: bool) -> None:
        self.world.answer(give)

    @rule(number=numbers)
    def ranks_come_up(self, number: int) -> None:
        if (ranks := self._some(number)) is not None:
            self.world.contact(ranks)

    @rule(number=numbers, tenths=st.integers(-5, 10), step=st.sampled_from([1, 1, 1, 1, 2, 4, 0, -1]))
    def a_result(self, number: int, tenths: int, step: int) -> None:
        if (ranks := self._some(number)) is not None:
            self.world.contact(ranks)
            self.world.report(ranks, tenths / 10, step)

    @rule(number=numbers, problem=st.sampled_from(PROBLEMS))
    def a_result_without_a_metric(self, number: int, problem: str | None) -> None:
        if (ranks := self._some(number)) is not None:
            self.world.report(ranks, None if problem != "inf" else math.inf, 1, problem)

    @rule(number=numbers)
    def a_save(self, number: int) -> None:
        if (ranks := self._some(number)) is not None:
            self.world.save(ranks)

    @rule(number=numbers, save=st.booleans())
    def it_leaves(self, number: int, save: bool) -> None:
        if (ranks := self._some(number)) is not None:
            self.world.leave(ranks, save=save)

    @rule(
        number=numbers,
        outcome=st.sampled_from(
            [
                Outcome.CRASHED,
                Outcome.OUT_OF_MEMORY,
                Outcome.NODE_FAILED,
                Outcome.LAUNCH_FAILED,
                Outcome.COMPLETED,
            ]
        ),
        unproven=st.booleans(),
    )
    def it_ends_otherwise(self, number: int, outcome: Outcome, unproven: bool) -> None:
        if (ranks := self._some(number)) is not None:
            self.world.end(ranks, outcome, unproven=unproven)

    @rule(number=numbers)
    def a_kill_works(self, number: int) -> None:
        ranks = self._some(number)
        if ranks is not None and ranks.is_killed:
            self.world.end(ranks, Outcome.KILLED)

    @rule(number=numbers)
    def a_launch_is_refused(self, number: int) -> None:
        starting = [ranks for ranks in self.world.alive.values() if not ranks.is_up]
        if starting:
            self.world.refuse(starting[number % len(starting)])

    @rule(number=numbers, by_exit=st.booleans())
    def silent_ranks_are_proven_gone(self, number: int, by_exit: bool) -> None:
        lost = list(self.world.lost.values())
        if lost:
            self.world.found(lost[number % len(lost)], by_exit=by_exit)

    @rule(number=numbers)
    def a_node_goes_down(self, number: int) -> None:
        self.world.node_down(self.nodes[number % len(self.nodes)])

    @rule(number=numbers)
    def a_node_comes_up(self, number: int) -> None:
        self.world.node_up(self.nodes[number % len(self.nodes)])

    @rule(number=numbers, back=st.booleans())
    def an_atom_is_set_aside(self, number: int, back: bool) -> None:
        if back:
            self.world.take_back()
        else:
            self.world.set_aside(AtomId(number % len(self.world.machine.atoms)))

    @rule(metrics=st.lists(st.sampled_from([0.1, 0.2, 0.4, 0.5, 0.7, 0.9, None]), min_size=1, max_size=5))
    def nothing_goes_wrong(self, metrics: list[float | None]) -> None:
        self.world.go_round(metrics)

    @rule(
        num=st.integers(2, 8), metrics=st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.9]), min_size=2, max_size=5)
    )
    def nothing_goes_wrong_for_a_while(self, num: int, metrics: list[float | None]) -> None:
        for _ in range(num):
            self.world.go_round(metrics)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def due_timers_fire(self) -> None:
        world = self.world
        for key in list(world.timers):
            timer = world.timers.get(key)
            if timer is not None and timer.at is not None and timer.at <= world.now:
                world.fire(key)

    @rule(number=numbers)
    def a_timer_fires(self, number: int) -> None:
        keys = [key for key in self.world.timers if key[0] not in {TimerKind.DEADLINE, TimerKind.DRAIN}]
        if keys:
            self.world.fire(keys[number % len(keys)])

    @rule(number=numbers)
    def a_user_stops_a_trial(self, number: int) -> None:
        if self.world.scheduler.trials and number < 8:
            trial = self.world.scheduler.trials[number % len(self.world.scheduler.trials)]
            self.world.send(TrialStopRequested(self.world.now, trial.trial_id))

    @rule(more=st.sampled_from([10.0, 30.0, 2.0]))
    def the_deadline_moves(self, more: float) -> None:
        if self.world.scheduler.deadline_s is not None:
            self.world.send(DeadlineChanged(self.world.now, self.world.now + more))

    @precondition(lambda self: len(self.world.events) > 15)
    @rule(really=st.sampled_from([True, False, False]))
    def the_driver_lives_again(self, really: bool) -> None:
        if really:
            self.world.resume()

    @precondition(lambda self: len(self.world.events) > 60)
    @rule(save=st.booleans())
    def it_is_suspended(self, save: bool) -> None:
        self.world.send(ShutdownRequested(self.world.now, save=save, suspend=True, why="the user asked"))

    @precondition(lambda self: len(self.world.events) > 60)
    @rule()
    def the_allocation_ends(self) -> None:
        self.world.send(AllocationEnding(self.world.now, at=self.world.now + 5.0))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.play_out()
        scheduler = world.scheduler
        assert scheduler.state in {ExperimentState.FINISHED, ExperimentState.FAILED}
        ended = {TrialState.STOPPED, TrialState.COMPLETED, TrialState.FAILED}
        assert all(trial.state in ended for trial in scheduler.trials)
        assert not any(
            scheduler.atom_state(atom.atom_id) in {AtomState.HELD, AtomState.RESERVED}
            for atom in world.machine.atoms
        )
        seconds = scheduler.atom_seconds()
        total = seconds.training + seconds.restart + seconds.idle + seconds.quarantined + seconds.down
        assert math.isclose(total, len(world.machine.atoms) * scheduler.now, rel_tol=1e-9, abs_tol=1e-6)
        assert replayed(world.settings, world.events) == world.actions
        turned, events = negated(world.settings, world.events)
        assert without_numbers(replayed(turned, events)) == without_numbers(world.actions)


TestHostile = Hostile.TestCase
TestHostile.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
