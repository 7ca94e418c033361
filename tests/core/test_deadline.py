"""The deadline: last checkpoints, the drain, the end of an allocation, suspension. Case T26 as far as the core goes."""

from __future__ import annotations

import pytest

from hpcsched.core.enums import ExperimentState, Outcome, TimerKind
from hpcsched.core.events import (
    AllocationEnding,
    DeadlineChanged,
    ExperimentResumed,
    SearchExhausted,
    ShutdownRequested,
)
from hpcsched.core.settings import AshaSettings
from tests.support.core import LIMITS, Talk, settings


def saving(deadline_s: float | None = 100.0, *, atoms: int = 1, num: int = 1, save_s: float = 2.0) -> Talk:
    """Trials that save at the deadline (margin 1 s); one save of `save_s` has been measured at t = 1."""
    talk = Talk(settings(save_at_deadline=True, timeouts=LIMITS), atoms=atoms, deadline_s=deadline_s)
    for _ in range(num):
        talk.submit()
    for trial_id in range(num):
        talk.started(trial_id, 0.5)
    talk.now = 1.0
    talk.result(0, 1, 0.5)
    talk.saved(0, 1, took_s=save_s)
    return talk


def test_the_deadline_and_the_drain_are_timers_from_the_start() -> None:
    """No save measured yet: 2 % of 100 s, and the margin of 1 s."""
    talk = Talk(settings(save_at_deadline=True, timeouts=LIMITS), deadline_s=100.0)
    assert talk.timers() == {TimerKind.DEADLINE: 100.0, TimerKind.DRAIN: 97.0}


def test_the_drain_moves_when_saves_take_longer_than_thought() -> None:
    talk = saving(save_s=9.0)
    assert talk.timers()[TimerKind.DRAIN] == 90.0


@pytest.mark.parametrize(
    ("state_bytes", "drain_at"),
    [(0, 97.0), (10**6, 97.0), (3 * 10**9, 84.0), (10**12, 74.0)],
    ids=["not known", "small", "15 s at 200 MB/s", "at most a quarter of the deadline"],
)
def test_before_a_save_was_seen_the_size_of_the_state_says_what_one_may_take(
    state_bytes: int, drain_at: float
) -> None:
    talk = Talk(settings(save_at_deadline=True, timeouts=LIMITS), atoms=2, deadline_s=100.0)
    planned = talk.timers()[TimerKind.DRAIN]
    for trial_id, num_bytes in ((0, state_bytes), (1, 10)):
        talk.submit()
        talk.started(trial_id, 0.5, state_bytes=num_bytes)
        planned = talk.timers().get(TimerKind.DRAIN, planned)
    assert planned == drain_at
    talk.now = 1.0
    talk.result(0, 1, 0.5)
    talk.saved(0, 1, took_s=4.0)
    assert talk.timers()[TimerKind.DRAIN] == 95.0, "what was measured counts"


def test_who_is_asked_to_leave_before_a_save_was_seen_has_the_time_that_its_size_needs() -> None:
    """A grace of 10 s, and 15 s for what it has to write, twice."""
    talk = Talk(settings(save_at_deadline=True, timeouts=LIMITS), atoms=1, deadline_s=1000.0)
    talk.submit()
    talk.started(0, 0.5, state_bytes=3 * 10**9)
    talk.now = 10.0
    talk.send(ShutdownRequested(talk.now, save=True))
    assert talk.timers()[TimerKind.PREEMPT_GRACE] == 10.0 + 30.0


def test_without_saving_there_is_no_drain() -> None:
    assert Talk(settings(), deadline_s=100.0).timers() == {TimerKind.DEADLINE: 100.0}


