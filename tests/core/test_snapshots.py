"""What was known at an iteration, against a plain list of everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.snapshots import MOST_SNAPSHOTS, Snapshot, Snapshots

RESULTS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.none() | st.floats(-1e300, 1e300),
        st.lists(st.floats(-1e9, 1e9), max_size=2).map(tuple),
        st.none() | st.integers(0, 40),
    ),
    max_size=60,
)


@given(RESULTS)
def test_each_is_what_was_added_until_it_is_forgotten(results: list[tuple[int, float | None, tuple[float, ...], int | None]]) -> None:  # fmt: skip
    mine, plain, iteration = Snapshots(), dict[int, Snapshot](), 0
    for step, score, window, forget in results:
        iteration += step
        mine.add(iteration, score, window, 0.5 * iteration)
        plain[iteration] = Snapshot(iteration, score, window, 0.5 * iteration)
        if forget is not None:
            mine.forget_until(iteration - forget)
            plain = {at: known for at, known in plain.items() if at > iteration - forget}
        assert len(mine) == len(plain)
        assert [mine.at(at) for at in range(iteration + 2)] == [plain.get(at) for at in range(iteration + 2)]


def test_the_latest_stay_and_the_oldest_go() -> None:
    snapshots = Snapshots()
    for iteration in range(1, 5001):
        snapshots.add(iteration, float(iteration), (1.0,), 0.0)
        assert MOST_SNAPSHOTS <= len(snapshots) <= 2 * MOST_SNAPSHOTS or iteration < MOST_SNAPSHOTS
        oldest = snapshots.at(max(1, iteration - MOST_SNAPSHOTS + 1))
        assert oldest is not None and oldest.window == (1.0,)
    assert snapshots.at(5000 - 2 * MOST_SNAPSHOTS) is None
