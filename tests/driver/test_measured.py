"""What a run says at its end of what it has measured, and that a later run can use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcsched.config.profile import read_profile
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import FifoSettings, ScalingSettings
from hpcsched.driver.measured import profile_document, scaling_note
from hpcsched.topology.span import Span
from tests.support.core import Talk, settings


def after_some_reports(scaling: ScalingSettings) -> Scheduler:
    talk = Talk(settings(FifoSettings(), scaling=scaling))
    talk.submit()
    talk.started(0, 2.0)
    for speedup in (1.7, 1.8, 1.9):
        talk.scheduler.measured.observe(2, Span.ISLAND, speedup)
    talk.scheduler.measured.observe(8, Span.SWITCH, 5.0)
    return talk.scheduler


@pytest.mark.parametrize(
    ("scaling", "word", "expected"),
    [
        (ScalingSettings(), "linear", [2.0, 8.0]),
        (ScalingSettings(assume={2: 1.5}), "a table", [1.5, 1.5]),
        (ScalingSettings(assume=None), "measured", [None, None]),
        # what the profile said, not what the reports have made of it
        (ScalingSettings(spans={"island": {2: 1.2}, "switch": {8: 3.0}}), "a profile", [1.2, 3.0]),
    ],
)
def test_what_was_measured_stands_beside_what_was_assumed(
    scaling: ScalingSettings, word: str, expected: list[float | None]
) -> None:
    note = scaling_note(after_some_reports(scaling), 9.0)
    assert (note.topic, note.time, note.data["assumed"]) == ("scaling", 9.0, word)
    assert [point["expected"] for point in note.data["measured"]] == expected
    assert [point["speedup"] for point in note.data["measured"]] == [1.8, 5.0]
    assert note.data["restart_s"] == {"1": 2.0}
    assert "2 atoms, span island: 1.80 times one atom" in note.text
    assert "(3 reports)" in note.text
    assert "2.00 s on 1" in note.text


def test_that_only_starts_from_spares_count_is_said() -> None:
    scheduler = Scheduler(settings(FifoSettings()))
    scheduler._costs.observe_setup(1, 9.0)
    assert scaling_note(scheduler, 1.0).text.endswith("a start took  9.00 s on 1 (p90, by atoms)")
    scheduler._costs.observe_setup(1, 0.5, warm=True)
    assert "0.50 s on 1 (p90, by atoms; those from a spare" in scaling_note(scheduler, 1.0).text


def test_it_is_a_profile_for_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile_document(after_some_reports(ScalingSettings()))))
    read = read_profile(file)
    assert read.spans == {"island": {1: 1.0, 2: 1.8}, "switch": {1: 1.0, 8: 5.0}}
    assert read.restart_s == {1: 2.0}
    assert Scheduler(settings(FifoSettings(), scaling=read)).scaling(8) == 5.0


def test_a_run_on_single_atoms_has_measured_no_scaling_and_says_so() -> None:
    scheduler = Scheduler(settings(FifoSettings()))
    assert profile_document(scheduler) is None
    assert "nothing was measured" in scaling_note(scheduler, 0.0).text