@pytest.mark.parametrize(("now", "said"), [(86.0, []), (86.1, ["PreemptTrial 0.1 deadline"])])
def test_a_trial_leaves_when_one_more_iteration_and_its_save_would_not_fit(
    now: float, said: list[str]
) -> None:
    """An iteration of 10 s, times 1.1, a save of 2 s and the margin of 1 s: 14 s are needed."""
    talk = saving()
    talk.now = now
    assert talk.result(0, 2, 0.6, took_s=10.0) == said


def test_the_last_checkpoint_counts_and_the_experiment_ends_as_soon_as_all_have_left() -> None:
    talk = saving(atoms=2, num=2)
    talk.now = 97.0
    assert talk.fired(TimerKind.DRAIN) == ["PreemptTrial 0.1 deadline", "PreemptTrial 1.1 deadline"]
    talk.now = 98.0
    talk.result(1, 1, 0.9)
    assert talk.saved(1, 1) == ["PublishBest 1.1@1 0.9"]
    assert talk.exited(1) == []
    assert talk.exited(0) == ["FinishExperiment finished 1"]
    assert talk.because() == "everybody has left before the deadline"
    assert talk.state(0) == "stopped"


def test_what_is_starting_when_the_drain_begins_is_killed() -> None:
    talk = saving(atoms=2)
    talk.now = 96.0
    talk.scheduler._costs = type(talk.scheduler._costs)()  # it thinks that starts and saves cost nothing
    assert talk.submit() == ["StartTrial 1.1 on 1"]
    talk.now = 97.0
    assert talk.fired(TimerKind.DRAIN) == ["PreemptTrial 0.1 deadline", "KillTrial 1.1"]


def test_t26_results_and_checkpoints_after_the_deadline_do_not_count() -> None:
    talk = saving()
    talk.now = 100.0
    talk.result(0, 2, 0.8)
    talk.now = 100.001
    assert talk.saved(0, 2) == ["KillTrial 0.1", "FinishExperiment finished 0"]
    assert talk.scheduler.best.metric == 0.5  # type: ignore[union-attr]
    assert talk.result(0, 3, 0.99) == []
    assert talk.scheduler.best.saved_s <= 100.0  # type: ignore[union-attr]


def test_at_the_deadline_what_is_left_is_killed_and_it_finishes() -> None:
    talk = saving()
    talk.now = 100.0
    assert talk.fired(TimerKind.DEADLINE) == ["KillTrial 0.1", "FinishExperiment finished 0"]
    assert talk.because(1) == "the deadline of 100 s has passed"
    assert talk.scheduler.num_free == 1


def test_a_timer_that_fires_too_early_is_set_again() -> None:
    talk = saving()
    talk.now = 99.9
    assert talk.fired(TimerKind.DEADLINE) == []
    assert talk.timers() == {TimerKind.DEADLINE: 100.0}


def test_without_any_result_the_experiment_has_failed() -> None:
    talk = Talk(settings(), atoms=1, deadline_s=10.0)
    talk.submit()
    talk.now = 10.0
    assert talk.fired(TimerKind.DEADLINE) == ["KillTrial 0.1", "FinishExperiment failed"]
    assert "no trial has reported a metric" in talk.because(1)


@pytest.mark.parametrize(("now", "said"), [(84.0, ["StartTrial 1.1 on 0"]), (86.0, [])])
def test_nothing_starts_that_the_deadline_cannot_use(now: float, said: list[str]) -> None:
    """Set-up .5 s, an iteration of 10 s times 1.1, a save of 2 s, the margin of 1 s: 14.5 s."""
    talk = saving(atoms=2)
    talk.send(SearchExhausted(1.0))
    talk.result(0, 2, 0.6, took_s=10.0)
    talk.result(0, 3, 0.6, took_s=10.0)
    talk.now = now
    assert talk.submit() == [line.replace("on 0", "on 1") for line in said]


