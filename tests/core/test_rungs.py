"""Cases T1 to T10 and T24: what rungs and brackets say."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.brackets import PromotionBracket, SpeculativeBracket, StoppingBracket
from hpcsched.core.enums import Mode
from hpcsched.core.ids import TrialId
from hpcsched.core.rungs import PercentileRung, TopRung, milestones_of

EVERYBODY = lambda trial_id: True  # noqa: E731 - a name for the argument of `promotion`


def speculative(
    r: int = 2, most: int = 1000, eta: int = 4, *, protect_leader: bool = False
) -> SpeculativeBracket:
    return SpeculativeBracket(
        grace_period=r, max_iterations=most, reduction_factor=eta, protect_leader=protect_leader
    )


class Names:
    """Trials by letter, as the cases write them; a trial that is objected to is paused at once."""

    def __init__(self, bracket: SpeculativeBracket | PromotionBracket | StoppingBracket) -> None:
        self.bracket = bracket
        self.ids: dict[str, TrialId] = {}

    def id(self, name: str) -> TrialId:
        return self.ids.setdefault(name, TrialId(len(self.ids)))

    def __call__(self, name: str, iteration: int, score: float | None, problem: str | None = None) -> str:
        objection = self.bracket.judge(self.id(name), iteration, score, problem)
        if objection is None:
            return "CONTINUE"
        if objection.for_good:
            return "STOP"
        self.bracket.paused(self.id(name))
        return "PAUSE"

    def promotable(self) -> list[str]:
        """All that may go on, in order; they stop waiting by that."""
        found = []
        by_id = {trial_id: name for name, trial_id in self.ids.items()}
        while (promotion := self.bracket.promotion(EVERYBODY)) is not None:
            found.append(by_id[promotion.trial_id])
        return found


def test_t1_milestones_are_counted_in_integers() -> None:
    """r eta^i <= R. ln 243 / ln 3 is 4.999... and ln 1000 / ln 10 is 2.999... in floating point."""
    assert milestones_of(2, 200, 4) == (2, 8, 32, 128)
    assert milestones_of(10, 500, 4) == (10, 40, 160)
    assert milestones_of(5, 500, 4) == (5, 20, 80, 320)
    assert milestones_of(1, 243, 3) == (1, 3, 9, 27, 81, 243)
    assert milestones_of(1, 1000, 10) == (1, 10, 100, 1000)


def test_t2_speculation_and_re_check() -> None:
    """p75 of what is recorded before: [.3] undefined; [.3 .5] .45; [.3 .46 .5] .48; [.3 .44 .46 .5] .47."""
    says = Names(speculative())
    assert says("A", 2, 0.30) == "CONTINUE"
    assert says("B", 2, 0.50) == "CONTINUE"
    assert says("A", 3, 0.55) == "PAUSE"
    assert says("B", 3, 0.52) == "CONTINUE"
    assert says("C", 2, 0.46) == "CONTINUE"
    assert says("D", 2, 0.44) == "PAUSE"
    assert says("C", 3, 0.60) == "PAUSE"
    assert says.promotable() == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [([0.10, 0.12, 0.05], ["C"]), ([0.10, 0.12, 0.05, 0.10, 0.12, 0.05, 0.02], ["C", "D"])],
)
def test_t3_a_falling_cutoff_promotes(more: list[float], expected: list[str]) -> None:
    """After three: sorted .05 .1 .12 .3 .44 .46 .5, position 4.5: .45. After seven: n = 11, position 7.5: .37."""
    says = Names(speculative())
    for name, iteration, score in [
        ("A", 2, 0.3),
        ("B", 2, 0.5),
        ("A", 3, 0.55),
        ("C", 2, 0.46),
        ("D", 2, 0.44),
    ]:
        says(name, iteration, score)
    assert says("C", 3, 0.60) == "PAUSE"
    for number, score in enumerate(more):
        assert says(f"new{number}", 2, score) == "PAUSE"
    assert says.promotable() == expected


def test_t4_equal_scores_are_never_paused() -> None:
    says = Names(speculative())
    for iteration in (2, 3):
        for name in "ABCDEF":
            assert says(name, iteration, 0.5) == "CONTINUE"


@pytest.mark.parametrize(
    ("n", "kept"), [*zip(range(1, 14), [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4], strict=True)]
)
def test_t5_ceil_n_by_eta_distinct_scores_pass(n: int, kept: int) -> None:
    rung = PercentileRung(1, 4)
    for trial_id in range(n):
        rung.record(TrialId(trial_id), trial_id / 100)
    cutoff = rung.cutoff()
    passing = n if cutoff is None else sum(score >= cutoff for score in rung.scores.values())
    assert passing == (n if n < 2 else kept)


@pytest.mark.parametrize("eta", range(2, 8))
def test_ceil_n_by_eta_pass_for_every_eta(eta: int) -> None:
    """Floating point keeps 3 of 10 at eta = 3, not 4 (1.6). Fault tried: the position as (n - 1) * (1 - 1 / eta)."""
    rung = PercentileRung(1, eta)
    order = list(range(100))
    random.Random(eta).shuffle(order)
    for n, k in enumerate(order, start=1):
        rung.record(TrialId(k), k / 7)
        cutoff = rung.cutoff()
        assert n < 2 or sum(score >= (cutoff or 0.0) for score in rung.scores.values()) == -(-n // eta)


def test_t6_asha_pauses_whoever_is_not_in_the_top() -> None:
    """floor(n / 4): nobody of 1 to 3, the best of 4 to 7, the best two of 8."""
    says = Names(PromotionBracket(grace_period=2, max_iterations=200, reduction_factor=4))
    arrivals = [0.3, 0.5, 0.4, 0.6, 0.2, 0.55, 0.1, 0.58]
    expected = ["PAUSE", "PAUSE", "PAUSE", "CONTINUE", "PAUSE", "PAUSE", "PAUSE", "CONTINUE"]
    for number, (score, verdict) in enumerate(zip(arrivals, expected, strict=True)):
        assert says(str(number), 2, score) == verdict
        assert says.promotable() == []


def test_t7_asha_stopping_compares_with_earlier_arrivals() -> None:
    """eta = 2: medians of [], [.5], [.4 .5] .45, [.4 .5 .6] .5, [.4 .45 .5 .6] .475, [.4 .45 .5 .55 .6] .5.
    eta = 4: p75 of [], [.3], [.3 .5] .45, [.3 .46 .5] .48, [.3 .44 .46 .5] .47, [.2 .3 .44 .46 .5] .46."""
    says = Names(StoppingBracket(grace_period=1, max_iterations=100, reduction_factor=2))
    verdicts = [says(str(k), 1, score) for k, score in enumerate([0.5, 0.4, 0.6, 0.45, 0.55, 0.5])]
    assert verdicts == ["CONTINUE", "STOP", "CONTINUE", "STOP", "CONTINUE", "CONTINUE"]
    says = Names(StoppingBracket(grace_period=1, max_iterations=100, reduction_factor=4))
    verdicts = [says(str(k), 1, score) for k, score in enumerate([0.3, 0.5, 0.46, 0.44, 0.2, 0.6])]
    assert verdicts == ["CONTINUE", "CONTINUE", "CONTINUE", "STOP", "STOP", "CONTINUE"]


@pytest.mark.parametrize(("protect_leader", "verdict"), [(False, "PAUSE"), (True, "CONTINUE")])
def test_t8_a_low_rung_pauses_the_leader_unless_protected(protect_leader: bool, verdict: str) -> None:
    """Rung 2 in the end: .1 .15 .2 .4 .45 .5 .55, position 4.5: cutoff .475 above X's .40; X leads rung 8 with .80.

    Each q reports at 2 and at 8 before the next one comes: with all three at rung 2 first, q0's own .45 would be
    below the cutoff .475 when it reports at 8, by the very rule that pauses X."""
    says = Names(speculative(protect_leader=protect_leader))
    assert says("X", 2, 0.40) == "CONTINUE"
    for name, score in [("p0", 0.2), ("p1", 0.1), ("p2", 0.15)]:
        says(name, 2, score)
    assert says("X", 8, 0.80) == "CONTINUE"
    for name, score, at_eight in [("q0", 0.45, "CONTINUE"), ("q1", 0.50, "PAUSE"), ("q2", 0.55, "PAUSE")]:
        assert says(name, 2, score) == "CONTINUE"
        assert says(name, 8, 0.5) == at_eight
    assert says("X", 9, 0.82) == verdict


def test_t9_a_missing_metric_records_nothing_and_goes_on() -> None:
    bracket = speculative()
    says = Names(bracket)
    assert says("A", 2, None, "missing") == "CONTINUE"
    assert all(not rung.scores for rung in bracket.rungs)
    assert says("A", 3, 0.4) == "CONTINUE"
    assert bracket.rungs[-1].scores == {0: 0.4}


@pytest.mark.parametrize("make", [SpeculativeBracket, PromotionBracket, StoppingBracket])
def test_a_trial_that_never_reports_the_metric_is_stopped_at_its_second_milestone(make: type) -> None:
    says = Names(make(grace_period=2, max_iterations=100, reduction_factor=4))
    assert [says("A", k, None, "missing") for k in range(2, 8)] == ["CONTINUE"] * 6
    assert says("A", 8, None, "missing") == "STOP"


@pytest.mark.parametrize("make", [SpeculativeBracket, PromotionBracket, StoppingBracket])
@pytest.mark.parametrize("problem", ["nan", "inf", "-inf"])
def test_a_diverged_trial_is_stopped_at_a_milestone_and_never_promoted(make: type, problem: str) -> None:
    says = Names(make(grace_period=2, max_iterations=100, reduction_factor=2))
    assert says("A", 1, None, problem) == "CONTINUE"
    assert says("A", 2, None, problem) == "STOP"
    says("B", 2, 0.5)
    says("C", 2, 0.4)
    assert "A" not in says.promotable()


def test_a_diverged_trial_is_still_checked_against_its_records() -> None:
    says = Names(speculative())
    says("A", 2, 0.30)
    says("B", 2, 0.50)
    assert says("A", 3, None, "nan") == "PAUSE"


def test_t10_the_first_score_at_or_after_a_milestone_stays() -> None:
    bracket = speculative()
    says = Names(bracket)
    says("A", 2, 0.30)
    says("B", 2, 0.50)
    says("B", 3, 0.99)
    assert bracket.rungs[-1].scores[says.id("B")] == 0.50


def test_a_report_that_steps_over_milestones_is_recorded_at_each() -> None:
    bracket = speculative(r=2, most=200)
    Names(bracket)("A", 40, 0.7)
    assert [(rung.milestone, rung.scores) for rung in bracket.rungs] == [
        (128, {}), (32, {0: 0.7}), (8, {0: 0.7}), (2, {0: 0.7}),
    ]  # fmt: skip
    top = PromotionBracket(grace_period=2, max_iterations=200, reduction_factor=4)
    assert Names(top)("A", 40, 0.7) == "PAUSE"
    assert [len(rung.records) for rung in top.rungs] == [0, 1, 1, 1]


def test_t24_the_best_finished_trial_is_promoted_once() -> None:
    """eta = 3, .2 .5 .4: one of three. Three more finished: two of six in total. Higher rungs first."""
    says = Names(PromotionBracket(grace_period=1, max_iterations=81, reduction_factor=3))
    for name, score in [("A", 0.2), ("B", 0.5), ("C", 0.4)]:
        assert says(name, 1, score) == "PAUSE"
    assert says.promotable() == ["B"]
    assert says.promotable() == []
    for name, score in [("D", 0.1), ("E", 0.15), ("F", 0.12)]:
        assert says(name, 1, score) == "PAUSE"
    assert says.promotable() == ["C"]


def test_higher_rungs_are_scanned_first() -> None:
    says = Names(PromotionBracket(grace_period=1, max_iterations=8, reduction_factor=2))
    for name, score in [("A", 0.5), ("B", 0.4), ("C", 0.3), ("D", 0.2)]:
        says(name, 1, score)
    for name, score in [("A", 0.9), ("B", 0.8)]:
        says(name, 2, score)
    for name, score in [("E", 0.6), ("F", 0.55)]:
        says(name, 1, score)
    assert says.promotable()[0] == "A"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(2, 5), st.data())
def test_the_top_of_a_rung_is_the_top_of_the_definition(
    scores: list[int], eta: int, data: st.DataObject
) -> None:
    """The best floor(n / eta), ties to the earlier, after each record; who waits among them is offered best first.

    Fault tried: `>=` in TopRung.record (ties to the later)."""
    rung = TopRung(1, eta)
    waiting: set[int] = set()
    for number, score in enumerate(scores):
        rung.record(TrialId(number), float(score))
        if data.draw(st.booleans()):
            waiting.add(number)
            rung.pause(TrialId(number))
        ranked = sorted(range(number + 1), key=lambda k: (-scores[k], k))[: (number + 1) // eta]
        assert {k for k, record in rung.records.items() if record.in_top} == set(ranked)
        best = rung.best_waiting()
        expected = [k for k in ranked if k in waiting]
        assert (None if best is None else best.trial_id) == (expected[0] if expected else None)
        if best is not None and data.draw(st.booleans()):
            rung.discard()
            rung.resume(best.trial_id)
            waiting.discard(best.trial_id)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9), st.integers(0, 9)), max_size=80), st.booleans()
)
def test_whoever_waits_and_belongs_to_the_top_is_promoted(
    reports: list[tuple[int, int, int]], speculate: bool
) -> None:
    """After any reports: nobody who still waits after all promotions would pass by the plain definition.

    Fault tried: SpeculativeBracket.promotion that looks at the lowest rung only."""
    bracket = speculative(r=1, most=9, eta=2) if speculate else PromotionBracket(grace_period=1, max_iterations=9, reduction_factor=2)  # fmt: skip
    waits: dict[int, int] = {}
    for trial_id, iteration, score in reports:
        if trial_id in waits:
            continue
        if bracket.judge(TrialId(trial_id), iteration, float(score), None) is not None:
            bracket.paused(TrialId(trial_id))
            waits[trial_id] = iteration
    while (promotion := bracket.promotion(EVERYBODY)) is not None:
        waits.pop(promotion.trial_id)
    for rung in bracket.rungs:
        if isinstance(rung, PercentileRung):
            ordered = sorted(rung.scores.values())
            if len(ordered) < 2:
                continue
            cutoff = ordered[(len(ordered) - 1) // 2] / 2 + ordered[len(ordered) // 2] / 2
            here = [k for k in waits if bracket._waits_at.get(TrialId(k)) is rung]  # type: ignore[union-attr]
            assert all(rung.scores[TrialId(k)] < cutoff for k in here)
        else:
            assert not any(record.in_top and record.waiting for record in rung.records.values())


@pytest.mark.parametrize("bracket", [SpeculativeBracket, PromotionBracket, StoppingBracket])
def test_people_see_their_own_metric_where_less_is_better(bracket: type) -> None:
    """Scores are negated before brackets see them; what brackets say of them is not."""
    made = bracket(grace_period=1, max_iterations=9, reduction_factor=3, mode=Mode.MIN)
    said = []
    for number, loss in enumerate((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.0)):
        objection = made.judge(TrialId(number), 1, -loss, None)
        if objection is not None:
            said.append(objection.because)
            made.paused(TrialId(number))
        promotion = made.promotion(lambda trial_id: True)
        if promotion is not None:
            said.append(promotion.because)
    assert said
    assert not [because for because in said if re.search(r"(score|cutoff|has) -", because)]
    assert any("score 0.6 " in because for because in said)
    if bracket is not PromotionBracket:
        assert any("is above the cutoff 0." in because for because in said)
