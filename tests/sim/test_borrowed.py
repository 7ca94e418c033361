"""Curves of a run with futures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.enums import Mode
from hpcsched.sim.borrowed import BorrowedCurve, BorrowedWorkload, Donors, Scale, scale_of
from hpcsched.sim.table import Record


def record(*metrics: float) -> Record:
    made = Record("test", "c", "")
    made.metrics = list(metrics)
    made.durations_s = [1.0] * len(metrics)
    made.mean_s = 1.0
    return made


@given(st.sampled_from(list(Scale)), st.floats(0.001, 0.999))
def test_a_scale_goes_there_and_back(scale: Scale, metric: float) -> None:
    assert scale.back(scale.of(metric)) == pytest.approx(metric, rel=1e-6)


def test_the_scale_follows_from_what_was_seen() -> None:
    assert scale_of([0.1, 2.0], Mode.MIN) is Scale.LOSS
    assert scale_of([0.0, 0.9], Mode.MAX) is Scale.SHARE
    assert scale_of([0.1, 1.0], Mode.MAX) is Scale.PLAIN
    assert scale_of([-1.0, 2.0], Mode.MIN) is Scale.PLAIN
    assert scale_of([], Mode.MAX) is Scale.PLAIN


def test_a_cut_trial_goes_on_as_the_nearest_longer_one_did() -> None:
    donors = Donors([record(4.0, 2.0, 1.0, 0.5), record(8.0, 4.0)], mode=Mode.MIN)
    future = donors.future(donors.records[1], np.random.default_rng(0))
    assert future == pytest.approx([2.0, 1.0]), "half as much at each step, as the donor"


def test_the_longest_has_no_future_to_borrow_and_a_trend_that_fades() -> None:
    donors = Donors([record(*(1.0 / k for k in range(1, 33)))], mode=Mode.MIN)
    longest = donors.records[0]
    rng = np.random.default_rng(1)
    assert donors.future(longest, rng) == []
    trend = donors.trend(longest.metrics, rng)
    curve = BorrowedCurve(longest, (), trend)
    assert curve.recorded == 32
    assert 1.0 / 64 - 0.003 <= curve.metric(64) <= 1.0 / 32, "between half of it and as it is"
    assert 0.0 < curve.metric(4096) <= curve.metric(64)


@given(
    st.lists(st.lists(st.floats(0.0, 0.99), min_size=1, max_size=12), min_size=1, max_size=8),
    st.integers(0, 5),
    st.integers(0, 20),
)
def test_shares_stay_shares_and_records_stay_what_they_are(
    curves: list[list[float]], seed: int, trial_id: int
) -> None:
    donors = Donors([record(*curve) for curve in curves], mode=Mode.MAX)
    configs = [{"number": k} for k in range(len(curves))]
    workload = BorrowedWorkload(configs, donors, seed, exhausted=False)
    config = workload.config(trial_id)
    assert config is not None
    curve = workload.curve(trial_id, config)
    own = curves[config["number"]]
    assert [curve.metric(k + 1) for k in range(len(own))] == own
    for iteration in (13, 50, 5000):
        assert curve.metric(iteration) <= 1.0
        assert math.isfinite(curve.metric(iteration))
    again = BorrowedWorkload(configs, donors, seed, exhausted=False).curve(trial_id, config)
    assert [again.metric(k) for k in range(1, 40)] == [curve.metric(k) for k in range(1, 40)]


def test_an_exhausted_search_gives_no_more_than_was_tried() -> None:
    donors = Donors([record(0.1), record(0.2)], mode=Mode.MAX)
    exhausted = BorrowedWorkload([{}, {}], donors, 0, exhausted=True)
    assert exhausted.config(1) == {}
    assert exhausted.config(2) is None
    assert BorrowedWorkload([{}, {}], donors, 0, exhausted=False).config(2) == {}
