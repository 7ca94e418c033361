"""Dialogues: an event, and exactly what the scheduler does about it."""

from __future__ import annotations

import msgspec
import pytest

from hpcsched.core.actions import CheckpointRef
from hpcsched.core.enums import AtomState, ExperimentState, Outcome, TimerKind, TrialState
from hpcsched.core.events import (
    AtomsReturned,
    CheckpointLost,
    ExperimentResumed,
    MachineChanged,
    NodeDown,
    NodeUp,
    ResultReported,
    SearchExhausted,
    TrialExited,
    TrialStopRequested,
)
from hpcsched.core.ids import TrialId
from hpcsched.core.settings import AshaSettings, FifoSettings, HyperSchedSettings, RetrySettings
from hpcsched.core.transitions import ENDED, LIVE, TRANSITIONS
from hpcsched.topology.machine import AtomId
from tests.support.core import LIMITS, Talk, settings
from tests.support.virtual import machine


def running(talk: Talk, num: int = 1) -> Talk:
    """The first `num` trials are submitted and up."""
    for _ in range(num):
        talk.submit()
    for trial_id in range(num):
        talk.started(trial_id, 0.5)
    return talk


# ---- asking and starting


def test_it_asks_for_as_many_configurations_as_atoms_are_free() -> None:
    talk = Talk(settings(), atoms=4)
    assert talk.began == ["RequestTrial 4"]
    assert talk.submit() == ["StartTrial 0.1 on 0"]
    assert talk.submit() == ["StartTrial 1.1 on 1"]
    assert talk.because() == "next in line and 3 atoms are free"


def test_it_asks_for_no_more_than_num_trials() -> None:
    talk = Talk(settings(num_trials=2), atoms=4)
    assert talk.began == ["RequestTrial 2"]
    talk.submit()
    assert talk.submit() == ["StartTrial 1.1 on 1"]
    assert talk.scheduler.search_exhausted


def test_all_configurations_can_be_asked_for_at_the_start() -> None:
    talk = Talk(settings(num_trials=50, request_ahead=False), atoms=2)
    assert talk.began == ["RequestTrial 50"]
    for _ in range(50):
        talk.submit()
    assert [talk.state(k) for k in (0, 1, 2, 49)] == ["starting", "starting", "pending", "pending"]


def test_a_new_life_of_the_driver_asks_again_for_what_was_not_answered() -> None:
    talk = Talk(settings(num_trials=5, request_ahead=False), atoms=2)
    talk.submit()
    assert talk.send(ExperimentResumed(3.0, talk.machine, None)) == ["StartTrial 0.2 on 0", "RequestTrial 4"]


def test_the_atoms_of_a_refused_launch_are_no_reason_to_ask_for_new_trials() -> None:
    """Else an outage of Slurm would fill the search with trials that never began."""
    talk = Talk(settings(), atoms=2)
    talk.submit()
    talk.submit()
    assert talk.refused(0, 9.0) == []
    assert talk.refused(1, 9.0) == []
    assert talk.exited(1) == []


def test_when_the_search_is_exhausted_and_everybody_has_ended_it_finishes() -> None:
    talk = running(Talk(settings(max_iterations=1), atoms=1))
    talk.result(0, 1, 0.7)
    assert talk.saved(0, 1) == ["PublishBest 0.1@1 0.7"]
    assert talk.exited(0, Outcome.COMPLETED) == ["RequestTrial 1"]
    assert talk.send(SearchExhausted(5.0)) == ["FinishExperiment finished 0"]
    assert talk.scheduler.state is ExperimentState.FINISHED
    assert talk.because() == "every trial has ended"
    assert talk.submit() == [], "after the end nothing counts"


# ---- results


def test_repeated_and_older_iterations_are_ignored() -> None:
    talk = running(Talk(settings(), atoms=1))
    talk.result(0, 3, 0.5)
    talk.result(0, 3, 0.9)
    talk.result(0, 2, 0.9)
    trial = talk.scheduler.trials[0]
    assert (trial.training_iteration, trial.score, trial.training_s) == (3, 0.5, 1.0)


def test_stale_incarnations_are_ignored() -> None:
    talk = running(Talk(settings(), atoms=1))
    talk.exited(0, Outcome.NODE_FAILED)
    assert talk.scheduler.trials[0].incarnation == 2
    talk.started(0)
    assert talk.result(0, 1, 0.9, incarnation=1) == []
    assert talk.saved(0, 1, incarnation=1) == []
    assert talk.exited(0, Outcome.CRASHED, incarnation=1) == []
    assert talk.state(0) == "running"
    assert talk.scheduler.trials[0].score is None
    assert talk.send(ResultReported(9.0, 7, 1, 1, 0.5, 1.0)) == [], "a trial that does not exist"