def test_a_later_deadline_brings_back_what_was_held_back() -> None:
    talk = saving(atoms=2)
    talk.result(0, 2, 0.6, took_s=10.0)
    talk.result(0, 3, 0.6, took_s=10.0)
    talk.now = 86.0
    assert talk.submit() == []
    assert talk.send(DeadlineChanged(86.0, 200.0)) == ["StartTrial 1.1 on 1"]
    assert talk.timers()[TimerKind.DEADLINE] == 200.0


def test_a_later_deadline_restarts_those_that_have_left_for_the_old_one() -> None:
    talk = saving()
    talk.now = 97.0
    talk.fired(TimerKind.DRAIN)
    talk.send(DeadlineChanged(97.5, 500.0))
    assert talk.exited(0) == ["StartTrial 0.2 on 0 from 1"]


def test_a_deadline_in_the_past_ends_it_at_once() -> None:
    talk = saving()
    assert talk.send(DeadlineChanged(50.0, 20.0)) == ["KillTrial 0.1", "FinishExperiment finished 0"]


def test_it_finishes_early_when_nothing_that_is_left_would_bring_a_result() -> None:
    talk = saving()
    talk.now = 96.0
    talk.result(0, 2, 0.6, took_s=40.0)
    assert talk.saved(0, 2) == ["PublishBest 0.1@2 0.6", "DeleteCheckpoint 0.1@1"]
    assert talk.exited(0) == ["FinishExperiment finished 0"]
    assert talk.because() == "what is left would bring no result before the deadline"


# ---- the allocation ends, shutdown


def test_an_allocation_that_ends_before_the_deadline_suspends() -> None:
    talk = saving(deadline_s=1000.0, atoms=2, num=2)
    assert talk.send(AllocationEnding(50.0, at=60.0)) == [
        "PreemptTrial 0.1 deadline",
        "PreemptTrial 1.1 deadline",
    ]
    assert talk.timers()[TimerKind.DEADLINE] == 60.0
    talk.exited(0)
    assert talk.exited(1, Outcome.CRASHED) == ["SuspendExperiment"]
    assert talk.scheduler.state is ExperimentState.SUSPENDED
    assert talk.state(0) == "pending"
    assert talk.scheduler.trials[1].crashes == 0, "an end that we wanted is nobody's fault"
    said = talk.send(ExperimentResumed(70.0, talk.machine, 1000.0))
    assert said == ["PublishBest 0.1@1 0.5", "StartTrial 0.2 on 0 from 1", "StartTrial 1.2 on 1"]


def test_an_allocation_that_ends_after_the_deadline_finishes() -> None:
    talk = saving()
    talk.send(AllocationEnding(50.0, at=101.0))
    assert talk.exited(0) == ["FinishExperiment finished 0"]


def test_when_the_allocation_is_over_nobody_waits_for_those_who_are_left() -> None:
    talk = saving(deadline_s=1000.0)
    talk.send(AllocationEnding(50.0, at=60.0))
    talk.now = 60.0
    assert talk.fired(TimerKind.DEADLINE) == ["KillTrial 0.1", "SuspendExperiment"]


def test_a_shutdown_saves_first_and_the_second_one_does_not_wait() -> None:
    talk = saving()
    assert talk.send(ShutdownRequested(5.0, save=True, why="Ctrl-C")) == ["PreemptTrial 0.1 deadline"]
    assert talk.send(ShutdownRequested(6.0, save=False, why="Ctrl-C")) == [
        "KillTrial 0.1",
        "FinishExperiment finished 0",
    ]


def test_a_suspended_trial_that_was_to_be_paused_is_paused() -> None:
    talk = Talk(settings(AshaSettings(), timeouts=LIMITS), atoms=1)
    talk.submit()
    talk.started(0)
    assert talk.result(0, 1, 0.5) == ["PreemptTrial 0.1 pause"]
    talk.send(ShutdownRequested(5.0, save=True, suspend=True))
    assert talk.leaves(0) == ["PublishBest 0.1@1 0.5", "SuspendExperiment"]
    assert talk.state(0) == "paused"
