"""Learning curves: the published formulas, numbers drawn once a (trial, iteration), and nothing that depends on order."""

from __future__ import annotations

import math
import subprocess
import sys
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.core.enums import Mode
from hpcsched.sim.crossing import CrossingWorkload
from hpcsched.sim.noise import FIRST_COLUMNS, LATER_COLUMNS, Noise, TrialNoise
from hpcsched.sim.options import SimulationTable, WorkloadName
from hpcsched.sim.paper import PaperCurve, PaperWorkload
from hpcsched.sim.scaling import Throughput
from hpcsched.sim.workloads import make_workload


def test_the_papers_curve_has_the_published_values() -> None:
    """With b0 = 0.1, b1 = 0.5, b2 = 0 and no noise: 1/(0.1 500/100 + 0.05 + 0.5) = 1/1.05; score = 1 - 0.5/1.05 = 0.5238;
    with b0 = 0.59, the expected largest of 200 draws (0.1 H_200 = 0.588): 1/(2.95 + 0.55) = 0.2857, score 0.857. With
    b2 = 1 each loses 0.005: 0.52 and 0.85."""
    assert PaperCurve(0, 0.1, 0.5, 0.0, None, 0.1).metric(500) == pytest.approx(1 - 0.5 / 1.05, abs=1e-12)
    assert round(PaperCurve(0, 0.1, 0.5, 0.5, None, 0.1).metric(500), 2) == 0.52
    assert round(PaperCurve(0, 0.59, 0.5, 0.0, None, 0.1).metric(500), 2) == 0.86
    assert PaperCurve(0, 0.1, 0.0, 1.0, None, 0.1).metric(0) == pytest.approx(1 - 0.5 * 2.01)


def test_noise_only_ever_lowers_the_papers_score_by_a_half_normal() -> None:
    """loss has + |0.005 z|, the score half of that: mean 0.0025 sqrt(2/pi) = 0.001995."""
    clean = PaperCurve(0, 0.1, 0.5, 0.5, None, 0.1)
    losses = []
    for trial_id in range(200):
        noisy = PaperCurve(trial_id, 0.1, 0.5, 0.5, Noise(3), 0.1)
        losses += [clean.metric(k) - noisy.metric(k) for k in range(1, 51)]
    assert min(losses) >= 0
    assert fmean(losses) == pytest.approx(0.0025 * math.sqrt(2 / math.pi), rel=0.03)


def test_the_papers_parameters_follow_their_distributions() -> None:
    """b0 ~ Exponential(mean 0.1), b1, b2 ~ U(0, 1): means 0.1, 0.5, 0.5 (standard error 0.1/sqrt(4000) and 0.29/sqrt(4000))."""
    workload = PaperWorkload(11)
    drawn = [workload.config(trial_id) for trial_id in range(4000)]
    assert fmean(config["b0"] for config in drawn) == pytest.approx(0.1, abs=0.006)
    assert fmean(config["b1"] for config in drawn) == pytest.approx(0.5, abs=0.02)
    assert fmean(config["b2"] for config in drawn) == pytest.approx(0.5, abs=0.02)
    assert all(0 <= config["b1"] < 1 and config["b0"] >= 0 for config in drawn)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 400)), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_value_does_not_depend_on_what_was_asked_before(asked: list[tuple[int, int]]) -> None:
    """Each value of a workload that is asked in some order equals that of a fresh one that is asked for it alone."""
    shared = PaperWorkload(5)
    crossing = CrossingWorkload(5)
    for trial_id, iteration in asked:
        fresh = PaperWorkload(5)
        config = fresh.config(trial_id)
        assert shared.config(trial_id) == config
        assert shared.curve(trial_id, config).metric(iteration) == fresh.curve(trial_id, config).metric(
            iteration
        )
        other = CrossingWorkload(5)
        config = other.config(trial_id)
        assert crossing.curve(trial_id, config).metric(iteration) == other.curve(trial_id, config).metric(
            iteration
        )


def test_seeds_trials_and_iterations_have_noise_of_their_own() -> None:
    """Over the borders of blocks (16 and 80 iterations, 8 and 64 trials) too."""
    values = []
    for seed in range(3):
        noise = Noise(seed)
        for trial_id in (0, 1, 7, 8, 63, 64, 65):
            mine = TrialNoise(noise, trial_id)
            values += [mine.z(iteration) for iteration in range(1, FIRST_COLUMNS + 2 * LATER_COLUMNS + 2)]
    assert len(set(values)) == len(values)
    assert fmean(values) == pytest.approx(0, abs=0.05)
    assert fmean(value * value for value in values) == pytest.approx(1, abs=0.08)


def test_noise_is_the_same_under_every_hash_seed() -> None:
    code = (
        "from hpcsched.sim.paper import PaperWorkload as W; w = W(7); c = w.config(70); print(c, w.curve(70, c).metric(90));"
        "from hpcsched.sim.faults import *; f = Faults(FaultSettings(crash_rate=1.0), 3).of(4, 2); print(f.crash_after_s)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4321")
    }
    assert len(outputs) == 1


def test_crossing_curves_saturate_at_their_height() -> None:
    """score = A (1 - exp(-(k/tau)^0.7)): at k = tau 0.632 A, far beyond it A."""
    curve = CrossingWorkload(0, noise=False).curve(0, {"A": 0.9, "tau": 20.0})
    assert curve.metric(20) == pytest.approx(0.9 * (1 - math.exp(-1)))
    assert curve.metric(20_000) == pytest.approx(0.9, abs=1e-6)


def test_where_less_is_better_the_synthetic_workloads_give_losses() -> None:
    table = SimulationTable()
    score, loss = (make_workload(table, 0, mode) for mode in (Mode.MAX, Mode.MIN))
    config = score.config(0)
    assert config is not None
    assert loss.config(0) == config
    for iteration in (1, 5, 50):
        value = loss.curve(0, config).metric(iteration)
        assert value == pytest.approx(2 - 2 * score.curve(0, config).metric(iteration))
        assert value > 0
    crossing = SimulationTable(workload=WorkloadName("crossing"))
    config = make_workload(crossing, 0).config(0)
    assert config is not None
    assert make_workload(crossing, 0, Mode.MIN).curve(0, config).metric(9) > 0


def test_sqrt_scaling_is_interpolated_between_the_published_entries() -> None:
    """T18: SQRT(3) = (1.4 + 2)/2 = 1.7, SQRT(6) = (2 + 2.8)/2 = 2.4, SQRT(12) = (2.8 + 4)/2 = 3.4."""
    s = Throughput("sqrt")
    assert [s(n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 32)] == pytest.approx(
        [1, 1.4, 1.7, 2, 2.4, 2.8, 3.4, 4, 5.7]
    )


def test_a_table_is_clamped_at_its_ends() -> None:
    s = Throughput({1: 1.0, 2: 1.77, 4: 2.93, 8: 4.29})
    assert s(8) == s(16) == s(1000) == 4.29
    assert s(3) == pytest.approx((1.77 + 2.93) / 2)


def test_linear_and_none() -> None:
    assert [Throughput("linear")(n) for n in (1, 7, 4096)] == [1.0, 7.0, 4096.0]
    assert [Throughput("none")(n) for n in (1, 7, 4096)] == [1.0, 1.0, 1.0]