def test_the_score_is_the_mean_of_the_window_and_negated_for_min() -> None:
    talk = running(Talk(settings(mode="min", metric_window=3), atoms=1))
    for iteration, metric in enumerate([4.0, 2.0, 3.0, 1.0], start=1):
        talk.result(0, iteration, metric)
    assert talk.scheduler.trials[0].score == -2.0
    assert talk.saved(0, 4) == ["PublishBest 0.1@4 2"]


def test_a_nan_leaves_the_window_as_it_was() -> None:
    talk = running(Talk(settings(metric_window=2), atoms=1))
    talk.result(0, 1, 0.5)
    talk.result(0, 2, None, problem="nan")
    assert (talk.scheduler.trials[0].score, talk.scheduler.trials[0].problem) == (None, "nan")
    talk.result(0, 3, 0.7)
    assert talk.scheduler.trials[0].score == pytest.approx(0.6)


def test_a_result_before_the_first_contact_is_the_first_contact() -> None:
    talk = Talk(settings(), atoms=1)
    talk.submit()
    talk.now = 7.0
    talk.result(0, 1, 0.5)
    assert (talk.state(0), talk.scheduler.trials[0].setup_time_s) == ("running", 7.0)


def test_at_r_a_trial_leaves_by_itself_and_past_r_it_is_asked_to() -> None:
    talk = running(Talk(settings(max_iterations=3), atoms=1))
    talk.result(0, 2, 0.5)
    assert talk.result(0, 3, 0.6) == []
    assert talk.result(0, 4, 0.7) == ["PreemptTrial 0.1 stop"]
    assert talk.saved(0, 4) == ["PublishBest 0.1@4 0.7"]
    talk.exited(0)
    assert talk.state(0) == "completed"


def test_results_of_a_trial_that_leaves_are_judged_when_it_runs_again() -> None:
    """Two trials at rung 1 (r = 1, eta = 2): .9 and .1, median .5. Trial 1 is resized meanwhile: its .1 waits."""
    talk = Talk(
        settings(HyperSchedSettings(cool_down=0), grace_period=2, reduction_factor=2), atoms=2, deadline_s=1e6
    )
    running(talk)
    talk.send(SearchExhausted(1.0))
    assert talk.result(0, 1, 0.5) == ["PreemptTrial 0.1 resize"]
    assert talk.result(0, 2, 0.4) == []
    assert talk.leaves(0) == ["PublishBest 0.1@2 0.4", "StartTrial 0.2 on 0,1 from 2"]
    talk.started(0)
    bracket = talk.scheduler._policy._bracket  # type: ignore[attr-defined]
    assert bracket.rungs[-1].scores == {0: 0.4}


# ---- preemption


def paused(talk: Talk) -> Talk:
    """ASHA (eta 4): the first result at r = 1 is always paused."""
    running(talk)
    assert talk.result(0, 1, 0.5) == ["PreemptTrial 0.1 pause"]
    return talk


def test_a_paused_trial_frees_its_atoms_and_keeps_its_checkpoint() -> None:
    talk = paused(Talk(settings(AshaSettings()), atoms=1))
    assert talk.saved(0, 1) == ["PublishBest 0.1@1 0.5"]
    assert talk.exited(0) == ["RequestTrial 1"]
    assert talk.state(0) == "paused"
    assert talk.scheduler.trials[0].kept == [talk.scheduler.best.checkpoint]  # type: ignore[union-attr]


def test_without_a_checkpoint_it_goes_back_to_its_last_complete_one() -> None:
    talk = running(Talk(settings(AshaSettings(), grace_period=3), atoms=1))
    talk.result(0, 1, 0.4)
    talk.saved(0, 1)
    talk.result(0, 2, 0.45)
    talk.result(0, 3, 0.5)
    talk.exited(0)
    trial = talk.scheduler.trials[0]
    assert (trial.state, trial.training_iteration, trial.score, trial.training_s) == (
        TrialState.PAUSED,
        1,
        0.4,
        1.0,
    )


