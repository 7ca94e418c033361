from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hpcsched
from hpcsched.core.enums import Mode
from hpcsched.core.settings import AshaSettings
from hpcsched.report.rungs import last_reports, rungs_of
from tests.support.runs import Script, a_run, some_settings


def test_a_rung_counts_who_reached_it_who_went_on_and_who_was_cut(tmp_path: Path) -> None:
    log = hpcsched.load(a_run(tmp_path, settings=some_settings(AshaSettings()), deadline_s=60.0).root)
    rungs = rungs_of(log)
    assert [rung.milestone for rung in rungs] == [1, 2, 4, 8, 16][: len(rungs)]
    furthest = {
        int(trial): int(log.results["training_iteration"][log.results["trial_id"] == trial].max())
        for trial in np.unique(log.results["trial_id"])
    }
    for rung, following in zip(rungs, [*rungs[1:], None], strict=True):
        reached = [trial for trial, iteration in furthest.items() if iteration >= rung.milestone]
        assert sorted(rung.trials.tolist()) == sorted(reached)
        if following is not None:
            assert rung.num_next == len(following.trials)
        assert rung.best == rung.metrics.max()
        for trial, metric in zip(rung.trials, rung.metrics, strict=True):
            own = log.results[
                (log.results["trial_id"] == trial) & (log.results["training_iteration"] == rung.milestone)
            ]
            assert metric == own["metric"][-1]
    assert sum(rung.num_cut for rung in rungs) > 0


def test_less_is_better_turns_best_and_worst_around(tmp_path: Path) -> None:
    import msgspec

    settings = msgspec.structs.replace(some_settings(AshaSettings()), mode=Mode.MIN)
    log = hpcsched.load(a_run(tmp_path, settings=settings).root)
    for rung in rungs_of(log):
        assert rung.best == rung.metrics.min()
        if rung.worst_that_went_on is not None:
            assert rung.worst_that_went_on == rung.metrics[rung.went_on].max()


def test_of_repeated_iterations_the_last_report_counts(tmp_path: Path) -> None:
    log = hpcsched.load(a_run(tmp_path, script=Script(crash=(1,))).root)
    rows = last_reports(log.results)
    keys = list(zip(rows["trial_id"].tolist(), rows["training_iteration"].tolist(), strict=True))
    assert keys == sorted(set(keys))
    last = {
        (int(row["trial_id"]), int(row["training_iteration"])): float(row["metric"]) for row in log.results
    }
    assert dict(zip(keys, rows["metric"].tolist(), strict=True)) == pytest.approx(last, nan_ok=True)


def test_a_run_without_results_has_no_rungs(tmp_path: Path) -> None:
    assert rungs_of(hpcsched.load(a_run(tmp_path, script=Script(kill_at=0.2)).root)) == []
