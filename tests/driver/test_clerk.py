"""What comes of users' orders: dialogues with a clerk and a core."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from hpcsched.core.enums import Outcome
from hpcsched.core.events import (
    DeadlineChanged,
    ShutdownRequested,
    TrialExited,
    TrialStarted,
    TrialStopRequested,
    TrialSubmitted,
)
from hpcsched.driver.clerk import Clerk, Times, Verdict
from hpcsched.orders import AddAsked, Ask, ExtendAsked, Order, StopAsked, new_order_id
from tests.support.core import Talk, settings
from tests.support.experiments import VALID, changed, load, write_experiment

BEGAN = datetime(2026, 11, 30, 12, 0).timestamp()
CONFIG = {"learning_rate": 0.5, "momentum": 0.9}


class Desk:
    """An experiment with the deadline at 600 s, in an allocation that ends at 1000 s (or at `ends_s`); it is 12:00 at its beginning."""

    def __init__(
        self,
        folder: Path,
        *,
        text: str = VALID,
        deadline_s: float | None = 600.0,
        ends_s: float | None = 1000.0,
        done: tuple[str, ...] = (),
    ) -> None:
        self.talk = Talk(
            settings(), atoms=2, deadline_s=deadline_s if deadline_s or not ends_s else ends_s - 10
        )
        self.clerk = Clerk(load(write_experiment(folder, text)), done)
        self.file_deadline_s = deadline_s
        self.ends_s = ends_s

    def asks(self, ask: Ask, order_id: str = "") -> Verdict:
        times = Times(100.0, BEGAN, self.file_deadline_s, self.ends_s, 10.0)
        verdict = self.clerk.look(Order(order_id or new_order_id(), 1, ask), self.talk.scheduler, times)
        if verdict.event is not None:
            self.talk.send(verdict.event)
            self.file_deadline_s = verdict.file_deadline_s or self.file_deadline_s
        return verdict

    def refuses(self, ask: Ask) -> str:
        verdict = self.asks(ask)
        assert not verdict.answer.done, verdict
        assert verdict.event is None
        return verdict.answer.text


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    for _ in range(3):
        made.talk.submit(**CONFIG)
    made.talk.send(TrialStarted(1.0, 0, 1, 1.0))  # 0 and 1 have an atom each, 2 waits
    return made


def test_a_trial_is_stopped_and_one_that_there_is_not_is_refused(desk: Desk) -> None:
    assert "there are 0 to 2" in desk.refuses(StopAsked(3))
    verdict = desk.asks(StopAsked(0))
    assert verdict.answer.text == "trial 0 saves and leaves; it does not run again"
    assert isinstance(verdict.event, TrialStopRequested)
    assert desk.asks(StopAsked(0)).answer.text == "trial 0 is leaving already"
    assert desk.asks(StopAsked(2)).answer.text == "trial 2, which was pending, does not run again"
    desk.talk.send(TrialExited(101.0, 0, 1, Outcome.PREEMPTED))
    over = desk.asks(StopAsked(0))
    assert (over.answer.done, over.event, over.answer.text) == (
        True,
        None,
        "trial 0 has ended already: it is stopped",
    )


def test_before_the_first_trial_there_is_none_to_stop(tmp_path: Path) -> None:
    assert "there is none yet" in Desk(tmp_path).refuses(StopAsked(0))


def test_the_run_is_stopped_and_takes_no_more_trials_and_no_more_time(desk: Desk) -> None:
    verdict = desk.asks(StopAsked())
    assert isinstance(verdict.event, ShutdownRequested)
    assert verdict.event.save
    assert verdict.answer.text == "the run ends: 2 trials have to save and leave"
    assert "the run is ending already: hpcsched stop" in desk.refuses(ExtendAsked(60.0))
    assert "nothing starts any more: hpcsched stop" in desk.refuses(AddAsked(CONFIG))
    desk.talk.send(TrialExited(101.0, 0, 1, Outcome.PREEMPTED))
    desk.talk.send(TrialExited(101.0, 1, 1, Outcome.PREEMPTED))
    assert "the run is over" in desk.refuses(StopAsked(1))


def test_the_deadline_moves_by_what_was_asked(desk: Desk) -> None:
    verdict = desk.asks(ExtendAsked(120.0))
    assert verdict.event == DeadlineChanged(100.0, 720.0, "hpcsched extend: the experiment file's deadline")
    assert verdict.answer.text == "the deadline is 2m later, at 12:12:00"
    assert verdict.file_deadline_s == 720.0


def test_it_moves_as_far_as_the_allocation_lasts_and_no_further(desk: Desk) -> None:
    verdict = desk.asks(ExtendAsked(1200.0))
    assert isinstance(verdict.event, DeadlineChanged)
    assert verdict.event.deadline_s == 990.0
    text = verdict.answer.text
    assert text.startswith("the deadline is 6m30s later, at 12:16:30 and not at 12:30:00")
    assert "allocation's end less 10 s" in text
    why = desk.refuses(ExtendAsked(60.0))
    assert "(at 12:16:30) cannot be later" in why
    assert "scontrol update" in why
    assert desk.talk.scheduler.deadline_s == 990.0


def test_over_a_chain_of_allocations_the_end_of_one_is_no_limit(tmp_path: Path) -> None:
    desk = Desk(tmp_path, text=changed(('deadline = "2m"', 'deadline = "2m"\nspan = "chain"')))
    verdict = desk.asks(ExtendAsked(24 * 3600.0))
    assert isinstance(verdict.event, DeadlineChanged)
    assert verdict.event.deadline_s == 600.0 + 24 * 3600.0
    assert "at 2026-12-01 12:10:00" in verdict.answer.text


def test_a_run_without_a_deadline_of_its_own_is_not_extended(tmp_path: Path) -> None:
    assert desk_without(tmp_path, ends_s=None).refuses(ExtendAsked(60.0)).endswith("could be moved")
    assert "ends with its allocation" in desk_without(tmp_path, ends_s=500.0).refuses(ExtendAsked(60.0))


def desk_without(folder: Path, ends_s: float | None) -> Desk:
    return Desk(folder, deadline_s=None, ends_s=ends_s)


def test_a_configuration_is_added_when_it_is_one(desk: Desk) -> None:
    verdict = desk.asks(AddAsked({"learning_rate": 5.0, "momentum": 0.5}))
    assert verdict.answer.trial_id == 3
    assert verdict.event == TrialSubmitted(100.0, 3, {"learning_rate": 5.0, "momentum": 0.5})
    assert '"learning_rat" is not in [search.space]' in desk.refuses(AddAsked({"learning_rat": 1.0}))
    assert '"momentum" is missing' in desk.refuses(AddAsked({"learning_rate": 1.0}))
    assert len(desk.talk.scheduler.trials) == 4


def test_an_order_that_comes_again_is_carried_out_once_and_answered_alike(desk: Desk) -> None:
    order_id = new_order_id()
    first = desk.asks(ExtendAsked(60.0), order_id)
    again = desk.asks(ExtendAsked(60.0), order_id)
    assert again == Verdict(first.answer)
    assert desk.talk.scheduler.deadline_s == 660.0
    assert desk.asks(ExtendAsked(60.0)).event is not None, "another one is another one"


def test_an_order_of_an_earlier_life_is_not_carried_out_again(tmp_path: Path) -> None:
    order_id = new_order_id()
    verdict = Desk(tmp_path, done=(order_id,)).asks(StopAsked(), order_id)
    assert verdict.event is None
    assert verdict.answer.done
    assert "earlier life" in verdict.answer.text


def test_a_refused_order_may_be_given_again(desk: Desk) -> None:
    order_id = new_order_id()
    assert not desk.asks(StopAsked(3), order_id).answer.done
    desk.talk.submit(**CONFIG)
    assert desk.asks(StopAsked(3), order_id).answer.done