def test_a_trial_that_never_saves_anything_is_given_up_after_a_while() -> None:
    """Else HyperSched's last resort would start it, lose its iteration, and start it again for ever."""
    talk = Talk(settings(HyperSchedSettings(), reduction_factor=2, num_trials=2), atoms=1)
    talk.submit()
    talk.submit()
    talk.started(0)
    talk.result(0, 1, 0.9)
    talk.send(TrialStopRequested(1.0, 0))
    talk.exited(0)
    states = []
    for _ in range(5):
        if talk.state(1) == "starting":
            talk.started(1)
            talk.result(1, 1, 0.1)
            talk.result(1, 2, 0.1)
            talk.exited(1)
        states.append(talk.state(1))
    assert "failed" in states
    assert talk.scheduler.state is ExperimentState.FINISHED


def test_a_starting_trial_hears_at_its_first_contact_that_it_shall_leave() -> None:
    talk = Talk(settings(timeouts=LIMITS), atoms=1)
    talk.submit()
    assert talk.send(TrialStopRequested(1.0, 0)) == []
    assert talk.state(0) == "preempting"
    assert talk.started(0) == ["PreemptTrial 0.1 stop"]
    assert talk.timers() == {TimerKind.PREEMPT_GRACE: 11.0}
    talk.exited(0)
    assert talk.state(0) == "stopped"


@pytest.mark.parametrize("state", ["pending", "paused", "running"])
def test_a_user_can_stop_a_trial_in_every_state(state: str) -> None:
    talk = Talk(settings(AshaSettings(), request_ahead=False, num_trials=3), atoms=1)
    talk.submit()
    talk.submit()
    number = 1 if state == "pending" else 0
    talk.started(0)
    if state == "paused":
        talk.result(0, 1, 0.5)
        talk.leaves(0)
    assert talk.state(number) == state
    talk.send(TrialStopRequested(5.0, number))
    if state == "running":
        talk.exited(0)
    assert talk.state(number) == "stopped"


def test_a_trial_that_does_not_leave_is_killed_and_one_that_does_not_die_is_left_behind() -> None:
    talk = Talk(settings(timeouts=LIMITS), atoms=2)
    running(talk)
    talk.send(TrialStopRequested(1.0, 0))
    assert talk.timers() == {TimerKind.PREEMPT_GRACE: 11.0}
    talk.now = 11.0
    assert talk.fired(TimerKind.PREEMPT_GRACE, 0) == ["KillTrial 0.1"]
    assert talk.timers() == {TimerKind.KILL_WAIT: 16.0}
    talk.now = 16.0
    talk.fired(TimerKind.KILL_WAIT, 0)
    assert talk.state(0) == "stopped"
    assert talk.scheduler.atom_state(AtomId(0)) is AtomState.QUARANTINED
    assert talk.scheduler.holder(AtomId(0)) == 0
    talk.now = 20.0
    talk.exited(0, Outcome.KILLED, incarnation=1)
    assert talk.scheduler.atom_state(AtomId(0)) is AtomState.FREE


def test_a_trial_whose_iterations_and_saves_are_long_has_the_time_to_leave() -> None:
    talk = Talk(settings(timeouts=LIMITS), atoms=2)
    running(talk)
    talk.result(0, 1, 0.5, took_s=30.0)
    talk.saved(0, 1, took_s=20.0)
    talk.now = 40.0
    talk.send(TrialStopRequested(40.0, 0))
    assert talk.timers() == {TimerKind.PREEMPT_GRACE: 140.0}
    talk.now = 140.0
    talk.fired(TimerKind.PREEMPT_GRACE, 0)
    assert talk.because() == "it did not leave within 100 s"


def test_a_silent_trial_is_killed_and_goes_on_elsewhere() -> None:
    talk = Talk(settings(timeouts=LIMITS), atoms=2)
    running(talk)
    assert talk.timers() == {TimerKind.SILENCE_TIMEOUT: 100.0}
    talk.now = 30.0
    talk.result(0, 1, 0.5)
    talk.saved(0, 1)
    talk.now = 100.0
    assert talk.fired(TimerKind.SILENCE_TIMEOUT, 0) == []
    assert talk.timers() == {TimerKind.SILENCE_TIMEOUT: 130.0}, "it was heard of at 30"
    talk.now = 130.0
    assert talk.fired(TimerKind.SILENCE_TIMEOUT, 0) == ["KillTrial 0.1"]
    talk.now = 135.0
    assert talk.fired(TimerKind.KILL_WAIT, 0) == ["StartTrial 0.2 on 1 from 1"]
    talk.exited(0, Outcome.KILLED, incarnation=1)
    assert talk.state(0) == "starting", "the old incarnation's word changes nothing but its atoms"


