from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.core.actions import PreemptTrial, StartTrial
from hpcsched.core.enums import TrialState
from hpcsched.core.events import CheckpointFailed, CheckpointSaved
from hpcsched.errors import InputError
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Step
from hpcsched.report.story import Story, tell, text_of
from hpcsched.runfolder import RunFolder
from tests.support.runs import Script, a_run, go_on


def story_of(folder: RunFolder, trial_id: int) -> Story:
    return tell(read_journal(folder), trial_id)


def test_each_decision_about_a_trial_is_told_with_its_logged_reason(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    for trial_id in range(12):
        told = {(line.time_s, line.because) for line in story_of(folder, trial_id).lines}
        for record in read_journal(folder):
            if isinstance(record, Step):
                for action in record.actions:
                    if isinstance(action, StartTrial | PreemptTrial) and action.trial_id == trial_id:
                        assert (record.event.time, action.because) in told


def test_the_story_of_a_trial_that_would_not_leave(tmp_path: Path) -> None:
    text = text_of(story_of(a_run(tmp_path, script=Script(hang=(2,))), 2))
    for part in (
        "started from scratch on 1 atom (n2:0)",
        "all ranks are up, 0.5 s after the start was decided",
        "asked to leave, to be paused",
        "below the cutoff",
        "did not leave in time",
        "is being killed",
        "in quarantine",
        "was killed",
    ):
        assert part in text, text
    assert "reported iterations 2 to" in text, "reports in between are one line"


def test_what_a_crashed_trial_wrote_cannot_steer_the_terminal(tmp_path: Path) -> None:
    text = text_of(story_of(a_run(tmp_path, script=Script(crash=(1,))), 1))
    assert "crashed" in text
    assert "ValueError: red <b>bold</b>" in text
    assert "\x1b" not in text


def test_a_waiting_trial_says_for_what(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=9.0))
    stories = [story_of(folder, trial_id) for trial_id in range(8)]
    paused = [story for story in stories if story.state is TrialState.PAUSED]
    assert paused
    for story in paused:
        assert "of 4 atoms there are" in story.now
        assert "below the cutoff" in story.now
    running = [story for story in stories if story.state is TrialState.RUNNING]
    assert running
    assert all("trains on" in story.now for story in running)


def test_a_trial_that_was_dropped_without_an_action_of_its_own_says_why(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    dropped = [
        line
        for trial_id in range(12)
        for line in story_of(folder, trial_id).lines
        if line.text == "became stopped"
    ]
    assert dropped
    assert all("the entrance has closed" in line.because or "left" in line.because for line in dropped)


def test_a_new_life_is_part_of_the_story(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    go_on(folder, at=8.0)
    assert any("new driver life" in line.text for line in story_of(folder, 1).lines)


def test_an_unknown_trial_is_an_input_error_that_says_which_there_are(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    with pytest.raises(InputError, match="there are 0 to 11"):
        story_of(folder, 99)


def test_saves_that_fail_one_after_the_other_are_two_lines(tmp_path: Path) -> None:
    records = list(read_journal(a_run(tmp_path)))
    place, step = next(
        (place, record)
        for place, record in enumerate(records)
        if isinstance(record, Step) and isinstance(record.event, CheckpointSaved)
    )
    saved = step.event
    assert isinstance(saved, CheckpointSaved)
    failures = [
        Step(
            n=step.n,
            event=CheckpointFailed(
                time=saved.time,
                trial_id=saved.trial_id,
                incarnation=saved.incarnation,
                training_iteration=iteration,
                why="No space left on device",
            ),
        )
        for iteration in range(41, 49)
    ]
    story = tell([*records[:place], *failures, *records[place:]], saved.trial_id)
    told = [line.text for line in story.lines if "could not save" in line.text]
    assert told == ["could not save iteration 41", "could not save 7 more, the last of iteration 48"]
    before = next(place for place, line in enumerate(story.lines) if "7 more" in line.text)
    assert story.lines[before + 1].text.startswith("saved iteration")
