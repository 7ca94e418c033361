from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.percentile import RunningPercentile, SampledPercentile


def exact(values: list[float], q: Fraction) -> Fraction:
    """By the definition: sort, take the position (n - 1) q, interpolate; in rational numbers."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * q
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    part = position - low
    return Fraction(ordered[low]) * (1 - part) + Fraction(ordered[high]) * part


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=60), st.integers(2, 9))
def test_it_is_the_percentile_of_the_definition_after_each_value(values: list[int], eta: int) -> None:
    """Fault tried: a target of the rank without + 1 (then the first value is never below)."""
    running = RunningPercentile(eta - 1, eta)
    for n, value in enumerate(values, start=1):
        running.add(float(value))
        found = running.value()
        assert found is not None
        assert found == pytest.approx(
            float(exact([*map(float, values[:n])], Fraction(eta - 1, eta))), abs=1e-12
        )


def test_a_whole_position_is_the_value_itself() -> None:
    """n = 10, eta = 3: position 9 * 2 / 3 = 6 exactly; floating point has 6.000...1 and is above the seventh value."""
    running = RunningPercentile(2, 3)
    values = [0.1 * k for k in range(10)]
    for value in values:
        running.add(value)
    assert running.value() == values[6]


def test_equal_values_give_that_value_bit_for_bit() -> None:
    running = RunningPercentile(2, 3)
    for _ in range(50):
        running.add(0.1)
        assert running.value() == 0.1


def test_the_largest_floats_do_not_overflow() -> None:
    running = RunningPercentile(1, 2)
    running.add(-1.7e308)
    running.add(1.7e308)
    assert running.value() == 0.0


def test_nothing_yet_is_none() -> None:
    assert RunningPercentile(9, 10).value() is None


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=300), st.sampled_from([4, 8, 16]))
def test_a_sample_is_evenly_spaced_and_bounded(values: list[int], most: int) -> None:
    """The stride is the smallest power of two at which fewer than `most` values are kept. Fault tried: thinning that keeps `[1::2]`."""
    sampled = SampledPercentile(1, 2, most=most)
    for n, value in enumerate(values, start=1):
        sampled.add(float(value))
        stride = 1
        while -(-n // stride) >= most:
            stride *= 2
        found = sampled.value()
        assert found is not None
        assert found == pytest.approx(
            float(exact([*map(float, values[:n:stride])], Fraction(1, 2))), abs=1e-12
        )
    assert sampled.num == len(values)


def test_the_first_eight_thousand_values_are_all_kept() -> None:
    running, sampled = RunningPercentile(1, 2), SampledPercentile(1, 2)
    for k in range(8191):
        for each in (running, sampled):
            each.add(float(k * 7919 % 8191))
    assert sampled.value() == running.value() == 4095.0