def test_a_launch_that_takes_too_long_is_killed() -> None:
    talk = Talk(settings(timeouts=LIMITS), atoms=1)
    talk.submit()
    assert talk.timers() == {TimerKind.START_TIMEOUT: 60.0}
    talk.now = 60.0
    assert talk.fired(TimerKind.START_TIMEOUT, 0) == ["KillTrial 0.1"]
    assert talk.exited(0, Outcome.KILLED) == ["StartTrial 0.2 on 0"]


def test_a_start_that_restores_has_twice_as_long_more_as_a_save_takes() -> None:
    """Seventy gigabytes are read as slowly as they were written."""
    talk = running(Talk(settings(timeouts=LIMITS), atoms=1))
    talk.result(0, 1, 0.5)
    talk.saved(0, 1, took_s=200.0)
    assert talk.exited(0, Outcome.NODE_FAILED) == ["StartTrial 0.2 on 0 from 1"]
    assert talk.timers()[TimerKind.START_TIMEOUT] == talk.now + 60.0 + 400.0
    talk.now += 460.0
    assert talk.fired(TimerKind.START_TIMEOUT, 0) == ["KillTrial 0.2"]
    assert talk.because() == "it did not start within 460 s (does its script call hpcsched.trial()?)"


# ---- failures and retries


def test_a_crash_goes_back_to_the_checkpoint_and_the_second_one_fails() -> None:
    talk = running(Talk(settings(retries=RetrySettings(crashed=1)), atoms=1))
    talk.result(0, 1, 0.5)
    talk.saved(0, 1)
    talk.result(0, 2, 0.6)
    assert talk.exited(0, Outcome.CRASHED) == ["StartTrial 0.2 on 0 from 1"]
    trial = talk.scheduler.trials[0]
    assert (trial.training_iteration, trial.score) == (1, 0.5)
    talk.started(0)
    talk.exited(0, Outcome.OUT_OF_MEMORY)
    assert talk.state(0) == "failed"
    assert talk.scheduler.counts.failed == 1


def test_lost_nodes_and_failed_launches_have_limits_of_their_own() -> None:
    talk = running(Talk(settings(retries=RetrySettings(crashed=0, node_failed=2, launch_failed=2)), atoms=1))
    for outcome in [Outcome.NODE_FAILED, Outcome.LAUNCH_FAILED, Outcome.NODE_FAILED, Outcome.LAUNCH_FAILED]:
        talk.exited(0, outcome)
        assert talk.state(0) == "starting"
    talk.exited(0, Outcome.LAUNCH_FAILED)
    assert talk.state(0) == "failed"


def test_a_crash_on_a_node_that_is_down_is_not_the_trials_fault() -> None:
    talk = running(Talk(settings(retries=RetrySettings(crashed=0)), atoms=machine(2, 1)))
    assert talk.send(NodeDown(1.0, "n0")) == ["KillTrial 0.1"]
    assert talk.exited(0, Outcome.CRASHED) == ["StartTrial 0.2 on 1"]
    assert talk.scheduler.atom_state(AtomId(0)) is AtomState.DOWN
    talk.send(NodeUp(2.0, "n0"))
    assert talk.scheduler.atom_state(AtomId(0)) is AtomState.FREE


def test_the_exit_may_come_before_the_word_of_the_node() -> None:
    talk = running(Talk(settings(), atoms=machine(2, 1)))
    assert talk.exited(0, Outcome.NODE_FAILED, unproven=[0]) == ["StartTrial 0.2 on 1"]
    assert talk.scheduler.atom_state(AtomId(0)) is AtomState.QUARANTINED
    talk.send(NodeDown(1.0, "n0"))
    assert talk.scheduler.atom_state(AtomId(0)) is AtomState.QUARANTINED
    talk.send(AtomsReturned(2.0, (AtomId(0),)))
    assert talk.scheduler.atom_state(AtomId(0)) is AtomState.DOWN
    talk.send(NodeUp(3.0, "n0"))
    assert talk.scheduler.atom_state(AtomId(0)) is AtomState.FREE
    assert talk.send(AtomsReturned(4.0, (AtomId(0),))) == [], "twice is as once"


def test_an_atom_that_is_set_aside_is_not_given_out_until_it_comes_back() -> None:
    talk = Talk(settings(), atoms=2)
    talk.send(MachineChanged(0.0, down=(AtomId(0),), why="a stranger's memory is on it"))
    assert talk.submit() == ["StartTrial 0.1 on 1"]
    assert talk.scheduler.num_atoms == 1
    talk.submit()
    assert talk.send(MachineChanged(1.0, up=(AtomId(0),))) == ["StartTrial 1.1 on 0"]


