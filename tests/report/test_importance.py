from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcsched
from hpcsched.report import importance as room
from hpcsched.report.importance import explained, importance_of, sample_of
from hpcsched.report.load import RunLog
from tests.support.runs import Script, a_run, some_settings


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    folder = a_run(tmp_path_factory.mktemp("run"), deadline_s=60.0, settings=some_settings(num_trials=30))
    return hpcsched.load(folder.root)


def test_a_value_that_decides_explains_all_and_one_that_does_not_next_to_nothing() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(400)
    assert explained([float(score) ** 3 for score in scores], scores) > 0.9
    assert explained(["big" if score > 0.5 else "small" for score in scores], scores) > 0.7
    assert explained(list(rng.random(400)), scores) < 0.05
    assert explained([1] * 400, scores) == 0.0


@given(st.lists(st.tuples(st.floats(-10, 10), st.sampled_from(["a", "b", 3, None, [1]])), max_size=40))
def test_the_share_lies_between_0_and_1(pairs: list[tuple[float, object]]) -> None:
    scores = np.array([score for score, _ in pairs])
    assert 0.0 <= explained([value for _, value in pairs], scores) <= 1.0


@pytest.mark.parametrize("with_optuna", [True, False])
def test_trials_are_compared_where_half_of_them_came_and_what_differs_is_ranked(
    log: RunLog, with_optuna: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_optuna:
        pytest.importorskip("optuna")
    else:
        monkeypatch.setitem(sys.modules, "optuna", None)
    sample = sample_of(log)
    assert sample is not None
    assert set(sample.values) == {"learning_rate"}, "momentum is the same everywhere"
    assert sample.num_reached * 2 >= len(np.unique(log.results["trial_id"]))
    found = importance_of(log, sample)
    assert found is not None
    assert ("Optuna" in found.measure) == with_optuna
    assert found.shares == {"learning_rate": 1.0}


def test_few_trials_say_nothing(tmp_path: Path) -> None:
    assert sample_of(hpcsched.load(a_run(tmp_path, script=Script(kill_at=3.0)).root)) is None


def test_what_was_drawn_by_orders_of_magnitude_is_known_from_the_experiment(log: RunLog) -> None:
    log.experiment = "[search.space]\na = { log_uniform = [1e-4, 1.0] }\nb = { integer = [1, 9], log = true }\nc = { uniform = [0, 1] }\nd = 3\n"
    assert room.logarithmic_names(log) == {"a", "b"}
    log.experiment = "not toml ["
    assert room.logarithmic_names(log) == set()
