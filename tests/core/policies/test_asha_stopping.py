"""ASHA that stops (Ray's variant): decided on arrival, against those before, for good."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.core.enums import Mode, PreemptReason
from hpcsched.core.settings import AshaSettings, RetrySettings, Settings
from tests.support.byhand import ByHand, preempted
from tests.support.virtual import NO_TIMEOUTS


def stopping(eta: int, **changed: Any) -> Settings:
    values: dict[str, Any] = {
        "policy": AshaSettings(stopping=True),
        "reduction_factor": eta,
        "timeouts": NO_TIMEOUTS,
        "retries": RetrySettings(fail_fast=0),
    }
    return Settings(**(values | changed))


@pytest.mark.parametrize(
    ("eta", "scores", "stops"),
    [
        # Cutoffs are percentiles 1 - 1/eta of the scores before: -, .5, .45, .5, .475, .5 for eta = 2.
        (2, [0.5, 0.4, 0.6, 0.45, 0.55, 0.5], [1, 3]),
        # -, .3, .45, .48, .47, .46 for eta = 4.
        (4, [0.3, 0.5, 0.46, 0.44, 0.2, 0.6], [3, 4]),
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_arrivals_below_the_percentile_of_those_before_are_stopped(
    eta: int, scores: list[float], stops: list[int], mode: Mode
) -> None:
    """T7."""
    hand = ByHand(stopping(eta, mode=mode), num_atoms=len(scores))
    hand.submit(len(scores))
    found = []
    for trial, score in enumerate(scores):
        found += preempted(hand.report(trial, 1, score if mode is Mode.MAX else -score))
    assert found == [(trial, PreemptReason.STOP) for trial in stops]


def percentile(values: list[float], eta: int) -> float:
    """At 1 - 1/eta, linearly interpolated between neighbours."""
    ordered = sorted(values)
    whole, part = divmod((len(ordered) - 1) * (eta - 1), eta)
    if not part:
        return ordered[whole]
    low, high = ordered[whole], ordered[whole + 1]
    return low if low == high else low * (1 - part / eta) + high * (part / eta)


@settings(max_examples=60, deadline=None)
@given(
    eta=st.integers(2, 5),
    scores=st.lists(st.integers(0, 6).map(lambda n: n / 8), min_size=1, max_size=14),
)
def test_a_stopping_rung_compares_with_earlier_arrivals_only(eta: int, scores: list[float]) -> None:
    """Ties go on, the first always does, and a report after the milestone is not compared again.

    Caught: the own score among those compared with; `<=` for `<`; the rung judged again at iteration 2.
    """
    hand = ByHand(stopping(eta), num_atoms=len(scores))
    hand.submit(len(scores))
    for trial, score in enumerate(scores):
        before = scores[:trial]
        expected = bool(before) and score < percentile(before, eta)
        assert preempted(hand.report(trial, 1, score)) == ([(trial, PreemptReason.STOP)] if expected else [])
        if eta > 2 and not expected:
            assert preempted(hand.report(trial, 2, 0.0)) == []
