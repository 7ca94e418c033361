"""The study of placements: what it compares is what it says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from analysis.topology import (
    FACTORS,
    FirstFit,
    RandomFit,
    Row,
    Setting,
    interval,
    least_reach,
    machine_of,
    nearest_span,
    reach,
    run,
    summary_of,
    table_of,
)
from hpcsched.topology.machine import AtomId
from hpcsched.topology.pool import Pool
from hpcsched.topology.span import span_of

SMALL = Setting(num_gpus=64, num_trials=60, deadline_s=4.0, num_seeds=1)


def test_our_pool_never_reaches_farther_than_it_must_and_the_others_do() -> None:
    rows = {placement: run(SMALL, "usual", placement, 0) for placement in ("topology", "random")}
    assert rows["topology"].avoidable_share == 0.0
    assert rows["random"].avoidable_share > 0.02
    assert rows["random"].speed_share < rows["topology"].speed_share


def test_a_run_is_the_same_each_time() -> None:
    assert run(SMALL, "steep", "random", 1) == run(SMALL, "steep", "random", 1)


@given(st.integers(1, 64), st.sets(st.integers(0, 63), max_size=60))
def test_other_placements_take_free_atoms_and_never_reach_less_far(size: int, taken: set[int]) -> None:
    machine = machine_of(64)
    for pool in (FirstFit(machine), RandomFit(machine, 0)):
        pool.take(AtomId(atom) for atom in sorted(taken))
        found = pool.find(size)
        ours = Pool.find(pool, size)
        assert (found is None) == (ours is None) == (size > 64 - len(taken))
        if found is not None and ours is not None:
            assert len(set(found.atoms)) == size and taken.isdisjoint(found.atoms)
            assert reach(machine, found.atoms) >= reach(machine, ours.atoms)


@given(st.integers(1, 64))
def test_on_an_empty_machine_our_pool_reaches_no_farther_than_the_ideal(size: int) -> None:
    machine = machine_of(64)
    found = Pool(machine).find(size)
    assert found is not None
    assert reach(machine, found.atoms) == least_reach(size)
    assert span_of(machine, found) is nearest_span(size)


def test_the_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert abs(half - 2.78 * 2.5**0.5 / 5**0.5) < 1e-9


def test_the_table_pairs_by_seed() -> None:
    def row(placement: str, seed: int, score: float) -> Row:
        return Row(64, next(iter(FACTORS)), placement, seed, score, 10, 1.0, 0.1, 0.0, 0.0)

    rows = [row("topology", 0, 0.5), row("topology", 1, 0.9), row("random", 1, 0.8), row("random", 0, 0.4)]
    assert "+0.1000 ± 0.0000" in table_of(rows)[-1]


def test_the_summary_says_what_is_ours_less_the_others_and_what_restarts_cost() -> None:
    def row(placement: str, seed: int, score: float, restarts: float) -> Row:
        return Row(64, "usual", placement, seed, score, 10, 1.0, restarts, 0.0, 0.25)

    rows = [
        row(placement, seed, score + 0.1 * seed, restarts)
        for placement, score, restarts in (
            ("topology", 0.5, 0.1),
            ("first-fit", 0.4, 0.2),
            ("random", 0.3, 0.3),
            ("ideal", 0.6, 0.1),
            ("profiled", 0.55, 0.1),
        )
        for seed in (1, 0)
    ]
    (line,) = summary_of(rows)[2:]
    assert line == (
        "| 64 | usual: 1, 0.95, 0.8, 0.6 | 2 | 0.5500 | **+0.1000 ± 0.0000** | **+0.2000 ± 0.0000** | **+0.0500 ± 0.0000** | "
        "**+0.1000 ± 0.0000** | 10.0 ± 0.0 % | 20.0 ± 0.0 % | 30.0 ± 0.0 % | 25.0 % |"
    )
