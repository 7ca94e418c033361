"""The benchmarks themselves run and print what they promise; no number is asserted but that it is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import decisions, placement, report, simulator


def test_decisions_print_microseconds_by_number_of_trials(capsys: pytest.CaptureFixture[str]) -> None:
    assert decisions.main(["--json", "--sizes", "20,50", "--decisions", "10", "--policy", "asha"]) == 0
    captured = capsys.readouterr()
    row = json.loads(captured.out)["microseconds_a_decision"]["hpcsched asha"]
    assert set(row) == {"20", "50"}
    assert all(value > 0 for value in row.values())
    assert "ray: not measured" in captured.err


def test_placement_prints_wall_and_cpu_times_by_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "GPUS", (64,))
    monkeypatch.setattr(placement, "NUM_DECISIONS", 50)
    placement.main(["--json"])
    row = json.loads(capsys.readouterr().out)["gpus"]["64"]
    assert set(row) == {"median_us", "p99_us", "cpu_median_us", "cpu_p99_us", "times_yardstick"}
    assert all(value > 0 for value in row.values())


def test_a_peer_that_is_not_there_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    decisions.main(["--sizes", "20", "--decisions", "2", "--policy", "asha", "--peer", "ray=/nowhere/python"])
    assert "no such Python: /nowhere/python" in capsys.readouterr().err


def test_the_timed_decisions_are_those_at_milestones_beyond_the_recorded() -> None:
    assert len(decisions.time_ours("asha", 30, 7)) == 7


def test_the_simulator_prints_rates_and_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "_in_a_process", simulator.measure)
    monkeypatch.setattr(simulator, "LARGE", (30, 8))
    assert simulator.main(["--json", "--sizes", "20"]) == 0
    rows = json.loads(capsys.readouterr().out)["simulator"]
    assert [(row["num_trials"], row["num_atoms"]) for row in rows] == [(20, 4), (30, 8)]
    assert all(row["results_per_s"] > row["trials_per_s"] > 0 for row in rows)


def test_every_look_at_a_run_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert report.make_run(tmp_path / "run", 12) > 12
    for what in report.LOOKS:
        found = report.look(what, tmp_path / "run")
        assert found["wall_s"] > 0
        assert found["peak_mb"] > 0