def test_a_refused_launch_is_tried_again_later_and_nobody_is_blamed() -> None:
    talk = Talk(settings(timeouts=LIMITS, num_trials=2), atoms=1)
    talk.submit()
    talk.submit()
    assert talk.refused(0, 5.0) == ["StartTrial 1.1 on 0"], "the atom goes to the next one meanwhile"
    assert talk.timers()[TimerKind.RETRY] == 5.0
    assert talk.state(0) == "pending"
    talk.now = 5.0
    assert talk.fired(TimerKind.RETRY, 0) == []
    talk.started(1)
    talk.send(TrialStopRequested(6.0, 1))
    assert talk.exited(1) == ["StartTrial 0.2 on 0"]
    trial = talk.scheduler.trials[0]
    assert (trial.crashes, trial.launch_failures, trial.node_failures) == (0, 0, 0)


def test_the_experiment_fails_when_the_first_trials_all_crash_before_a_report() -> None:
    talk = running(Talk(settings(retries=RetrySettings(crashed=0, fail_fast=2)), atoms=2), 2)
    talk.exited(0, Outcome.CRASHED, why="no such module")
    assert talk.exited(1, Outcome.CRASHED, why="no such module") == ["FinishExperiment failed"]
    assert "the first 2 trials all failed" in talk.because()
    assert "no such module" in talk.because()


def test_one_report_is_enough_to_go_on() -> None:
    talk = running(Talk(settings(retries=RetrySettings(crashed=0, fail_fast=2)), atoms=3), 3)
    talk.result(2, 1, 0.1)
    talk.exited(0, Outcome.CRASHED)
    talk.exited(1, Outcome.CRASHED)
    assert talk.scheduler.state is ExperimentState.RUNNING


def test_trials_that_end_without_a_word_count_as_crashed() -> None:
    talk = running(Talk(settings(retries=RetrySettings(crashed=0, fail_fast=2)), atoms=2), 2)
    talk.exited(0, Outcome.COMPLETED)
    assert talk.state(0) == "failed"
    assert talk.exited(1, Outcome.COMPLETED)[-1] == "FinishExperiment failed"
    assert "without a single report" in talk.because(-1)


def test_a_metric_that_nobody_ever_reports_fails_the_experiment() -> None:
    talk = running(Talk(settings(max_iterations=1, retries=RetrySettings(fail_fast=2)), atoms=2), 2)
    for trial_id in (0, 1):
        talk.result(trial_id, 1, None, problem="missing")
        talk.saved(trial_id, 1)
        said = talk.exited(trial_id, Outcome.COMPLETED)
    assert said == ["FinishExperiment failed"]
    assert "is it the name that the script reports?" in talk.because()


# ---- resizes


def growing(atoms: int = 4, **changes: object) -> Talk:
    """One trial at one atom of n that has just been asked to leave, to grow onto all of them."""
    options = HyperSchedSettings(cool_down=0)
    talk = Talk(settings(options, **changes), atoms=atoms, deadline_s=1000.0)
    running(talk)
    talk.send(SearchExhausted(1.0))
    assert talk.result(0, 1, 0.5) == ["PreemptTrial 0.1 resize"]
    return talk


def test_a_resize_reserves_its_atoms_when_it_is_decided() -> None:
    talk = growing()
    states = [talk.scheduler.atom_state(AtomId(k)) for k in range(4)]
    assert states == [AtomState.HELD, AtomState.RESERVED, AtomState.RESERVED, AtomState.RESERVED]
    assert talk.leaves(0) == ["PublishBest 0.1@1 0.5", "StartTrial 0.2 on 0,1,2,3 from 1"]
    assert talk.scheduler.counts.resized_up == 1
    assert "1 -> 4 atoms pays" in talk.raw[-1].because


def test_a_crash_on_the_way_to_a_resize_still_gets_its_atoms() -> None:
    talk = growing()
    assert talk.exited(0, Outcome.CRASHED) == ["StartTrial 0.2 on 0,1,2,3"]


def test_a_reserved_atom_that_goes_down_changes_the_plan() -> None:
    talk = growing()
    talk.send(MachineChanged(2.0, down=(AtomId(3),)))
    assert talk.saved(0, 1) == ["PublishBest 0.1@1 0.5"]
    assert talk.exited(0) == ["StartTrial 0.2 on 0,1,2 from 1"]


