from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from hpcsched.core.actions import StartTrial
from hpcsched.core.enums import AtomState
from hpcsched.core.events import (
    Event,
    ExperimentBegan,
    LaunchRefused,
    TimerFired,
    TrialExited,
    TrialSubmitted,
)
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.eventlog.holdings import Holding
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header, Step
from hpcsched.eventlog.state import RunState
from hpcsched.runfolder import RunFolder
from tests.support.runs import Script, a_machine, a_run, asha_settings, go_on, some_settings


def holdings_of(folder: RunFolder) -> list[Holding]:
    ended: list[Holding] = []
    state = RunState(on_holding=ended.append)
    for record in read_journal(folder):
        state.feed(record)
    return ended + state.holdings()


RUNS = {
    "smooth": Script(),
    "rough": Script(crash=(0, 1), hang=(2, 4), nan=(3,)),
}


@pytest.mark.parametrize("script", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("policy", ["hypersched", "asha"])
def test_no_gpu_is_ever_held_twice_and_every_start_is_there(
    tmp_path: Path, script: Script, policy: str
) -> None:
    folder = a_run(tmp_path, settings=asha_settings() if policy == "asha" else None, script=script)
    holdings = holdings_of(folder)
    by_gpu: dict[tuple[str, str], list[Holding]] = defaultdict(list)
    for holding in holdings:
        assert holding.to_s is not None, "the run is over"
        assert holding.from_s <= holding.to_s
        for gpu in holding.gpus:
            by_gpu[holding.node, gpu].append(holding)
    for rows in by_gpu.values():
        rows.sort(key=lambda row: (row.from_s, row.to_s))
        for one, two in itertools.pairwise(rows):
            assert one.to_s is not None
            assert one.to_s <= two.from_s
    started = [
        (action.trial_id, action.incarnation, atom)
        for record in read_journal(folder)
        if isinstance(record, Step)
        for action in record.actions
        if isinstance(action, StartTrial)
        for atom in action.placement.atoms
    ]
    assert sorted(started) == sorted((row.trial_id, row.incarnation, row.atom) for row in holdings)


def test_at_every_step_the_open_holdings_are_the_atoms_that_the_core_holds(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=RUNS["rough"])
    state = RunState()
    for record in read_journal(folder):
        state.feed(record)
        if not isinstance(record, Step) or state.machine is None or state.over_at is not None:
            continue
        held = {
            atom.atom_id
            for atom in state.machine.atoms
            if state.scheduler.atom_state(atom.atom_id) in (AtomState.HELD, AtomState.QUARANTINED)
        }
        assert {holding.atom for holding in state.holdings()} == held, f"after step {record.n}"


def test_an_atom_in_quarantine_is_held_until_it_is_proven_free(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(hang=(2,)))
    times = {
        type(record.event).__name__: record.event.time
        for record in read_journal(folder)
        if isinstance(record, Step)
        and isinstance(record.event, TimerFired | TrialExited)
        and (record.event.trial_id, record.event.incarnation) == (2, 1)
    }
    (holding,) = [row for row in holdings_of(folder) if (row.trial_id, row.incarnation) == (2, 1)]
    assert holding.to_s == times["TrialExited"] > times["TimerFired"]


def test_a_new_life_ends_what_the_dead_one_held(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    before = holdings_of(folder)
    still = {(row.trial_id, row.incarnation) for row in before if row.to_s is None}
    assert still
    go_on(folder, at=9.0)
    for row in holdings_of(folder):
        if (row.trial_id, row.incarnation) in still:
            assert row.to_s == 9.0


def test_a_refused_launch_holds_nothing() -> None:
    """Its atoms are free at once, and another trial may start there while it waits for its next try."""
    ended: list[Holding] = []
    state = RunState(on_holding=ended.append)
    scheduler = Scheduler(some_settings())
    state.feed(Header(life=1, experiment="", name="x", metric="m", settings=some_settings(), began_at=0.0))
    number = itertools.count(1)

    def happens(event: Event) -> None:
        actions = tuple(scheduler.handle(event))
        state.feed(Step(n=next(number), event=event, actions=actions))

    happens(ExperimentBegan(time=0.0, machine=a_machine(1, 1), deadline_s=100.0))
    happens(TrialSubmitted(time=1.0, trial_id=TrialId(0), config={}))
    happens(
        LaunchRefused(time=2.0, trial_id=TrialId(0), incarnation=Incarnation(1), retry_at=9.0, why="busy")
    )
    happens(TrialSubmitted(time=3.0, trial_id=TrialId(1), config={}))
    assert [(each.trial_id, each.from_s, each.to_s) for each in ended] == [(0, 1.0, 2.0)]
    assert [(each.trial_id, each.from_s) for each in state.holdings()] == [(1, 3.0)]
