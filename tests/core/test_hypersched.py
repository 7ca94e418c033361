"""The policy `hypersched` through the scheduler: cases T14, T19, T27, T28 and the no-cost half of T30.

T29 needs the recorded seeds and many runs: the simulator's tests have it.
"""

from __future__ import annotations

import pytest

from hpcsched.core.actions import PreemptTrial, StartTrial
from hpcsched.core.enums import PreemptReason
from hpcsched.core.events import ResultReported, SearchExhausted, TrialStopRequested
from hpcsched.core.settings import HyperSchedSettings, ScalingSettings, Settings
from tests.support.core import Talk, settings
from tests.support.virtual import NO_TIMEOUTS, World, machine


def hypersched(**options: object) -> HyperSchedSettings:
    return HyperSchedSettings(**options)  # type: ignore[arg-type]


def started(talk: Talk, num: int) -> Talk:
    for _ in range(num):
        talk.submit()
    for trial_id in range(min(num, len(talk.machine.atoms))):
        talk.started(trial_id, 0.0)
    return talk


# ---- T14: what the closing of the entrance does


def closing(**options: object) -> Talk:
    """T = 100, R Ta = 1000, three trials on two atoms: 0 runs and has trained 30 s, 1 is paused, 2 is pending."""
    given = settings(
        hypersched(**options), max_iterations=100, grace_period=1, num_trials=3, request_ahead=False
    )
    talk = started(Talk(given, atoms=2, deadline_s=100.0), 3)
    talk.now = 10.0
    talk.result(0, 1, 0.9, took_s=10.0)
    talk.result(1, 1, 0.1, took_s=10.0)
    return talk


def test_t14_at_the_closure_pending_and_paused_trials_are_dropped_and_running_ones_go_on() -> None:
    """At t = 20 the bound is 4 (20 - 0) = 80 = T_left: open. At 30 it is 120 > 70: closed."""
    talk = closing()
    talk.now = 20.0
    assert talk.result(1, 2, 0.1, took_s=10.0) == ["PreemptTrial 1.1 pause"]
    assert talk.leaves(1) == ["PublishBest 1.1@2 0.1", "StartTrial 2.1 on 1"]
    talk.started(2)
    talk.now = 30.0
    talk.result(0, 2, 0.9, took_s=20.0)
    assert [talk.state(k) for k in range(3)] == ["running", "stopped", "running"]


def test_t14_reversible_they_stay_and_start_again_when_the_leader_is_gone() -> None:
    talk = closing(entrance="reversible", keep_paused=True)
    talk.now = 30.0
    talk.result(0, 2, 0.9, took_s=20.0)
    talk.result(1, 2, 0.1, took_s=1.0)
    assert talk.leaves(1) == ["PublishBest 1.1@2 0.1"]
    assert [talk.state(k) for k in range(3)] == ["running", "paused", "pending"]
    talk.saved(0, 2)
    talk.send(TrialStopRequested(31.0, 0))
    assert talk.exited(0) == ["StartTrial 2.1 on 0", "StartTrial 1.2 on 1 from 2"]


def test_keep_paused_alone_drops_what_never_ran_and_keeps_the_paused() -> None:
    talk = closing(keep_paused=True)
    talk.result(1, 2, 0.1, took_s=1.0)
    talk.now = 30.0
    talk.result(0, 2, 0.9, took_s=20.0)
    assert [talk.state(k) for k in range(3)] == ["running", "preempting", "stopped"]
    talk.leaves(1)
    assert talk.state(1) == "paused"


def test_an_ablation_without_entrance_starts_new_trials_until_the_deadline() -> None:
    talk = closing(entrance="none")
    talk.now = 90.0
    talk.result(0, 2, 0.9, took_s=80.0)
    talk.result(1, 2, 0.1, took_s=1.0)
    assert talk.leaves(1) == ["PublishBest 1.1@2 0.1", "StartTrial 2.1 on 1"], (
        "the median iteration takes 10 s"
    )


@pytest.mark.parametrize(("last_resort", "goes_on"), [("first", 2), ("best", 3)])
def test_when_nobody_else_waits_the_first_paused_trial_goes_on_or_the_best(
    last_resort: str, goes_on: int
) -> None:
    """Four atoms, six trials; 2 (.1) and 3 (.3) fall below the median of .9 .8 .1 .3 and make room for 4 and 5. Then an atom is free:
    nobody can be promoted, nobody is new."""
    given = settings(
        hypersched(entrance="none", allocation="none", last_resort=last_resort),
        reduction_factor=2,
        num_trials=6,
        request_ahead=False,
    )
    talk = started(Talk(given, atoms=4, deadline_s=1e6), 6)
    for trial_id, score in enumerate((0.9, 0.8, 0.1, 0.3)):
        talk.result(trial_id, 1, score)
    for trial_id, score, newcomer in ((2, 0.1, 4), (3, 0.3, 5)):
        if talk.state(trial_id) == "running":
            talk.result(trial_id, 2, score)
        assert talk.leaves(trial_id)[-1].startswith(f"StartTrial {newcomer}.1 on ")
    assert [talk.state(k) for k in range(6)] == ["running"] * 2 + ["paused"] * 2 + ["starting"] * 2
    talk.send(TrialStopRequested(1.0, 0))
    (again,) = [said for said in talk.leaves(0) if said.startswith("StartTrial")]
    assert again.startswith(f"StartTrial {goes_on}.2 on ")
    assert talk.because(-1) == f"nothing else waits: the {last_resort} paused trial goes on"


