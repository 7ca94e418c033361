"""s(atoms, span): profiles, what is measured, and that resizes are judged by where they would lead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.enums import AtomState
from hpcsched.core.scaling import ENOUGH, MeasuredScaling, Measurements, Point, ProfiledScaling, scaling_of
from hpcsched.core.settings import FifoSettings, HyperSchedSettings, ScalingSettings
from hpcsched.topology.machine import AtomId, Machine, Node, atoms_of_nodes
from hpcsched.topology.span import SPANS, Span
from tests.support.core import Talk, settings

PROFILE = {Span.ISLAND: {2: 1.9, 4: 3.6}, Span.SWITCH: {4: 3.0, 8: 5.0}}


def two_nodes(gpus: int = 4) -> Machine:
    """Under one switch, each one island."""
    names = tuple(str(gpu) for gpu in range(gpus))
    return atoms_of_nodes(tuple(Node(name, names, tuple(range(gpus))) for name in ("a", "b")), 1)


@pytest.mark.parametrize(
    ("atoms", "span", "expected"),
    [
        (1, Span.ISLAND, 1.0),
        (2, Span.ISLAND, 1.9),
        (3, Span.ISLAND, 2.75),
        (8, Span.ISLAND, 3.6),  # flat beyond
        (4, Span.NODE, 3.6),  # not measured: as the next nearer
        (2, Span.SWITCH, 1 + 2 / 3),  # between one atom and four
        (6, Span.SWITCH, 4.0),
        (6, Span.BEYOND, 4.0),
        (100, Span.BEYOND, 5.0),
        (4, None, 3.6),  # the best that so many can give
        (8, None, 5.0),
        (1, None, 1.0),
    ],
)
def test_between_points_it_is_interpolated_and_beyond_them_flat(
    atoms: int, span: Span | None, expected: float
) -> None:
    assert ProfiledScaling(PROFILE, Measurements())(atoms, span) == pytest.approx(expected)


def test_a_nearer_span_that_was_not_measured_takes_the_next_farther() -> None:
    assert ProfiledScaling({Span.BEYOND: {8: 4.0}}, Measurements())(8, Span.ISLAND) == 4.0


@given(
    st.dictionaries(st.integers(1, 64), st.floats(0.1, 64), min_size=1, max_size=6),
    st.sampled_from(SPANS),
    st.integers(1, 200),
)
def test_no_value_lies_outside_what_was_measured(points: dict[int, float], span: Span, atoms: int) -> None:
    known = {1: 1.0, **points}
    value = ProfiledScaling({span: points}, Measurements())(atoms, span)
    assert min(known.values()) - 1e-9 <= value <= max(known.values()) + 1e-9
    if atoms in known:
        assert value == known[atoms]


def test_a_profile_goes_before_an_assumption_and_without_a_span_its_best_one_counts() -> None:
    spans = {"node": {1: 1.0, 2: 1.9}, "switch": {2: 1.6, 4: 3.0}}
    scaling = scaling_of(ScalingSettings(assume="none", spans=spans))
    assert (scaling(2), scaling(4)) == (1.9, 3.0)


def test_reports_replace_a_point_of_the_profile_once_there_are_enough() -> None:
    measured = Measurements()
    scaling = ProfiledScaling(PROFILE, measured)
    for number in range(ENOUGH):
        assert scaling(4, Span.SWITCH) == 3.0
        measured.observe(4, Span.SWITCH, 2.0 + 0.1 * number)
    assert scaling(4, Span.SWITCH) == 2.1
    assert scaling(6, Span.SWITCH) == pytest.approx((2.1 + 5.0) / 2)
    assert scaling(4, Span.ISLAND) == 3.6


def test_measured_speed_is_the_median_and_growth_is_hoped_for_up_to_twice_the_largest_size_seen() -> None:
    """Without hope nothing would grow and so nothing would be measured; without an end what nobody tried would look best."""
    measured = Measurements()
    scaling = MeasuredScaling(measured)
    assert (scaling(1), scaling(2), scaling(4)) == (1.0, 2.0, 2.0)
    for speedup in (1.5, 1.6, 9.0):
        measured.observe(2, Span.ISLAND, speedup)
    assert (scaling(1), scaling(2), scaling(4), scaling(8)) == (1.0, 1.6, 3.2, 3.2)
    measured.observe(2, Span.SWITCH, 1.2)
    assert (scaling(2), scaling(2, Span.ISLAND), scaling(2, Span.SWITCH)) == (1.6, 1.6, 1.2)
    assert (scaling(2, Span.NODE), scaling(2, Span.BEYOND)) == (1.6, 1.2)
    assert measured.points() == [Point(2, Span.ISLAND, 1.6, 3), Point(2, Span.SWITCH, 1.2, 1)]


@pytest.mark.parametrize("assume", ["linear", "sqrt", "none", {2: 1.5}])
def test_an_assumption_stands_whatever_is_measured_and_knows_no_distance(assume: object) -> None:
    measured = Measurements()
    scaling = scaling_of(ScalingSettings(assume=assume), measured)  # type: ignore[arg-type]
    before = scaling(2)
    for _ in range(10):
        measured.observe(2, Span.ISLAND, 1.01)
    assert scaling(2) == scaling(2, Span.BEYOND) == before
    assert not scaling.knows_distance


# ---- in the engine


def grown(spans: dict[str, dict[int, float]] | None, *, alone: bool) -> tuple[int, Talk]:
    """Atoms of trial 0 after its sixth result, eight atoms on two nodes of four. `alone`: it may have them all; else
    another trial trains and nobody else comes."""
    talk = Talk(
        settings(
            HyperSchedSettings(),
            multiple_of=2,
            num_trials=1 if alone else 2,
            request_ahead=False,
            scaling=ScalingSettings(assume="linear", spans=spans),
        ),
        atoms=two_nodes(),
        deadline_s=1000.0,
    )
    for _ in range(1 if alone else 2):
        talk.submit()
    talk.started(0, 1.0)
    for iteration in range(1, 8):
        talk.now += 1.0
        said = talk.result(0, iteration, 0.1 * iteration)
        if "PreemptTrial 0.1 resize" in said:
            talk.leaves(0)
            break
    return talk.scheduler.trials[0].num_atoms, talk


def test_a_trial_grows_as_far_as_its_placement_makes_it_faster() -> None:
    """Uniform allocation gives it all eight. Over two nodes it would be slower than on one."""
    assert grown(None, alone=True)[0] == 8
    near = {"island": {2: 1.9, 4: 3.6}, "switch": {6: 3.0, 8: 3.4}}
    size, talk = grown(near, alone=True)
    assert size == 4
    assert talk.scheduler.trials[0].span is Span.ISLAND
    far = {"island": {2: 1.9, 4: 3.6}, "switch": {6: 4.0, 8: 5.2}}
    size, talk = grown(far, alone=True)
    assert size == 8
    assert talk.scheduler.trials[0].span is Span.SWITCH


def test_speed_is_that_of_the_place_a_trial_has_or_would_get() -> None:
    spans = {"island": {2: 1.9, 4: 3.6}, "switch": {2: 1.2, 4: 2.0, 5: 2.5, 8: 3.0}}
    talk = Talk(settings(FifoSettings(), scaling=ScalingSettings(spans=spans)), atoms=two_nodes())
    talk.submit()
    trial = talk.scheduler.trials[0]
    assert talk.scheduler.speedup(trial, 1) == 1.0
    assert talk.scheduler.speedup(trial, 4) == 3.6
    assert talk.scheduler.speedup(trial, 5) == 2.5
    for _ in range(4):
        talk.submit()
    # Three atoms are free: four are its own and these, wherever it is.
    assert talk.scheduler.num_free == 3
    together = talk.scheduler._ledger.find(4, held=trial.atoms)
    assert together is not None
    node_of = talk.scheduler._ledger.machine.atoms
    num_nodes = len({node_of[atom].node for atom in together.atoms})
    assert talk.scheduler.speedup(trial, 4) == {1: 3.6, 2: 2.0}[num_nodes]
    assert talk.scheduler.speedup(trial, 8) == 3.0  # it does not fit: what so many atoms could give at best


def test_its_own_atoms_count_as_free_for_a_trial_that_would_grow() -> None:
    """Of the other node one atom is left: it can have all of its own node only with the atom it holds."""
    spans = {"island": {4: 3.6}, "switch": {4: 2.0}}
    talk = Talk(
        settings(FifoSettings(), scaling=ScalingSettings(assume="none", spans=spans)), atoms=two_nodes()
    )
    talk.submit()
    trial = talk.scheduler.trials[0]
    mine = talk.machine.atoms[trial.atoms[0]].node
    others = [atom.atom_id for atom in talk.machine.atoms if atom.node != mine]
    talk.scheduler._ledger.set_aside(others[:3])
    assert talk.scheduler.num_free == 4  # three beside it and one elsewhere
    assert talk.scheduler.speedup(trial, 4) == 3.6


def test_what_trials_report_is_kept_by_size_and_span_and_costs_by_size() -> None:
    _, talk = grown(None, alone=True)
    talk.started(0, 2.0)
    for iteration in (8, 9, 10):
        talk.now += 0.2
        talk.result(0, iteration, 0.8, took_s=0.2)
    assert talk.scheduler.measured.points() == [Point(8, Span.SWITCH, 5.0, 3)]
    assert talk.scheduler.restart_costs_s() == {1: 1.0, 8: 2.0}
    assert talk.scheduler.scaling(8) == 8.0  # assumed


def test_a_trial_that_never_ran_on_one_atom_is_compared_where_others_have_been() -> None:
    talk = Talk(settings(FifoSettings(), scaling=ScalingSettings(assume=None)), atoms=two_nodes())
    scheduler = talk.scheduler
    for _ in range(2):
        talk.submit()
        talk.started(len(scheduler.trials) - 1)
    first, second = scheduler.trials
    talk.result(0, 1, 0.1, took_s=8.0)
    scheduler._speeds.measure(first, 2, 5.0)  # as if it had been resized
    assert scheduler.measured.at(2, Span.ISLAND) == 1.6
    scheduler._speeds.measure(second, 2, 10.0)
    assert second.one_atom_iter_s == 16.0
    scheduler._speeds.measure(second, 2, 9.0)
    assert scheduler.measured.points() == [
        Point(2, Span.ISLAND, 1.6, 1)
    ]  # nothing new from where it was inferred
    scheduler._speeds.measure(second, 4, 5.0)
    assert scheduler.measured.at(4, Span.ISLAND) == 3.2


def test_a_plan_counts_on_the_span_that_this_machine_can_give() -> None:
    """The profile was measured on nodes of eight; here they have four, and eight atoms lie on two of them."""
    spans = {"island": {4: 3.8, 8: 7.0}, "switch": {8: 5.0}}
    talk = Talk(settings(FifoSettings(), scaling=ScalingSettings(spans=spans)), atoms=two_nodes())
    scheduler = talk.scheduler
    assert (scheduler.scaling(4), scheduler.scaling(8)) == (3.8, 5.0)
    assert scheduler.scaling(9) == 7.0  # more than there are: the best of any span
    scheduler._ledger.set_aside([AtomId(0)])
    assert scheduler.scaling(4) == 3.8  # still a whole node
    scheduler._ledger.node_down("b")
    assert scheduler.scaling(3) == pytest.approx(1 + 2.8 * 2 / 3)


def test_a_plan_for_several_counts_on_what_each_would_get() -> None:
    """Five atoms each for three trials on two nodes of eight: the third gets three here and two there."""
    spans = {"island": {5: 4.5}, "switch": {5: 3.0}}
    talk = Talk(settings(FifoSettings(), scaling=ScalingSettings(spans=spans)), atoms=two_nodes(8))
    planned = talk.scheduler.planned_scaling
    assert (planned(5, 1), planned(5, 2)) == (4.5, 4.5)
    assert planned(5, 3) == pytest.approx((4.5 + 4.5 + 3.0) / 3)
    assert planned(5, 9) == planned(5, 3)  # no more than three fit
    flat = Talk(settings(FifoSettings(), scaling=ScalingSettings(assume="sqrt")), atoms=two_nodes(8))
    assert flat.scheduler.planned_scaling(6, 5) == flat.scheduler.scaling(6) == 2.4


def test_what_one_trial_gives_up_counts_where_the_other_would_grow() -> None:
    """Both hold half of a node; when the one shrinks to an atom, the other gets three on its own node, none elsewhere."""
    spans = {"island": {2: 1.9, 3: 2.7}, "switch": {2: 1.2, 3: 1.5}}
    talk = Talk(
        settings(FifoSettings(), multiple_of=1, scaling=ScalingSettings(spans=spans)), atoms=two_nodes()
    )
    scheduler = talk.scheduler
    ledger = scheduler._ledger
    for _ in range(8):
        talk.submit()
    first, second = scheduler.trials[0], scheduler.trials[1]
    node_of = [atom.node for atom in talk.machine.atoms]
    ledger.release([*first.atoms, *second.atoms])
    first.atoms = second.atoms = ()
    free = [atom.atom_id for atom in talk.machine.atoms if ledger.state(atom.atom_id) is AtomState.FREE]
    assert len(free) == 2 and len({node_of[atom] for atom in free}) == 1, "the first two stood side by side"
    side = [atom.atom_id for atom in talk.machine.atoms if atom.node == node_of[free[0]]]
    other = next(atom for atom in side if atom not in free)
    third = scheduler.trials[ledger.holder(other) or 0]
    ledger.hold(first.trial_id, free)
    first.atoms = tuple(free)
    before = ledger.num_free
    assert scheduler.speedups_after(first, 1, third, 2) == (1.0, 1.9)
    assert scheduler.speedup(third, 2) == 1.9  # nothing is free: what a place of its own would give
    assert ledger.num_free == before, "asking changes nothing"
    ledger.check()


def test_the_restart_costs_of_a_profile_count_until_one_was_measured_at_that_size() -> None:
    talk = Talk(settings(FifoSettings(), scaling=ScalingSettings(restart_s={1: 5.0, 4: 9.0})))
    assert (talk.scheduler.restart_cost_s(1), talk.scheduler.restart_cost_s(8)) == (5.0, 9.0)
    talk.submit()
    talk.started(0, 1.5)
    assert talk.scheduler.restart_cost_s(1) == 1.5
    assert talk.scheduler.restart_cost_s(8) == 1.5 * 9.0 / 5.0, "as much more as the profile says"


def test_a_resize_is_judged_by_what_a_profile_says_of_a_start_at_its_size() -> None:
    """A start on one atom took a second; on eight the profile has it take thirty times as long, and 40 s are left."""

    def size_after(restart_s: dict[int, float]) -> int:
        talk = Talk(
            settings(
                HyperSchedSettings(entrance="none"),
                num_trials=1,
                request_ahead=False,
                scaling=ScalingSettings(restart_s=restart_s),
            ),
            atoms=two_nodes(),
            deadline_s=47.0,
        )
        talk.submit()
        talk.started(0, 1.0)
        for iteration in range(1, 8):
            talk.now += 1.0
            if "PreemptTrial 0.1 resize" in talk.result(0, iteration, 0.1 * iteration):
                talk.leaves(0)
                break
        return talk.scheduler.trials[0].num_atoms

    assert size_after({}) == size_after({1: 1.0, 8: 2.0}) == 8
    assert size_after({1: 1.0, 8: 39.0}) == 1
