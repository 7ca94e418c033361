"""Is a node lost, or only one of the supervisors there?"""

from __future__ import annotations

from pathlib import Path

from hpcsched.core import events as ev
from hpcsched.core.enums import Outcome, TrialState
from hpcsched.driver.crew import SILENT_AFTER_S
from hpcsched.driver.presence import Presence
from tests.support.loops import LoopByHand


def test_a_node_is_lost_when_nothing_at_all_is_heard_from_it() -> None:
    presence = Presence()
    presence.heard("n1", 10.0)
    presence.heard("n1", 10.9)
    presence.missed("n1", 14.1)
    assert presence.lost(14.1) == []
    assert presence.doubtful_until(["n0", "n1"]) == 10.9 + SILENT_AFTER_S
    assert presence.lost(15.0) == ["n1"]
    assert presence.lost(15.1) == []
    assert presence.doubtful_until(["n1"]) is None


def test_a_node_from_which_another_process_is_heard_is_not_lost() -> None:
    presence = Presence()
    presence.missed("n1", 14.1)
    presence.heard("n1", 14.2)
    assert presence.lost(60.0) == []


def test_the_driver_s_own_stop_loses_no_node() -> None:
    presence = Presence()
    presence.heard("n1", 10.0)
    presence.missed("n1", 13.0)
    presence.forgive(30.0)
    assert presence.lost(43.0) == []
    assert presence.lost(44.1) == ["n1"]


def two_on_each(tmp_path: Path) -> LoopByHand:
    """Trials 0 and 1 on n0, 2 and 3 on n1."""
    loop = LoopByHand(tmp_path)
    for trial_id, node in enumerate(("n0", "n0", "n1", "n1")):
        loop.hello(trial_id, node, 1.0)
    return loop


def test_a_silent_supervisor_ends_its_trial_and_no_other_one_on_the_node(tmp_path: Path) -> None:
    loop = two_on_each(tmp_path)
    for now in range(2, 12):
        for trial_id, node in ((0, "n0"), (2, "n1"), (3, "n1")):
            loop.beat(trial_id, node, float(now))
        loop.look(now + 0.1)
    (exited,) = loop.events(ev.TrialExited)
    assert (exited.trial_id, exited.outcome) == (1, Outcome.NODE_FAILED)
    assert not loop.events(ev.NodeDown)
    assert loop.scheduler.trials[0].state is TrialState.STARTING
    assert loop.scheduler.trials[0].incarnation == 1


def test_a_node_that_is_gone_is_down_as_soon_as_the_last_on_it_is_missed(tmp_path: Path) -> None:
    loop = two_on_each(tmp_path)
    loop.beat(0, "n0", 2.0)
    loop.beat(1, "n0", 2.9)
    for tenth in range(20, 75):
        loop.beat(2, "n1", tenth / 10)
        loop.beat(3, "n1", tenth / 10)
        loop.look(tenth / 10)
    (down,) = loop.events(ev.NodeDown)
    assert down.node == "n0"
    assert 2.9 + SILENT_AFTER_S < down.time < 2.9 + SILENT_AFTER_S + 0.2


def test_nothing_is_started_on_a_node_of_which_it_is_not_known_whether_it_is_lost(tmp_path: Path) -> None:
    """Trial 2 is missed on n1, where one atom is free and a spare was heard of a moment ago."""
    loop = LoopByHand(tmp_path, num_trials=3)
    for trial_id, node in enumerate(("n0", "n0", "n1")):
        loop.hello(trial_id, node, 1.0)
    for tenth in range(20, 100):
        now = tenth / 10
        loop.beat(0, "n0", now)
        loop.beat(1, "n0", now)
        if now <= 4.0:
            loop.beat(9, "n1", now, incarnation=0)
        loop.look(now)
    (refused,) = loop.events(ev.LaunchRefused)
    assert (refused.trial_id, refused.incarnation) == (2, 2)
    assert [(spec.trial_id, spec.incarnation) for spec in loop.told.started] == [(0, 1), (1, 1), (2, 1)]
    (down,) = loop.events(ev.NodeDown)
    assert refused.time < down.time < refused.retry_at
    assert loop.scheduler.trials[2].state is TrialState.PENDING
    assert loop.scheduler.trials[2].node_failures == 1
