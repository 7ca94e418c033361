"""`span = "chain"`: before the end of each job everybody saves, as late as what was measured allows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcsched.config.load import load_experiment
from hpcsched.config.settings import core_settings
from hpcsched.core import events as ev
from hpcsched.core.enums import ExperimentState, Outcome, TimerKind
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver import inbox as ib
from hpcsched.driver.chain import Link
from hpcsched.driver.clock import Clock
from hpcsched.driver.loop import Loop
from hpcsched.driver.ports import Ports
from hpcsched.eventlog.records import Note, Step
from hpcsched.launch.launcher import StepEnded
from hpcsched.launchspec import Channel, LaunchSpec
from hpcsched.runfolder import RunFolder
from hpcsched.search.samplers import make_sampler
from tests.support.core import LIMITS, Talk, settings
from tests.support.smallest import smallest
from tests.support.virtual import machine

RESERVE_S = 10.0


def training(took_s: Sequence[float], *, save_s: float | None = 5.0, deadline_s: float | None = None) -> Talk:
    """A trial for each of `took_s`, the seconds of its last iteration; a save has taken `save_s`. It is 100 s."""
    talk = Talk(settings(save_at_deadline=True, timeouts=LIMITS), atoms=len(took_s), deadline_s=deadline_s)
    for trial_id, seconds in enumerate(took_s):
        talk.submit()
        talk.started(trial_id)
        talk.result(trial_id, 1, 0.5, took_s=seconds)
        if save_s is not None:
            talk.saved(trial_id, 1, took_s=save_s)
    talk.now = 100.0
    return talk


def test_all_are_asked_once_the_longest_iteration_and_a_save_just_fit_before_the_end() -> None:
    """590 s, less 1.1 times 20 s, 5 s for a save and the margin of 1 s."""
    talk = training([2.0, 20.0])
    link = Link(RESERVE_S)
    assert link.ending(561.9, 600.0, talk.scheduler) is None
    event = link.ending(562.2, 600.0, talk.scheduler)
    assert event is not None
    assert event.at == 590.0
    assert talk.send(event) == ["PreemptTrial 0.1 deadline", "PreemptTrial 1.1 deadline"]
    assert talk.timers()[TimerKind.DEADLINE] == 590.0
    assert "an iteration and a last checkpoint take 28 s" in talk.because()
    assert link.ending(563.0, 600.0, talk.scheduler) is None, "once is enough"
    talk.leaves(0)
    assert talk.leaves(1)[-1] == "SuspendExperiment"


@pytest.mark.parametrize(
    ("state_bytes", "needs_s"), [(0, 11.0), (4 * 10**9, 21.0)], ids=["size unknown", "20 s at 200 MB/s"]
)
def test_before_anything_was_measured_a_save_is_given_some_time(state_bytes: int, needs_s: float) -> None:
    talk = Talk(settings(save_at_deadline=True, timeouts=LIMITS), atoms=1)
    talk.submit()
    talk.started(0, state_bytes=state_bytes)
    assert talk.scheduler.leaving_s == needs_s


def test_a_trial_that_has_not_reported_yet_is_expected_to_take_as_long_as_others() -> None:
    talk = training([20.0, 30.0, 40.0])
    talk.exited(2, Outcome.CRASHED)
    talk.started(2)
    assert talk.scheduler.leaving_s == pytest.approx(1.1 * 40.0 + 6.0), "its own last one, from before"
    talk = training([20.0], save_s=5.0)
    talk.exited(0, Outcome.COMPLETED)
    talk.submit()
    talk.started(1)
    assert talk.scheduler.leaving_s == pytest.approx(1.1 * 20.0 + 6.0)


def test_an_end_that_moves_counts_from_when_it_is_known_also_after_all_were_asked() -> None:
    talk = training([20.0])
    link = Link(RESERVE_S)
    assert link.ending(561.0, 600.0, talk.scheduler) is None
    assert link.ending(580.0, 900.0, talk.scheduler) is None, "it was extended in time"
    event = link.ending(581.0, 620.0, talk.scheduler)
    assert event is None
    event = link.ending(582.0, 610.0, talk.scheduler)
    assert event is not None
    talk.send(event)
    for ends_s in (605.0, 1000.0):
        moved = link.ending(talk.now + 1.0, ends_s, talk.scheduler)
        assert moved is not None
        assert talk.send(moved) == []
        assert talk.timers()[TimerKind.DEADLINE] == ends_s - RESERVE_S, (
            "they leave, with as much time as there is"
        )
    assert talk.leaves(0)[-1] == "SuspendExperiment"


def test_where_the_experiments_own_deadline_comes_first_it_ends_by_that() -> None:
    talk = training([20.0], deadline_s=585.0)
    link = Link(RESERVE_S)
    assert link.ending(580.0, 600.0, talk.scheduler) is None
    talk.send(ev.DeadlineChanged(580.0, 2000.0))
    assert link.ending(581.0, 600.0, talk.scheduler) is not None, "it was extended"


def test_a_run_that_is_ending_by_a_users_word_stays_ended_and_has_no_longer_than_its_job() -> None:
    talk = training([20.0])
    talk.send(ev.ShutdownRequested(560.0, save=True, why="hpcsched stop"))
    event = Link(RESERVE_S).ending(585.0, 600.0, talk.scheduler)
    assert event is not None
    assert talk.send(event) == []
    talk.now = 590.0
    assert talk.fired(TimerKind.DEADLINE) == ["KillTrial 0.1", "FinishExperiment finished 0"]
    assert talk.because(1) == "hpcsched stop"


# ---- in the loop, whose clock is the test's


class Time:
    """Goes on while the loop waits. `later`: (time, what comes then)."""

    def __init__(self, later: Sequence[tuple[float, object]] = ()) -> None:
        self.now = 0.0
        self.later = deque(later)
        self.items: list[object] = []

    def put(self, item: object) -> None:
        self.items.append(item)

    def take(self, wait_s: float, most: int = 0) -> list[object]:
        if not self.items:
            self.now += max(wait_s, 0.01)
            while self.later and self.later[0][0] <= self.now:
                self.put(self.later.popleft()[1])
        taken, self.items = self.items, []
        return taken


class Nobody:
    """Whoever is told something and does nothing about it."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Journal:
    """Durable at once."""

    life = 1
    trouble = None
    waiting_s = 0.0

    def __init__(self, clock: Time) -> None:
        self.records: list[Step | Note] = []
        self._clock = clock

    def append(self, record: Step | Note) -> int:
        self.records.append(record)
        self._clock.put(ib.Durable(len(self.records)))
        return len(self.records)


