"""The judgement of policies: the cells, the bound, paired differences, what is written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from analysis import policies
from analysis.judging import Cell, Data, Outcome, bound, find_data, num_trials, profiled, run, scale_of
from hpcsched.core.settings import AshaSettings, DeadlineSettings, FifoSettings

CROSSING = Cell("crossing", "", 4, 3.0, "linear", 0.0)


@pytest.fixture
def data() -> Data:
    found = find_data()
    if found is None:
        pytest.skip("no shared/data with recorded curves beside this checkout")
    return found


def outcome(value: float, course: tuple[tuple[float, float], ...] = ()) -> Outcome:
    return Outcome(score=value, regret=1.0 - value, trials=1, restarts=0, used=1.0, course=course)


def test_no_policy_passes_the_bound(data: Data) -> None:
    for cell in (CROSSING, Cell("curves", "ogbg", 8, 0.3, "table", 0.01, "done")):
        for policy in (FifoSettings(), DeadlineSettings()):
            found = run(cell, policy, 0, data)
            assert found.regret >= -1e-2, "but for the noise of a crossing curve"
            assert found.used <= 1.0 + 1e-9


def test_a_run_is_a_function_of_cell_policy_and_seed(data: Data) -> None:
    assert run(CROSSING, DeadlineSettings(), 3, data) == run(CROSSING, DeadlineSettings(), 3, data)


def test_the_bound_of_a_recorded_pool_is_its_best_curve(data: Data) -> None:
    cell = Cell("curves", "imagenet_resnet", 8, 1.0, "linear", 0.0005, "hold")
    scale = scale_of(data.curves("imagenet_resnet"))
    assert num_trials(cell) == 100
    assert scale.median < bound(cell, 0, data) <= max(max(record.metrics) for record in scale.records)


def test_measured_scaling_begins_at_one_and_need_not_rise(data: Data) -> None:
    table = profiled(data.root / "scaling" / "cifar10")
    assert table[1] == 1.0
    assert all(speed > 0 for speed in table.values())


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    runs = policies.Runs(tmp_path / "runs.jsonl", Data(tmp_path))
    one, other = FifoSettings(), AshaSettings()
    for seed, base in enumerate([0.1, 0.5, 0.9]):
        runs._known[policies.key_of(CROSSING, one, seed)] = outcome(base + 0.05)
        runs._known[policies.key_of(CROSSING, other, seed)] = outcome(base)
    found = runs.difference([CROSSING], one, other, 3, policies.score)
    assert math.isclose(found.value, 0.05)
    assert found.half < 1e-9, "the seeds differ by 0.4, the pairs do not"


def test_runs_are_kept_and_a_torn_line_is_run_again(tmp_path: Path, data: Data) -> None:
    file = tmp_path / "runs.jsonl"
    runs = policies.Runs(file, data)
    said: list[str] = []
    runs.perform([CROSSING], [FifoSettings()], 2, 1, said.append)
    assert said == ["2 runs"]
    file.write_bytes(file.read_bytes()[:-20])
    again = policies.Runs(file, data)
    again.perform([CROSSING], [FifoSettings()], 2, 1, said.append)
    assert said == ["2 runs", "1 runs"]
    assert again.outcome(CROSSING, FifoSettings(), 1) == runs.outcome(CROSSING, FifoSettings(), 1)


def test_the_time_to_a_score_is_that_of_the_mean_over_seeds() -> None:
    outcomes = [outcome(1.0, ((1.0, 0.2), (4.0, 1.0))), outcome(1.0, ((2.0, 0.6), (5.0, 1.0)))]
    assert policies._reached(outcomes, 0.4, 10.0) == 2.0
    assert policies._reached(outcomes, 0.8, 10.0) == 4.0
    assert policies._reached(outcomes, 1.1, 10.0) == math.inf


def test_results_go_between_the_markers_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{policies.BEGIN}\nold\n{policies.END}\nafter\n")
    policies.put_into(page, "new")
    assert page.read_text() == f"before\n{policies.BEGIN}\n\nnew\n\n{policies.END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(SystemExit):
        policies.put_into(page, "new")
