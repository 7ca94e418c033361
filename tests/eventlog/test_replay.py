from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpcsched.core.actions import PreemptTrial
from hpcsched.core.settings import FifoSettings, Settings
from hpcsched.errors import JournalDamagedError, LogError, ReplayDiffersError
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header, Step
from hpcsched.eventlog.replay import replay
from tests.support.journals import rewrite, run_folder, write_segment
from tests.support.runs import Script, a_run, asha_settings, go_on

ROUGH = Script(crash=(1,), hang=(2,), nan=(3,))


@pytest.mark.parametrize("policy", ["hypersched", "asha"])
def test_every_event_of_a_run_is_answered_again_as_it_was(tmp_path: Path, policy: str) -> None:
    folder = a_run(tmp_path, settings=asha_settings() if policy == "asha" else None, script=ROUGH)
    steps = [record for record in read_journal(folder) if isinstance(record, Step)]
    result = replay(folder)
    assert result.num_events == len(steps) > 100
    assert result.num_actions == sum(len(step.actions) for step in steps) > 50


def test_the_events_of_several_lives_are_one_sequence(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    go_on(folder, at=8.0, script=Script(kill_at=15.0))
    go_on(folder, at=17.0)
    result = replay(folder)
    assert result.num_lives == 3
    assert result.num_events == sum(isinstance(record, Step) for record in read_journal(folder))


def test_the_first_difference_is_shown_with_both_sides(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    records = list(read_journal(folder))
    at, step, preempt = next(
        (k, record, action)
        for k, record in enumerate(records)
        if isinstance(record, Step)
        for action in record.actions
        if isinstance(action, PreemptTrial)
    )
    other = msgspec.structs.replace(preempt, because="somebody said so")
    changed = tuple(other if action is preempt else action for action in step.actions)
    rewrite(folder, 1, {at: msgspec.structs.replace(step, actions=changed)})
    with pytest.raises(ReplayDiffersError) as caught:
        replay(folder)
    message = str(caught.value)
    assert f"event {step.n} " in message
    assert type(step.event).__name__ in message
    log_line = next(line for line in message.splitlines() if "somebody said so" in line)
    assert log_line.startswith("!")
    assert "log:" in log_line
    assert any(preempt.because in line and "replay:" in line for line in message.splitlines())


@pytest.mark.parametrize(
    "more", [False, True], ids=["an action missing in the log", "an action too many in the log"]
)
def test_a_number_of_actions_that_differs_is_a_difference(tmp_path: Path, more: bool) -> None:
    folder = a_run(tmp_path)
    records = list(read_journal(folder))
    at, step = next(
        (k, record) for k, record in enumerate(records) if isinstance(record, Step) and record.actions
    )
    actions = (*step.actions, step.actions[0]) if more else step.actions[:-1]
    rewrite(folder, 1, {at: msgspec.structs.replace(step, actions=actions)})
    with pytest.raises(ReplayDiffersError, match=f"event {step.n} .*") as caught:
        replay(folder)
    assert "(nothing)" in str(caught.value)


def test_a_changed_event_is_found_by_what_follows_from_it(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    at, step = next(
        (k, record)
        for k, record in enumerate(read_journal(folder))
        if isinstance(record, Step) and type(record.event).__name__ == "ResultReported" and record.actions
    )
    event = msgspec.structs.replace(step.event, metric=-5.0)
    rewrite(folder, 1, {at: msgspec.structs.replace(step, event=event)})
    with pytest.raises(ReplayDiffersError):
        replay(folder)


def test_an_event_that_the_core_cannot_take_is_a_difference_and_no_traceback(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    at, step = next(
        (k, record)
        for k, record in enumerate(read_journal(folder))
        if isinstance(record, Step) and type(record.event).__name__ == "TrialSubmitted"
    )
    event = msgspec.structs.replace(step.event, trial_id=77)
    rewrite(folder, 1, {at: msgspec.structs.replace(step, event=event)})
    with pytest.raises(ReplayDiffersError, match="this core cannot take it"):
        replay(folder)


def test_a_life_with_other_settings_is_a_difference(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    go_on(folder, at=8.0)
    header = next(read_journal_of_life(folder, 2))
    rewrite(folder, 2, {0: msgspec.structs.replace(header, settings=Settings(policy=FifoSettings()))})
    with pytest.raises(ReplayDiffersError, match="life 2 has other settings"):
        replay(folder)


def read_journal_of_life(folder, life):  # type: ignore[no-untyped-def]  # a test's helper
    return (record for record in read_journal(folder) if isinstance(record, Header) and record.life == life)


def test_a_damaged_record_ends_the_replay_with_its_position(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    data = bytearray(folder.segment(1).read_bytes())
    data[len(data) // 2] ^= 1
    folder.segment(1).write_bytes(bytes(data))
    with pytest.raises(JournalDamagedError):
        replay(folder)


def test_a_journal_without_any_record_is_said_to_be_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, b"")
    with pytest.raises(LogError, match="no header yet"):
        replay(folder)