class Launcher(Nobody):
    """Starts nothing; what it is to kill is gone."""

    def __init__(self, clock: Time) -> None:
        self.specs: dict[int, LaunchSpec] = {}
        self._clock = clock

    def start(self, spec: LaunchSpec) -> None:
        self.specs[spec.trial_id] = spec

    def kill(self, trial_id: int, incarnation: int) -> None:
        nodes = tuple(node.node for node in self.specs[trial_id].nodes)
        self._clock.put(StepEnded(trial_id, incarnation, 0, "", nodes))


def chain(folder: Path, ends_s: float, *later: tuple[float, object]) -> tuple[Loop, list[Step]]:
    """A run of one trial in a job that ends then, driven to its end; what its core was told."""
    file = folder / "experiment.toml"
    file.write_text(smallest(max_iterations=10, experiment='span = "chain"'))
    spec = load_experiment(file, overrides={"experiment.seed": 1}, simulate=False)
    clock = Time(later)
    run = RunFolder(folder / "run")
    run.root.mkdir()
    journal, nobody, atoms = Journal(clock), Nobody(), machine(1, 1)
    stand_ins: dict[str, Any] = {
        "launcher": Launcher(clock), "server": nobody, "onlooker": nobody, "painter": nobody, "writer": journal, "inbox": clock,
    }  # fmt: skip
    loop = Loop(
        spec=spec, folder=run, scheduler=Scheduler(core_settings(spec)), sampler=make_sampler(spec, seed=1), machine=atoms,
        channel=Channel(("tcp://127.0.0.1:1",), "", ""), clock=Clock(0.0, lambda: clock.now), ports=Ports(salt="chain"), local=True,
        invented_gpus=True, began_at_unix_s=time.time(), file_deadline_s=1e6, allocation_ends_s=ends_s, warm=False, one_node_spares=False, first_n=0,
        told={}, order_ids=(), **stand_ins,
    )  # fmt: skip
    loop.run(ev.ExperimentBegan(0.0, atoms, 1e6))
    return loop, [record for record in journal.records if isinstance(record, Step)]


def test_the_loop_suspends_a_chain_before_its_job_ends_without_any_signal(tmp_path: Path) -> None:
    """600 s, less a reserve of 10 s, and 11 s for a save that nobody has measured."""
    loop, steps = chain(tmp_path, 600.0)
    (announced,) = [step.event for step in steps if isinstance(step.event, ev.AllocationEnding)]
    assert announced.at == 590.0
    assert announced.time == pytest.approx(579.0, abs=0.6)
    assert loop._state is ExperimentState.SUSPENDED
    assert loop.why.startswith("the allocation ends at 590 s")


def test_the_loop_follows_an_end_that_slurm_moves(tmp_path: Path) -> None:
    """To a later time, then to an earlier one."""
    now = time.time()
    moves = [(100.0, ib.AllocationEnds(now + 300.0)), (220.0, ib.AllocationEnds(now + 60.0))]
    loop, steps = chain(tmp_path, 200.0, *moves)
    (announced,) = [step.event for step in steps if isinstance(step.event, ev.AllocationEnding)]
    assert announced.time == pytest.approx(220.0 + 60.0 - 21.0, abs=5.0)
    assert loop._state is ExperimentState.SUSPENDED
    assert not any(isinstance(step.event, ev.DeadlineChanged) for step in steps), (
        "the deadline is another matter"
    )
