"""Cases T15 to T18: shares, allowed sizes, the resize test, and s(atoms)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.allocation import at_random, softmax, top, uniform, uniform_size
from hpcsched.core.resize import gain_of
from hpcsched.core.scaling import SQRT, TableScaling, scaling_of
from hpcsched.core.settings import ScalingSettings
from hpcsched.core.sizes import Sizes

ANY = Sizes(multiple_of=1)
EVEN = Sizes(multiple_of=2)


@pytest.mark.parametrize(
    ("atoms", "shares"),
    [
        (8, [3, 3, 2]),
        (8, [2, 2, 2, 1, 1]),
        (16, [6, 5, 5]),
        (16, [4, 3, 3, 3, 3]),
        (8, [8]),
        (8, [2, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_t15_uniform_shares_one_at_a_time_best_first(atoms: int, shares: list[int]) -> None:
    """floor(N / n) each and one more for the best N mod n."""
    assert uniform(atoms, len(shares), ANY) == shares


def test_t15_top_job_gives_the_spare_atoms_to_the_best() -> None:
    assert top(8, 3, ANY) == [6, 1, 1]


def test_softmax_of_the_case_in_1_8() -> None:
    """5 spare: softmax(.9 .8 .7) = .367 .332 .301, floors 1 1 1, the other 2 to the best: 4, 2, 2."""
    assert softmax(8, [0.9, 0.8, 0.7], ANY) == [4, 2, 2]


def test_softmax_survives_a_trial_without_a_score() -> None:
    """The 2020 program computes inf - inf and hangs."""
    assert sum(softmax(8, [None, 0.8, 0.7], ANY)) == 8


@pytest.mark.parametrize(
    ("atoms", "shares"),
    [
        (8, [8]), (8, [4, 4]), (8, [4, 2, 2]), (8, [2, 2, 2, 2]), (8, [2, 2, 2, 1, 1]), (8, [2, 2, 1, 1, 1, 1]),
        (8, [2, 1, 1, 1, 1, 1, 1]), (16, [6, 6, 4]), (16, [4, 4, 4, 2, 2]), (16, [4, 4, 2, 2, 2, 2]),
        (16, [2, 2, 2, 2, 2, 2, 2, 1, 1]), (32, [12, 10, 10]), (32, [8, 6, 6, 6, 6]), (7, [2, 2, 2]),
    ],
)  # fmt: skip
def test_t16_sizes_are_one_or_even(atoms: int, shares: list[int]) -> None:
    """Raise the smallest first, ties to the better; 1 -> 2 costs one atom, every other step two."""
    assert uniform(atoms, len(shares), EVEN) == shares


def raised(atoms: int, num: int, sizes: Sizes) -> list[int]:
    """T16 by its words: raise the smallest, ties to the better, as long as the step can be paid."""
    shares = [1] * num
    spare = atoms - num
    while True:
        number = min(range(num), key=lambda k: (shares[k], k))
        larger = sizes.next(shares[number])
        if larger is None or larger - shares[number] > spare:
            return shares
        spare -= larger - shares[number]
        shares[number] = larger


@given(st.integers(1, 40), st.integers(0, 200), st.sampled_from([1, 2, 4, 8]), st.none() | st.integers(1, 40))
def test_the_formula_is_the_loop(num: int, spare: int, multiple_of: int, largest: int | None) -> None:
    """Fault tried: rounds without the limit of `largest`."""
    sizes = Sizes(multiple_of=multiple_of, largest=largest)
    assert uniform(num + spare, num, sizes) == raised(num + spare, num, sizes)


def test_with_fewer_atoms_than_trials_everybody_keeps_one() -> None:
    """Nodes went down while more trials than atoms are up hold theirs."""
    assert uniform_size(3, 5, 0, EVEN) == 1


@given(st.integers(1, 12), st.integers(0, 60), st.sampled_from([1, 2, 4]), st.integers(0, 5))
def test_no_rule_hands_out_more_than_there_is_or_a_size_that_is_not_allowed(
    num: int, spare: int, multiple_of: int, seed: int
) -> None:
    """Fault tried: `_allowed` without the `spare` account."""
    sizes = Sizes(multiple_of=multiple_of)
    atoms = num + spare
    scores: list[float | None] = [None if k % 5 == 4 else 1.0 - k / 20 for k in range(num)]
    for shares in [
        uniform(atoms, num, sizes),
        top(atoms, num, sizes),
        softmax(atoms, scores, sizes),
        at_random(atoms, num, sizes, random.Random(seed)),
    ]:
        assert len(shares) == num
        assert sum(shares) <= atoms
        assert all(sizes.allows(size) for size in shares)


@pytest.mark.parametrize(
    ("table", "now", "new", "left", "restart", "after", "before", "pays"),
    [
        (SQRT, 1, 4, 100, 10, 180, 100, True),
        (SQRT, 4, 8, 100, 10, 252, 200, True),
        (SQRT, 4, 8, 20, 10, 28, 40, False),
        (SQRT, 2, 3, 100, 1, 168.3, 140, True),
        ({1: 1, 2: 2}, 1, 2, 20, 10, 20, 20, False),
        ({1: 1, 2: 2}, 1, 2, 21, 10, 22, 21, False),
        ({1: 1, 2: 2}, 1, 2, 23, 10, 26, 23, True),
        ({1: 1, 2: 1.77, 4: 2.93, 8: 4.29}, 8, 16, 1000, 10, 4247.1, 4290, False),
        ({1: 1, 2: 1.77, 4: 2.93, 8: 4.29}, 4, 16, 1000, 10, 4247.1, 2930, True),
    ],
)
def test_t17_a_resize_must_pay_for_its_restart(
    table: dict[int, float],
    now: int,
    new: int,
    left: float,
    restart: float,
    after: float,
    before: float,
    pays: bool,
) -> None:
    """s(new) (T_left - T_o) against 1.1 s(now) T_left; 22 > 21 pays by the paper's rule, not with the margin."""
    scaling = TableScaling(table)
    gain = gain_of(
        speedup_now=scaling(now), speedup_new=scaling(new), time_left_s=left, restart_s=restart, margin=1.1
    )
    assert (gain.after, gain.before, gain.pays) == (pytest.approx(after), pytest.approx(before), pays)


def test_t17_the_papers_rule_has_no_margin_and_a_past_deadline_never_pays() -> None:
    assert gain_of(speedup_now=1, speedup_new=2, time_left_s=21, restart_s=10, margin=1.0).pays
    assert not gain_of(speedup_now=1, speedup_new=2, time_left_s=-1, restart_s=0, margin=1.1).pays


def test_t18_interpolation_is_linear_and_flat_at_the_ends() -> None:
    sqrt = scaling_of(ScalingSettings(assume="sqrt"))
    assert (sqrt(3), sqrt(6), sqrt(12)) == (pytest.approx(1.7), pytest.approx(2.4), pytest.approx(3.4))
    assert sqrt(64) == 5.7
    assert scaling_of(ScalingSettings(assume={2: 1.5, 4: 3.0}))(1) == 1.5
    assert scaling_of(ScalingSettings(assume="none"))(8) == 1.0
    assert scaling_of(ScalingSettings(assume="linear"))(37) == 37.0
