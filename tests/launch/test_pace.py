"""How fast steps are created: a property over any sequence of wishes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcsched.launch.pace import Pace, PaceLimits


@given(
    waits=st.lists(st.floats(0, 3), max_size=200),
    limits=st.builds(
        PaceLimits, max_creating=st.integers(1, 8), burst=st.integers(1, 10), per_s=st.floats(0.5, 20)
    ),
)
def test_never_more_at_once_than_allowed_and_never_faster_than_the_bucket(
    waits: list[float], limits: PaceLimits
) -> None:
    pace, now, made = Pace(limits, 0.0), 0.0, 0
    for number, wait in enumerate(waits):
        now += wait
        if pace.may_create(now) == 0:
            made += 1
        elif pace.num_creating and number % 2:
            pace.created()
        assert pace.num_creating <= limits.max_creating
        assert made <= limits.burst + now * limits.per_s + 1e-6


def test_refusals_slow_down_and_a_success_ends_that() -> None:
    pace = Pace(PaceLimits(), 0.0)
    assert [pace.refused(2.0, 0.0, slow_down=True) for _ in range(8)] == [2, 4, 8, 16, 32, 64, 120, 120]
    assert pace.may_create(0.0) == 0
    assert pace.may_create(0.1) > 1.0
    pace.worked()
    assert pace.refused(2.0, 0.0, slow_down=False) == 2.0
