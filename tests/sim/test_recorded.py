"""A finished run's own log as a workload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from hpcsched.core.actions import Action
from hpcsched.core.events import Event
from hpcsched.core.settings import AshaSettings, FifoSettings, HyperSchedSettings, ScalingSettings, Settings
from hpcsched.errors import InputError, RunFolderError
from hpcsched.eventlog.journal import JournalWriter
from hpcsched.eventlog.records import Header, Step
from hpcsched.runfolder import RunFolder
from hpcsched.sim.paper import PaperWorkload
from hpcsched.sim.recorded import Observation, RecordedRunWorkload, load_run, observed_scaling, records_of
from hpcsched.sim.scaling import Throughput
from hpcsched.sim.simulate import SimulatedRun, simulate
from hpcsched.sim.world import WorldSettings
from tests.support.simulated import paper_settings


def record_run(folder: Path, settings: Settings, *, num_atoms: int, deadline_s: float) -> SimulatedRun:
    """A run whose journal is written by the journal's own writer."""
    run_folder = RunFolder(folder)
    run_folder.journal.mkdir(parents=True)
    header = Header(1, "", "recorded", "mean_accuracy", settings, began_at=0.0)
    writer = JournalWriter(run_folder, header)
    number = 0

    def observe(event: Event, actions: Sequence[Action]) -> None:
        nonlocal number
        number += 1
        writer.append(Step(number, event, tuple(actions)))

    run = simulate(
        settings,
        PaperWorkload(3),
        num_atoms=num_atoms,
        deadline_s=deadline_s,
        scaling="sqrt",
        world=WorldSettings(start_up_s=0.25),
        observer=observe,
    )
    assert writer.close()
    return run


def test_what_if_nothing_had_been_different(tmp_path: Path) -> None:
    """The recorded run simulated under its own policy, atoms and costs is that run: the same best, trials and end."""
    settings = paper_settings(HyperSchedSettings(), num_trials=60, scaling=ScalingSettings(assume="sqrt"))
    original = record_run(tmp_path, settings, num_atoms=4, deadline_s=20.0)
    recorded = load_run(tmp_path)
    assert recorded.settings == settings
    again = simulate(
        msgspec.structs.replace(settings, num_trials=len(recorded.records)),
        RecordedRunWorkload(recorded),
        num_atoms=4,
        deadline_s=20.0,
        scaling="sqrt",
        world=WorldSettings(start_up_s=0.25),
    )
    assert original.num_resizes > 0
    assert again.best_metric == original.best_metric
    assert (again.best_iteration, again.best_trial_id) == (original.best_iteration, original.best_trial_id)
    assert again.finished_s == pytest.approx(original.finished_s, abs=1e-6)
    assert not again.beyond_record


def test_with_more_atoms_a_curve_is_held_beyond_its_record_and_the_result_marked(tmp_path: Path) -> None:
    settings = paper_settings(AshaSettings(), num_trials=30)
    record_run(tmp_path, settings, num_atoms=2, deadline_s=10.0)
    recorded = load_run(tmp_path)
    more = simulate(
        msgspec.structs.replace(settings, policy=FifoSettings()),
        RecordedRunWorkload(recorded),
        num_atoms=8,
        deadline_s=200.0,
    )
    curve = RecordedRunWorkload(recorded).curve(0, {})
    assert curve.recorded is not None
    assert curve.metric(curve.recorded + 100) == curve.metric(curve.recorded)
    assert more.trials_started == len(recorded.records)
    best = max(max(record.metrics) for _, record in recorded.records)
    assert more.best_metric == best, "a held value adds nothing to what was recorded"


def test_a_run_that_is_beyond_its_record_says_so(tmp_path: Path) -> None:
    """A falling curve is best at its last recorded value only where the window is longer than one result."""
    settings = paper_settings(AshaSettings(), num_trials=10, metric_window=5)
    record_run(tmp_path, settings, num_atoms=2, deadline_s=5.0)
    run = simulate(
        msgspec.structs.replace(settings, policy=FifoSettings()),
        RecordedRunWorkload(load_run(tmp_path)),
        num_atoms=8,
        deadline_s=60.0,
    )
    assert run.beyond_record


def test_a_folder_without_a_run_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        load_run(tmp_path)


def test_a_run_without_a_result_is_an_input_error(tmp_path: Path) -> None:
    settings = paper_settings(AshaSettings(), num_trials=10)
    record_run(tmp_path, settings, num_atoms=1, deadline_s=0.01)
    with pytest.raises(InputError, match="nothing to simulate from"):
        load_run(tmp_path)


def test_lost_and_repeated_iterations() -> None:
    """1, 2, (3 lost), 4, then after a crash 2 again with another value: 2 counts as seen last, 3 takes the value of 2 and the
    time of 4."""
    seen = [
        Observation(0, 1, 1, 0.1, 5.0),
        Observation(0, 2, 1, 0.2, 5.0),
        Observation(0, 4, 2, 0.4, 3.0),
        Observation(0, 2, 1, 0.25, 6.0),
    ]
    ((trial_id, record),) = records_of(seen, Throughput("linear"), source="test")
    assert trial_id == 0
    assert record.metrics == [0.1, 0.25, 0.25, 0.4]
    assert record.durations_s == [5.0, 6.0, 6.0, 6.0]


def test_a_measured_scaling_is_read_off_the_run() -> None:
    """Two trials: 10 s on one atom; 5 s and 6 s on two (2.0 and 1.67, median 1.83); 4 s on four (2.5)."""
    seen = [
        *(Observation(0, k, 1, 0.0, 10.0) for k in (1, 2)),
        *(Observation(0, k, 2, 0.0, 5.0) for k in (3, 4)),
        *(Observation(0, k, 4, 0.0, 4.0) for k in (5, 6)),
        Observation(1, 1, 1, 0.0, 10.0),
        Observation(1, 2, 2, 0.0, 6.0),
        Observation(2, 1, 8, 0.0, 1.0),
    ]
    assert observed_scaling(seen) == pytest.approx({1: 1.0, 2: (2 + 10 / 6) / 2, 4: 2.5})


def test_a_result_without_a_metric_stays_one() -> None:
    ((_, record),) = records_of([Observation(0, 1, 1, math.nan, 1.0)], Throughput("none"), source="test")
    assert math.isnan(record.metrics[0])