def test_an_own_atom_that_is_set_aside_on_the_way_to_a_resize_is_not_used_again() -> None:
    """Fault tried: `_settle` that asks only for silent nodes, not whether the atoms are still usable."""
    talk = growing()
    talk.send(MachineChanged(2.0, down=(AtomId(0),)))
    assert talk.exited(0) == ["StartTrial 0.2 on 1,2,3"]


def test_an_interrupted_trial_takes_an_allowed_size_of_what_is_left() -> None:
    """Four atoms wanted, three are up, sizes are 1, 2, 4. Fault tried: `next_interrupted` without `sizes.floor`."""
    talk = growing(multiple_of=2)
    talk.leaves(0)
    assert talk.scheduler.trials[0].num_atoms == 4
    talk.send(MachineChanged(2.0, down=(AtomId(3),)))
    assert talk.exited(0, Outcome.NODE_FAILED) == ["StartTrial 0.3 on 0,1 from 1"]


def test_a_silent_node_changes_the_plan() -> None:
    talk = growing()
    assert talk.exited(0, unproven=[0]) == ["StartTrial 0.2 on 1,2,3"]


def test_a_user_stop_on_the_way_to_a_resize_gives_the_reserved_atoms_back() -> None:
    talk = growing()
    talk.send(TrialStopRequested(2.0, 0))
    assert talk.scheduler.num_free == 3
    talk.exited(0)
    assert (talk.state(0), talk.scheduler.num_free) == ("stopped", 4)


def test_a_refused_launch_after_a_resize_wants_its_new_size_again() -> None:
    talk = growing()
    talk.leaves(0)
    talk.refused(0, 9.0)
    talk.now = 9.0
    assert talk.fired(TimerKind.RETRY, 0) == ["StartTrial 0.3 on 0,1,2,3 from 1"]


# ---- checkpoints


def test_the_best_is_published_when_a_complete_checkpoint_beats_it() -> None:
    talk = running(Talk(settings(), atoms=2), 2)
    talk.result(0, 1, 0.5)
    assert talk.saved(0, 1) == ["PublishBest 0.1@1 0.5"]
    assert talk.because() == "0.5 at iteration 1: there was none"
    talk.result(1, 1, 0.4)
    assert talk.saved(1, 1) == []
    talk.result(1, 2, 0.8)
    assert talk.scheduler.best.trial_id == 0, "no checkpoint, no best"  # type: ignore[union-attr]
    assert talk.saved(1, 2) == ["PublishBest 1.1@2 0.8", "DeleteCheckpoint 1.1@1"]
    assert talk.because() == "0.8 at iteration 2: better than 0.5 of trial 0"


def test_of_two_equally_good_checkpoints_of_a_trial_the_one_trained_further_is_the_best() -> None:
    """The promise is "trained as far as it can be"; another trial that is only as good does not replace it."""
    talk = running(Talk(settings(), atoms=2), 2)
    talk.result(0, 1, 0.9)
    talk.saved(0, 1)
    talk.result(0, 2, 0.9)
    assert talk.saved(0, 2) == ["PublishBest 0.1@2 0.9", "DeleteCheckpoint 0.1@1"]
    assert talk.because() == "0.9 at iteration 2: as good as at iteration 1, and trained further"
    talk.result(1, 3, 0.9)
    assert talk.saved(1, 3) == []


def test_a_checkpoint_has_the_score_of_its_own_iteration() -> None:
    """A background save is complete when later results are in already."""
    talk = running(Talk(settings(), atoms=1))
    talk.result(0, 1, 0.9)
    talk.result(0, 2, 0.3)
    assert talk.saved(0, 1) == ["PublishBest 0.1@1 0.9"]


def test_latest_and_best_are_kept_and_the_rest_goes() -> None:
    talk = running(Talk(settings(), atoms=1))
    said = []
    for iteration, metric in enumerate([0.5, 0.9, 0.4, 0.3], start=1):
        talk.result(0, iteration, metric)
        said += talk.saved(0, iteration)
    assert said == [
        "PublishBest 0.1@1 0.5",
        "PublishBest 0.1@2 0.9", "DeleteCheckpoint 0.1@1",
        "DeleteCheckpoint 0.1@3",
    ]  # fmt: skip


