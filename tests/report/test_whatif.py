"""What other policies would have done with the run's curves."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import hpcsched
from hpcsched.core.settings import FifoSettings, HyperSchedSettings, Settings
from hpcsched.report import whatif
from hpcsched.report.whatif import in_words, is_plausible, num_draws_of, true_scaling, what_if
from hpcsched.sim.recorded import Observation
from hpcsched.sim.scaling import Throughput
from tests.support.runs import Script, a_run, some_settings


def test_the_policy_that_ran_is_simulated_to_where_it_really_came(tmp_path: Path) -> None:
    log = hpcsched.load(a_run(tmp_path, deadline_s=60.0, settings=some_settings(num_trials=30)).root)
    found = what_if(log, 4)
    assert found is not None
    assert log.best is not None
    own = next(row for row in found.rows if row.is_own)
    assert own.policy == "hypersched"
    assert own.metric == pytest.approx(log.best["metric"], abs=0.02)
    assert {row.policy for row in found.rows} == {"hypersched", "asha", "rasda", "fixed_split", "deadline"}
    assert found.failed == ()
    words = in_words(log, found)
    assert "How far to trust it: hypersched" in words[0]
    assert is_plausible(own, log.best["metric"])
    assert "outside" not in words[0]
    log.best["metric"] = 0.5
    assert "outside of that range: take the comparison as a hint" in in_words(log, found)[0]
    log.best["metric"] = own.metric
    assert len(words) == 5
    assert found == what_if(log, 4), "the same log gives the same answer"


def test_a_search_without_early_stop_is_told_that_others_would_have_done_better(tmp_path: Path) -> None:
    settings = some_settings(FifoSettings(), num_trials=40, max_iterations=40)
    log = hpcsched.load(a_run(tmp_path, deadline_s=60.0, settings=settings).root)
    found = what_if(log, 3)
    assert found is not None
    by_policy = {row.policy: row for row in found.rows}
    assert by_policy["fifo"].is_own
    assert by_policy["asha"].num_better + by_policy["hypersched"].num_better > 0


def test_without_two_trials_there_is_nothing_to_simulate(tmp_path: Path) -> None:
    empty = hpcsched.load(a_run(tmp_path, script=Script(kill_at=0.2)).root)
    assert what_if(empty, 3) is None
    assert num_draws_of(empty) == 0


def test_a_large_run_is_not_simulated_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = hpcsched.load(a_run(tmp_path).root)
    assert num_draws_of(log) == whatif.MOST_DRAWS
    monkeypatch.setattr(whatif, "MOST_SIMULATED", len(log.results))
    assert num_draws_of(log) == 0


def test_speed_on_several_atoms_is_the_shown_one_and_beyond_it_the_assumed_growth() -> None:
    settings = Settings(policy=HyperSchedSettings())
    seen = [Observation(0, 1, 1, 0.5, 1.0), Observation(0, 2, 2, 0.5, 1 / 1.5)]
    speed = Throughput(true_scaling(seen, settings, 8))
    assert [speed(size) for size in (1, 2, 4, 8)] == pytest.approx([1.0, 1.5, 3.0, 6.0])
    none = msgspec.structs.replace(settings, scaling=msgspec.structs.replace(settings.scaling, assume="none"))
    assert Throughput(true_scaling(seen, none, 8))(8) == pytest.approx(1.5)