# ---- T19: cool-down


def one_trial(cool_down: int = 5, *, multiple_of: int = 1) -> World:
    return World(
        Settings(
            policy=hypersched(cool_down=cool_down),
            multiple_of=multiple_of,
            timeouts=NO_TIMEOUTS,
            save_at_deadline=False,
            num_trials=1,
            max_iterations=20,
            request_ahead=False,
        ),
        machine(1, 4),
        30.0,
        curve=lambda trial_id, iteration: iteration / 100,
        iteration_s=lambda trial_id, atoms: 0.1 / atoms,
    )


def test_t19_the_first_resize_comes_with_the_sixth_result() -> None:
    """Cool-down 5, one less with each CONTINUE, resize below 0. Start-up .001 and six steps of .1: t = .601."""
    world = one_trial()
    world.run()
    number = next(
        n for n, actions in enumerate(world.actions) if any(isinstance(a, PreemptTrial) for a in actions)
    )
    event = world.events[number]
    assert isinstance(event, ResultReported)
    assert event.training_iteration == 6
    assert event.time == pytest.approx(0.601)
    sizes = [
        len(a.placement.atoms) for actions in world.actions for a in actions if isinstance(a, StartTrial)
    ]
    assert sizes == [1, 4]


# ---- T27: who gets freed atoms


def test_t27_freed_atoms_go_to_promotions_then_new_trials_then_growth() -> None:
    """eta = 2, two atoms. Trial 1 (.1) is paused and a new one starts on its atom, not trial 0 grows. When .05 has
    come in the median of .05 .1 .9 is .1: trial 1 goes on before the new trial 3. With nobody left who waits, trial 0
    grows at its own next result."""
    given = settings(
        hypersched(cool_down=0),
        reduction_factor=2,
        num_trials=4,
        request_ahead=False,
        max_iterations=50,
        grace_period=1,
    )
    talk = started(Talk(given, atoms=2, deadline_s=1e6), 4)
    talk.result(0, 1, 0.9)
    talk.result(1, 1, 0.1)
    talk.result(0, 2, 0.9)
    assert talk.result(1, 2, 0.1) == ["PreemptTrial 1.1 pause"]
    assert talk.leaves(1)[-1] == "StartTrial 2.1 on 1"
    talk.started(2)
    talk.result(2, 1, 0.05)
    talk.result(2, 2, 0.05)
    assert talk.leaves(2)[-1] == "StartTrial 1.2 on 1 from 2"
    assert talk.because(-1) == "its score 0.1 at iteration 1 is not below the cutoff 0.1 of 3 trials"
    talk.started(1)
    for trial_id in (2, 3):
        talk.send(TrialStopRequested(1.0, trial_id))
    talk.send(TrialStopRequested(1.0, 1))
    assert talk.exited(1) == [], "growth waits for the trial's own next result"
    assert talk.result(0, 3, 0.9) == ["PreemptTrial 0.1 resize"]


def test_the_reporting_trial_is_ranked_by_its_previous_result() -> None:
    """Three atoms, two trials: one gets two. Trial 1 reports .9 after .1 and is still second to trial 0's .5."""
    given = settings(hypersched(cool_down=0), reduction_factor=8, grace_period=50, max_iterations=100)
    talk = started(Talk(given, atoms=3, deadline_s=1e6), 2)
    talk.send(SearchExhausted(1.0))
    assert talk.result(1, 1, 0.1) == [], "trial 0, without a result, ranks first, then trial 1"
    assert talk.result(1, 2, 0.9) == []
    assert talk.result(1, 3, 0.9) == [], "now by its .9, but trial 0 has no result yet"
    assert talk.result(0, 1, 0.5) == ["PreemptTrial 0.1 resize"], "ranked by +infinity"


# ---- T28: the size of a paused trial


def paused_at_two(**options: object) -> Talk:
    """Four atoms, eta = 2: trials 0 (.5) and 1 (.1) have grown to two atoms each; 1 is paused at its fourth result.

    At rung 3 the median of .5 .1 is .3; trial 1 arrived second, so it is paused at its next result only."""
    given = settings(
        hypersched(cool_down=0, **options), reduction_factor=2, grace_period=3, max_iterations=64, num_trials=2,
        request_ahead=False,
    )  # fmt: skip
    talk = started(Talk(given, atoms=4, deadline_s=1e6), 2)
    for trial_id, metric in [(0, 0.5), (1, 0.1)]:
        assert talk.result(trial_id, 1, metric) == [f"PreemptTrial {trial_id}.1 resize"]
        talk.leaves(trial_id)
        talk.started(trial_id)
    talk.result(0, 3, 0.5)
    talk.result(1, 3, 0.1)
    assert talk.result(1, 4, 0.1) == ["PreemptTrial 1.2 pause"]
    return talk