def test_what_an_incarnation_starts_from_is_not_deleted_under_its_feet() -> None:
    talk = running(Talk(settings(), atoms=2), 2)
    talk.result(0, 1, 0.5)
    talk.saved(0, 1)
    talk.result(0, 2, 0.1)
    talk.saved(0, 2)
    assert talk.exited(0, Outcome.CRASHED) == ["StartTrial 0.2 on 0 from 2"]
    talk.result(1, 1, 0.9)
    assert talk.saved(1, 1) == ["PublishBest 1.1@1 0.9"]
    talk.started(0)
    talk.result(0, 3, 0.2)
    assert talk.saved(0, 3) == ["DeleteCheckpoint 0.1@2"]


def test_a_stopped_trial_leaves_nothing_but_the_published_best() -> None:
    talk = running(Talk(settings(), atoms=2), 2)
    for trial_id, metric in [(0, 0.9), (1, 0.5)]:
        talk.result(trial_id, 1, metric)
        talk.saved(trial_id, 1)
        talk.send(TrialStopRequested(1.0, trial_id))
    assert [a for a in talk.exited(0) if a.startswith("Delete")] == []
    assert [a for a in talk.exited(1) if a.startswith("Delete")] == ["DeleteCheckpoint 1.1@1"]
    talk.submit()
    talk.started(2)
    talk.result(2, 1, 0.95)
    assert talk.saved(2, 1) == ["PublishBest 2.1@1 0.95", "DeleteCheckpoint 0.1@1"]


def test_the_last_checkpoint_of_a_completed_trial_may_come_after_its_exit() -> None:
    talk = running(Talk(settings(max_iterations=1), atoms=1))
    talk.result(0, 1, 0.9)
    talk.exited(0, Outcome.COMPLETED)
    assert talk.saved(0, 1) == ["PublishBest 0.1@1 0.9"]


# ---- a new life


def test_after_a_resume_everybody_goes_on_from_the_last_checkpoint_on_another_machine() -> None:
    talk = running(Talk(settings(num_trials=2, timeouts=LIMITS), atoms=2, deadline_s=500.0), 2)
    talk.result(0, 1, 0.5)
    talk.saved(0, 1)
    talk.result(1, 1, 0.4)
    said = talk.send(ExperimentResumed(100.0, machine(1, 1), 600.0))
    assert said == ["PublishBest 0.1@1 0.5", "StartTrial 0.2 on 0 from 1"]
    assert talk.timers()[TimerKind.DEADLINE] == 600.0
    assert (talk.state(1), talk.scheduler.trials[1].training_iteration) == ("pending", 0)
    assert talk.result(1, 2, 0.9, incarnation=1) == [], "the old life's word"


def test_a_resume_on_the_way_to_a_resize_starts_on_the_new_machine_only() -> None:
    """Found by tests.faults.driver_kill: the resized trial was launched on the old ledger, and its atoms given out again."""
    talk = growing()
    talk.saved(0, 1)
    said = talk.send(ExperimentResumed(2.0, machine(1, 2), 1000.0))
    starts = [line for line in said if line.startswith("StartTrial")]
    assert starts == ["StartTrial 0.2 on 0,1 from 1"]
    held = [atom for atom in range(2) if talk.scheduler.atom_state(AtomId(atom)) is AtomState.HELD]
    assert held == [0, 1]


def test_a_resume_on_a_machine_of_single_devices_goes_on_with_trials_of_one_atom() -> None:
    talk = growing()
    talk.saved(0, 1)
    single = msgspec.structs.replace(machine(1, 2), max_trial_atoms=1)
    said = talk.send(ExperimentResumed(2.0, single, 1000.0))
    assert next(line for line in said if line.startswith("StartTrial")) == "StartTrial 0.2 on 0 from 1"
    talk.started(0)
    talk.result(0, 2, 0.9)
    assert len(talk.scheduler.trials[0].atoms) == 1, "nobody grows"
    talk.send(ExperimentResumed(talk.now, machine(1, 2), 1000.0))
    assert talk.scheduler.sizes.allows(2), "on another machine they may again"


def test_a_resume_after_the_deadline_ends_with_that_as_its_reason() -> None:
    talk = running(Talk(settings(num_trials=2, timeouts=LIMITS), atoms=2, deadline_s=500.0), 2)
    talk.result(0, 1, 0.5)
    talk.saved(0, 1)
    said = talk.send(ExperimentResumed(600.0, machine(1, 2), 500.0))
    assert said == ["PublishBest 0.1@1 0.5", "FinishExperiment finished 0"]
    assert talk.scheduler.why_ended == "the deadline of 500 s has passed"


