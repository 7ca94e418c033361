from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hpcsched
from hpcsched.report.costs import (
    first_result,
    held_hours,
    iterations_of,
    left_hours,
    restart_parts,
    total_hours,
    uses_of,
)
from hpcsched.report.load import RunLog
from tests.support.runs import Script, a_run


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    return hpcsched.load(a_run(tmp_path, deadline_s=40.0, script=Script(crash=(1,), hang=(2,))).root)


def with_notes(log: RunLog, *told: tuple[int, int, dict[str, float]]) -> RunLog:
    rows = np.empty(len(told), dtype=log.notes.dtype)
    for k, (trial, incarnation, data) in enumerate(told):
        rows[k] = (0.0, "setup", trial, incarnation, "", json.dumps(data))
    log.__dict__["notes"] = rows
    return log


def test_every_gpu_hour_is_accounted_for(log: RunLog) -> None:
    assert sum(use.hours for use in uses_of(log)) == pytest.approx(total_hours(log))
    left = left_hours(log)
    assert left is not None
    assert total_hours(log) + left == pytest.approx(4 * 40.0 / 3600)
    idle = next(use.hours for use in uses_of(log) if use.use == "idle")
    held = sum(held_hours(log).values())
    assert 0.9 * total_hours(log) < held + idle < 1.0001 * total_hours(log), (
        "atoms reserved for a resize are neither"
    )


def test_reported_iterations_are_split_by_whose_they_were(log: RunLog) -> None:
    results = log.results
    whole = float((results["time_this_iter_s"] * results["num_atoms"]).sum()) / 3600
    assert sum(use.hours for use in iterations_of(log)) == pytest.approx(whole)
    assert {"best", "repeated"} <= {use.use for use in iterations_of(log)}


def test_the_way_to_the_first_result_adds_up_to_its_time(log: RunLog) -> None:
    at = float(log.results["time_s"].min())
    assert sum(part.took_s for part in first_result(log)) == pytest.approx(at)
    first = log.results[np.argmin(log.results["time_s"])]
    told = {"step_s": 0.1, "imports_s": 0.2, "group_s": 0.05}
    way = first_result(with_notes(log, (int(first["trial_id"]), 1, told)))
    assert sum(part.took_s for part in way) == pytest.approx(at)
    assert {part.name: part.took_s for part in way}["imports"] == 0.2
    log.provenance.update(queue_s=300.0, job_start_s=2.0)
    assert [part.name for part in first_result(log)][:3] == ["queue", "job", "probe"]


def test_parts_of_restarts_are_told_in_the_order_in_which_they_happen(log: RunLog) -> None:
    assert restart_parts(log) == []
    with_notes(
        log, (0, 1, {"imports_s": 2.0, "step_s": 1.0}), (1, 1, {"imports_s": 4.0}), (0, 1, {"save_s": 0.5})
    )
    parts = restart_parts(log)
    assert [(part.name, part.num, part.median_s, part.total_s) for part in parts] == [
        ("step", 1, 1.0, 1.0),
        ("imports", 2, 3.0, 6.0),
        ("save", 1, 0.5, 0.5),
    ]


def test_a_run_without_results_or_deadline_has_costs_all_the_same(tmp_path: Path) -> None:
    log = hpcsched.load(a_run(tmp_path, script=Script(kill_at=0.2), deadline_s=None).root)
    assert first_result(log) == []
    assert left_hours(log) is None
    assert iterations_of(log) == []