def test_two_new_trials_make_a_big_one_shrink_at_its_own_next_result() -> None:
    """A user adds two: three trials share 4 atoms as 2, 1, 1; those without a result rank first, so trial 0 has 1."""
    talk = paused_at_two()
    talk.submit()
    talk.submit()
    assert [action.split(" on ")[0] for action in talk.leaves(1)[-2:]] == ["StartTrial 2.1", "StartTrial 3.1"]
    assert talk.result(0, 4, 0.5) == ["PreemptTrial 0.2 resize"]
    assert talk.because() == "number 3 of 3 running trials shares 4 atoms: 1 of its 2 atoms stay"
    assert talk.leaves(0)[-1].startswith("StartTrial 0.3 on ")
    assert talk.scheduler.trials[0].num_atoms == 1
    assert talk.scheduler.counts.resized_down == 1


@pytest.mark.parametrize(("keep_paused", "said"), [(False, []), (True, ["StartTrial 1.3"])])
def test_t28_a_trial_paused_at_two_atoms_needs_two_unless_paused_ones_are_kept(
    keep_paused: bool, said: list[str]
) -> None:
    """The shrink frees one atom and nobody else waits: parity leaves it idle, `keep_paused` resumes trial 1 on it."""
    talk = paused_at_two(keep_paused=keep_paused)
    talk.submit()
    talk.submit()
    talk.leaves(1)
    talk.result(0, 4, 0.5)
    assert [action.split(" on ")[0] for action in talk.leaves(0) if action.startswith("StartTrial 1")] == said
    assert talk.scheduler.num_free == (0 if keep_paused else 1)
    assert talk.state(1) == ("starting" if keep_paused else "paused")


def test_shrink_pays_refuses_a_shrink_that_helps_nobody() -> None:
    """The best other running trial would get one atom: s = 1 + 2 before; 1 + 2 after, less two restarts."""
    talk = paused_at_two(shrink_pays=True)
    talk.submit()
    talk.submit()
    talk.leaves(1)
    talk.started(2)
    assert talk.result(0, 4, 0.5) == []


# ---- T16 through the scheduler, and T30


def test_with_multiple_of_two_no_trial_ever_has_three_atoms() -> None:
    """Seven atoms, five trials that end one after the other: shares of T16, growing and shrinking."""
    world = World(
        Settings(
            policy=hypersched(cool_down=0, entrance="reversible", keep_paused=True),
            multiple_of=2,
            timeouts=NO_TIMEOUTS,
            save_at_deadline=False,
            num_trials=9,
            max_iterations=30,
            grace_period=2,
            reduction_factor=2,
        ),
        machine(1, 7),
        100.0,
        curve=lambda trial_id, iteration: (trial_id * 7 % 5) / 10 + iteration / 100,
        iteration_s=lambda trial_id, atoms: (1 + trial_id % 3) / atoms,
    )
    scheduler = world.run()
    sizes = {
        len(a.placement.atoms) for actions in world.actions for a in actions if isinstance(a, StartTrial)
    }
    assert sizes <= {1, 2, 4, 6}
    assert max(sizes) == 6
    assert scheduler.counts.resized_up > 0


@pytest.mark.parametrize(("scaling", "setup_s"), [("none", 0.001), ("linear", 6.0), ("sqrt", 6.0)])
def test_t30_where_nothing_is_gained_nobody_is_resized(scaling: str, setup_s: float) -> None:
    """Scaling NONE: 1 (T - S) > 1.1 x 1 T never holds. A start-up of 20 % of T = 30: by the sixth result
    of 1 s at most 18 s are left, and the entrance has closed long before; s(4) (18 - 6) = 48 > 1.1 x 18 would pay
    with LINEAR, but every trial of the four still holds its share of one."""
    world = World(
        Settings(
            policy=hypersched(),
            multiple_of=1,
            timeouts=NO_TIMEOUTS,
            save_at_deadline=False,
            num_trials=4,
            max_iterations=100,
            grace_period=50,
            request_ahead=False,
            scaling=ScalingSettings(assume=scaling),  # type: ignore[arg-type]
        ),
        machine(1, 4),
        30.0,
        curve=lambda trial_id, iteration: trial_id / 10 + iteration / 1000,
        iteration_s=lambda trial_id, atoms: 1.0,
        setup_s=setup_s,
    )
    scheduler = world.run()
    assert (scheduler.counts.resized_up, scheduler.counts.resized_down) == (0, 0)
    reasons = {a.reason for actions in world.actions for a in actions if isinstance(a, PreemptTrial)}
    assert PreemptReason.RESIZE not in reasons
