"""The share of trial-seconds that reached farther than they had to, from a log."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.placements import Launch, launches_of, least_reach, reach_of, shares_of
from hpcsched.core.events import Event
from hpcsched.core.settings import HyperSchedSettings, Settings
from hpcsched.errors import InputError
from hpcsched.eventlog.records import Record, Step
from hpcsched.sim.paper import PaperWorkload
from hpcsched.sim.request import NO_TIMEOUTS
from hpcsched.sim.simulate import simulate
from hpcsched.topology.machine import AtomId, Node, atoms_of_nodes
from tests.support.journals import a_header

CLUSTER = atoms_of_nodes(
    tuple(
        Node(f"n{i}", ("0", "1", "2", "3"), (0, 1, 2, 3), switches=("spine", f"leaf{(i + 1) // 2}"))
        for i in range(1, 5)
    ),
    1,
)
"""The test cluster's shape: two nodes of four under each of two leaves."""


def journal_of(seed: int) -> list[Record]:
    """A search on that cluster, as its journal would hold it."""
    settings = Settings(
        policy=HyperSchedSettings(), grace_period=2, max_iterations=400, reduction_factor=2, multiple_of=2, num_trials=24, seed=seed,
        timeouts=NO_TIMEOUTS,
    )  # fmt: skip
    records: list[Record] = [a_header(settings=settings)]

    def see(event: Event, actions: object) -> None:
        records.append(Step(n=len(records), event=event, actions=tuple(actions)))  # type: ignore[arg-type]

    simulate(settings, PaperWorkload(seed), machine=CLUSTER, deadline_s=20.0, observer=see)
    return records


@pytest.mark.parametrize("seed", range(3))
def test_the_products_placements_never_reach_farther_than_they_had_to(seed: int) -> None:
    launches = launches_of(journal_of(seed))
    assert sum(launch.num_atoms > 1 for launch in launches) > 5, "a search that resizes"
    shares = shares_of(launches)
    assert shares.too_many_nodes_or_switches == 0.0
    assert shares.over_several_nodes > 0.0


def test_first_fit_would_have_reached_farther_in_some_search() -> None:
    assert max(shares_of(launches_of(journal_of(seed))).first_fit_would for seed in range(3)) > 0.0


def test_shares_are_of_trial_seconds() -> None:
    far = Launch(0, 1, 2, lasted_s=1.0, reach=(1, 2), least=(1, 1), first_fit=(1, 1))
    near = Launch(1, 1, 2, lasted_s=3.0, reach=(1, 1), least=(1, 1), first_fit=(2, 2))
    shares = shares_of([far, near])
    assert (shares.too_many_nodes_or_switches, shares.first_fit_would, shares.over_several_nodes) == (
        0.25,
        0.75,
        0.25,
    )
    assert shares_of([]).trial_s == 0.0


def test_a_journal_without_a_header_is_refused() -> None:
    with pytest.raises(InputError, match="without a header"):
        launches_of(journal_of(0)[1:])


@given(st.sets(st.integers(0, 15), min_size=1, max_size=9), st.data())
def test_the_least_reach_is_that_of_brute_force(usable: set[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(usable)))
    atoms = [AtomId(atom) for atom in sorted(usable)]
    assert least_reach(CLUSTER, atoms, size) == min(
        reach_of(CLUSTER, each) for each in combinations(atoms, size)
    )
