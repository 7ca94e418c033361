"""Samplers: repeatable, within the space, `first` first, rebuilt after a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.config.spec import Choice, Constant, Dimension, ExperimentSpec, Integer, LogUniform, Uniform
from hpcsched.core.enums import TrialState
from hpcsched.errors import ExperimentFileError
from hpcsched.search.grid import Grid, axis
from hpcsched.search.randomly import RandomSource
from hpcsched.search.samplers import Listed, Sampler, make_sampler
from tests.support.experiments import changed, load, write_experiment

SPACE: dict[str, Dimension] = {
    "lr": LogUniform(1e-4, 1.0),
    "dropout": Uniform(0.0, 0.5),
    "layers": Integer(2, 8),
    "width": Integer(1, 1024, log=True),
    "momentum": Choice((0.9, 0.95, 0.99)),
    "batch": Constant(64),
}

TEXT = changed(
    (
        "learning_rate = { log_uniform = [1e-4, 1.0] }",
        "lr = { log_uniform = [1e-4, 1.0] }\nlayers = { integer = [2, 8] }\nwidth = { choice = [1, 1.0, true, [1]] }\nbatch = 64",
    )
)


def spec_with(folder: Path, search: str, text: str = TEXT) -> ExperimentSpec:
    return load(
        write_experiment(folder, text.replace("[search.space]", f"[search]\n{search}\n[search.space]"))
    )


def inside(dimension: Dimension, value: Any) -> bool:
    match dimension:
        case Constant():
            return bool(value == dimension.value)
        case Choice():
            return value in dimension.values
        case Integer():
            return type(value) is int and dimension.low <= value <= dimension.high
        case _:
            return type(value) is float and dimension.low <= value <= dimension.high


floats = st.floats(-1e12, 1e12)
ranges = st.tuples(floats, floats).filter(lambda ends: ends[0] < ends[1])
positive = st.tuples(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12)).filter(lambda ends: ends[0] < ends[1])
wholes = st.tuples(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62)).filter(
    lambda ends: ends[0] < ends[1]
)
naturals = st.tuples(st.integers(1, 2**62), st.integers(1, 2**62)).filter(lambda ends: ends[0] < ends[1])
dimensions = st.one_of(
    ranges.map(lambda ends: Uniform(*ends)),
    positive.map(lambda ends: LogUniform(*ends)),
    wholes.map(lambda ends: Integer(*ends)),
    naturals.map(lambda ends: Integer(*ends, log=True)),
    st.lists(st.integers(), min_size=1, max_size=4).map(lambda values: Choice(tuple(values))),
)


@given(dimensions, st.integers(0, 2**40), st.integers(0, 2**40))
def test_random_values_lie_in_their_range(dimension: Dimension, seed: int, index: int) -> None:
    config = RandomSource({"x": dimension}, seed=seed).configuration(index)
    assert config is not None and inside(dimension, config["x"])


@given(dimensions, st.integers(1, 9))
def test_grid_points_lie_in_their_range_and_reach_both_ends(dimension: Dimension, num: int) -> None:
    if not isinstance(dimension, Choice):
        dimension = msgspec.structs.replace(dimension, num=num)
    points = axis(dimension)
    assert all(inside(dimension, point) for point in points)
    if num > 1 and isinstance(dimension, (Uniform, LogUniform)):
        assert (points[0], points[-1], len(points)) == (dimension.low, dimension.high, num)
        assert list(points) == sorted(points)


def test_random_draws_are_spread_as_the_dimension_says() -> None:
    # 4,000 draws; each bound is more than four standard deviations of a fair draw away.
    configs = [RandomSource(SPACE, seed=1).configuration(index) for index in range(4000)]
    drawn = [config for config in configs if config is not None]
    assert abs(sum(config["lr"] < 1e-2 for config in drawn) - 2000) < 130
    assert abs(sum(config["dropout"] < 0.25 for config in drawn) - 2000) < 130
    assert abs(sum(config["width"] < 32 for config in drawn) - 2000) < 130
    for layers in range(2, 9):
        assert abs(sum(config["layers"] == layers for config in drawn) - 4000 / 7) < 100
    both = sum(config["lr"] < 1e-2 and config["dropout"] < 0.25 for config in drawn)
    assert abs(both - 1000) < 120  # hyperparameters are independent of each other


def test_adding_a_hyperparameter_leaves_the_others_as_they_were() -> None:
    fewer = {name: dimension for name, dimension in SPACE.items() if name != "dropout"}
    for index in range(20):
        config = RandomSource(SPACE, seed=3).configuration(index)
        assert config is not None
        config.pop("dropout")
        assert RandomSource(fewer, seed=3).configuration(index) == config


def test_random_search_gives_these_very_bits() -> None:
    # Golden: a run is repeatable on another machine and with another Python.
    assert RandomSource(SPACE, seed=0).configuration(0) == GOLDEN_0
    assert RandomSource(SPACE, seed=1).configuration(0) != GOLDEN_0


GOLDEN_0: dict[str, Any] = {
    "lr": 0.16783286138291803,
    "dropout": 0.46156814644600996,
    "layers": 6,
    "width": 21,
    "momentum": 0.9,
    "batch": 64,
}


def test_a_grid_is_every_combination_once_the_last_key_fastest() -> None:
    grid = Grid({"a": Choice((1, 2)), "b": Integer(0, 2), "c": Uniform(0.0, 1.0, num=2)})
    configs = [grid.configuration(index) for index in range(13)]
    assert configs[:3] == [{"a": 1, "b": 0, "c": 0.0}, {"a": 1, "b": 0, "c": 1.0}, {"a": 1, "b": 1, "c": 0.0}]
    assert len({json.dumps(config) for config in configs[:12]}) == 12
    assert configs[12] is None


def test_a_grid_of_a_huge_range_is_counted_not_stored() -> None:
    grid = Grid({"a": Integer(0, 2**62), "b": Integer(0, 2**62)})
    assert grid.configuration(2**70) == {"a": 2**70 // (2**62 + 1), "b": 2**70 % (2**62 + 1)}


def test_log_and_whole_grid_points() -> None:
    assert axis(LogUniform(1e-4, 1.0, num=5)) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    assert axis(Integer(1, 3, num=9)) == [1, 2, 3]
    assert axis(Integer(1, 1024, log=True, num=3)) == [1, 32, 1024]
    assert axis(Uniform(0.0, 1.0, num=1)) == [0.5]


def test_first_configurations_come_first_and_count(tmp_path: Path) -> None:
    spec = spec_with(
        tmp_path, "first = [{ lr = 9.0, layers = 2, width = 1, momentum = 0.5 }]\nnum_trials = 3"
    )
    sampler = make_sampler(spec, seed=0)
    assert sampler.ask(0) == {"lr": 9.0, "layers": 2, "width": 1, "batch": 64, "momentum": 0.5}
    plain = make_sampler(spec_with(tmp_path, ""), seed=0)
    assert [sampler.ask(1), sampler.ask(2), sampler.ask(3)] == [plain.ask(0), plain.ask(1), None]


def test_a_list_is_run_in_order(tmp_path: Path) -> None:
    lines = [{"lr": 0.1 * n, "layers": n, "width": 1, "momentum": 0.9} for n in range(3)]
    (tmp_path / "configs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    sampler = make_sampler(spec_with(tmp_path, 'sampler = "list"\nlist_file = "configs.jsonl"'), seed=0)
    assert [sampler.ask(n) for n in range(4)] == [{**line, "batch": 64} for line in lines] + [None]


def test_a_list_that_has_gone_since_the_check_is_an_experiment_file_error(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"lr": 1, "layers": 1, "width": 1, "momentum": 1}')
    spec = spec_with(tmp_path, 'sampler = "list"\nlist_file = "c.jsonl"')
    (tmp_path / "c.jsonl").unlink()
    with pytest.raises(ExperimentFileError, match="no such file"):
        make_sampler(spec, seed=0)


def test_what_is_asked_may_be_changed_by_the_caller_without_harm() -> None:
    sampler = Sampler(Listed([{"x": 1}]), first=[{"x": 0}])
    for trial_id in (0, 1):
        config = sampler.ask(trial_id)
        assert config is not None
        config["x"] = 99
        assert sampler.ask(trial_id) == {"x": trial_id}


def test_trials_that_a_user_added_make_a_list_skip_nothing_also_after_a_crash() -> None:
    listed = [{"x": n} for n in range(4)]
    sampler = Sampler(Listed(listed))
    submitted = [(0, sampler.ask(0)), (1, {"x": -7}), (2, None)]
    sampler.adopt(1)
    submitted[2] = (2, sampler.ask(2))
    assert submitted[2] == (2, {"x": 1})
    rebuilt = Sampler(Listed(listed))
    rebuilt.rebuild([(trial_id, config) for trial_id, config in submitted if config is not None])
    assert [rebuilt.ask(3), rebuilt.ask(4), rebuilt.ask(5)] == [{"x": 2}, {"x": 3}, None]


SCRIPT = """
import json, sys
from pathlib import Path
from hpcsched.config.load import load_experiment
from hpcsched.core.enums import TrialState
from hpcsched.search.samplers import make_sampler
sampler = make_sampler(load_experiment(Path(sys.argv[1])), seed=5)
configs = []
for trial_id in range(15):
    configs.append(sampler.ask(trial_id))
    sampler.tell(trial_id, configs[-1], 3, -abs(configs[-1]["lr"] - 0.1), TrialState.PAUSED)
