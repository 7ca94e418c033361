"""What a run writes while it runs."""

from __future__ import annotations

from hpcsched.core import events as ev
from hpcsched.core.enums import Outcome
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.driver.screen import clean
from hpcsched.driver.story import FailedSaves

ONE, OTHER, FIRST = TrialId(1), TrialId(2), Incarnation(1)


def failed(iteration: int, trial_id: TrialId = ONE) -> ev.CheckpointFailed:
    return ev.CheckpointFailed(
        time=1.0, trial_id=trial_id, incarnation=FIRST, training_iteration=iteration, why="the disk is full"
    )


def saved(iteration: int) -> ev.CheckpointSaved:
    return ev.CheckpointSaved(
        time=1.0, trial_id=ONE, incarnation=FIRST, training_iteration=iteration, save_time_s=0.1
    )


def test_saves_that_fail_in_a_row_are_the_first_and_the_end() -> None:
    saves = FailedSaves()
    assert saves.line(failed(5), clean) == "trial 1: checkpoint 5 failed: the disk is full"
    assert [saves.line(failed(iteration), clean) for iteration in range(6, 11)] == [None] * 5
    assert saves.line(failed(5, OTHER), clean) == "trial 2: checkpoint 5 failed: the disk is full"
    assert saves.line(saved(11), clean) == "trial 1: checkpoint 11 is complete, after 6 that failed"
    assert saves.line(saved(12), clean) is None
    assert saves.line(failed(13), clean) is not None, "a new failure is news"


def test_a_trial_that_ends_with_failed_saves_says_how_many() -> None:
    saves = FailedSaves()
    exited = ev.TrialExited(
        time=2.0, trial_id=ONE, incarnation=FIRST, outcome=Outcome.PREEMPTED, why="", unproven=()
    )
    for iteration in (5, 6, 7):
        saves.line(failed(iteration), clean)
    assert saves.line(exited, clean) == "trial 1: its last 3 checkpoints failed"
    assert saves.line(exited, clean) is None