def test_a_resume_after_the_end_says_the_end_again() -> None:
    talk = running(Talk(settings(max_iterations=1, num_trials=1), atoms=1))
    talk.result(0, 1, 0.5)
    talk.saved(0, 1)
    talk.exited(0, Outcome.COMPLETED)
    assert talk.send(ExperimentResumed(9.0, talk.machine, None)) == ["FinishExperiment finished 0"]


# ---- accounts and the table


def test_atom_seconds_add_up_and_say_where_the_atoms_were() -> None:
    """Two atoms for 10 s: trial 0 starts for 2, trains for 5, is saved and gone; quarantine from 7 on."""
    talk = Talk(settings(num_trials=1), atoms=2)
    talk.submit()
    talk.now = 2.0
    talk.started(0)
    talk.now = 7.0
    talk.result(0, 1, 0.5)
    talk.exited(0, Outcome.CRASHED, unproven=[0])
    seconds = talk.scheduler.atom_seconds(10.0)
    assert (seconds.restart, seconds.training, seconds.idle, seconds.quarantined) == (
        2.0 + 3.0,
        5.0,
        7.0,
        3.0,
    )


def test_nothing_leads_out_of_an_end_and_every_state_is_in_the_table() -> None:
    assert not [key for key in TRANSITIONS if key[0] in ENDED]
    assert {state for state, _ in TRANSITIONS} | ENDED == set(TrialState)
    assert set(TRANSITIONS.values()) == set(TrialState)
    assert all(
        (state, cause) in TRANSITIONS for state in LIVE for cause in ("kill", "restart", "give_up", "finish")
    )


def test_what_the_journal_holds_gives_the_same_actions_again() -> None:
    """Events and actions survive their encoding: replay works on decoded ones."""
    from hpcsched.core.actions import Action
    from hpcsched.core.events import Event

    talk = growing()
    talk.leaves(0)
    encoded = msgspec.json.encode(talk.raw)
    assert msgspec.json.decode(encoded, type=list[Action]) == talk.raw
    event = TrialExited(1.0, 0, 1, Outcome.PREEMPTED, "why", (AtomId(1),))  # type: ignore[arg-type]
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_fifo_never_stops_anybody_early() -> None:
    talk = running(Talk(settings(FifoSettings()), atoms=2), 2)
    assert [talk.result(0, k, 0.0) for k in range(1, 100)] == [[]] * 99


def test_a_lost_checkpoint_leaves_the_next_older_one_and_then_nothing() -> None:
    talk = running(Talk(settings(retries=RetrySettings(crashed=9)), atoms=1))
    for iteration, metric in ((1, 0.5), (2, 0.9), (3, 0.7)):
        talk.result(0, iteration, metric)
        talk.saved(0, iteration)
    trial = talk.scheduler.trials[0]
    best, latest = trial.kept
    assert (best.training_iteration, latest.training_iteration) == (2, 3)
    assert talk.exited(0, Outcome.CRASHED) == ["StartTrial 0.2 on 0 from 3"]

    def lost(ref: CheckpointRef) -> list[str]:
        return talk.send(
            CheckpointLost(talk.now, TrialId(0), trial.incarnation, checkpoint=ref, why="deleted by hand")
        )

    assert lost(latest) == []
    assert (trial.training_iteration, trial.score, trial.restart_ref) == (2, 0.9, best)
    assert lost(best) == []
    assert (trial.training_iteration, trial.score, trial.restart_ref, trial.kept) == (0, None, None, [])
    talk.started(0)
    talk.result(0, 1, 0.4)
    assert trial.training_iteration == 1
    assert talk.exited(0, Outcome.CRASHED) == ["StartTrial 0.3 on 0"], "there is nothing to go back to"


def test_a_lost_best_of_a_trial_is_its_best_no_more() -> None:
    talk = running(Talk(settings(), atoms=1))
    for iteration, metric in ((1, 0.9), (2, 0.5)):
        talk.result(0, iteration, metric)
        talk.saved(0, iteration)
    trial = talk.scheduler.trials[0]
    best = trial.best_kept
    assert best is not None
    talk.send(CheckpointLost(talk.now, TrialId(0), trial.incarnation, checkpoint=best, why="gone"))
    assert (trial.best_kept, trial.training_iteration) == (None, 2)
    talk.result(0, 3, 0.6)
    talk.saved(0, 3)
    assert trial.best_kept is not None
    assert trial.best_kept.training_iteration == 3