print(json.dumps(configs))
"""


@pytest.mark.parametrize("search", ["", 'sampler = "optuna"'])
def test_two_processes_with_different_hash_seeds_ask_for_the_same(search: str, tmp_path: Path) -> None:
    if "optuna" in search:
        pytest.importorskip("optuna")
    spec = spec_with(tmp_path, search)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(spec.file)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("0", "4242")
    }
    assert len(outputs) == 1
    assert len({json.dumps(config) for config in json.loads(outputs.pop())}) > 10


def test_optuna_learns_and_keeps_to_the_space(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    spec = spec_with(tmp_path, 'sampler = "optuna"')
    sampler = make_sampler(spec, seed=0)
    early, late = [], []
    for trial_id in range(60):
        config = sampler.ask(trial_id)
        assert config is not None
        assert all(inside(dimension, config[name]) for name, dimension in spec.search.space.items())
        (early if trial_id < 10 else late).append(abs(config["layers"] - 7))
        sampler.tell(trial_id, config, 1, -abs(config["layers"] - 7), TrialState.STOPPED)
    assert sum(late[-20:]) / 20 < sum(early) / 10


def test_optuna_is_rebuilt_from_the_latest_results_alone(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    spec = spec_with(tmp_path, 'sampler = "optuna"')
    sampler = make_sampler(spec, seed=0)
    told = []
    for trial_id in range(14):
        config = sampler.ask(trial_id)
        assert config is not None
        sampler.tell(trial_id, config, 1, 0.0, TrialState.RUNNING)
        sampler.tell(trial_id, config, 2, config["lr"], TrialState.PAUSED)
        told.append((trial_id, config))
    rebuilt = make_sampler(spec, seed=0)
    rebuilt.rebuild(told)
    for trial_id, config in reversed(told):
        rebuilt.tell(trial_id, config, 2, config["lr"], TrialState.PAUSED)
    assert rebuilt.ask(14) == sampler.ask(14)


def test_optuna_bears_configurations_outside_the_space(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    sampler = make_sampler(spec_with(tmp_path, 'sampler = "optuna"'), seed=0)
    sampler.tell(0, {"lr": 99.0, "layers": 2, "width": 1, "momentum": 0.9}, 1, 1.0, TrialState.COMPLETED)
    sampler.tell(1, {"lr": 0.1, "layers": 2, "width": "odd", "momentum": 0.9}, 1, 1.0, TrialState.COMPLETED)
    sampler.tell(2, {"nothing": 1}, 0, None, TrialState.FAILED)
    assert sampler.ask(3) is not None


def test_without_optuna_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    spec = spec_with(tmp_path, 'sampler = "optuna"')
    with pytest.raises(ExperimentFileError, match=r"pip install 'hpcsched\[optuna\]'"):
        make_sampler(spec, seed=0)
