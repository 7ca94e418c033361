"""The tour of a profile: one trial, every size and span once, and what the log says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcsched.config.profile import read_profile
from hpcsched.core import actions as act
from hpcsched.core.enums import ExperimentState, Outcome
from hpcsched.core.events import (
    CheckpointSaved,
    Event,
    ExperimentBegan,
    NodeDown,
    ResultReported,
    TrialExited,
    TrialStarted,
    TrialSubmitted,
)
from hpcsched.core.settings import HyperSchedSettings, Settings
from hpcsched.core.sizes import Sizes
from hpcsched.driver.profiling import profile_of_log, tour_of, touring
from hpcsched.errors import InputError
from hpcsched.eventlog.records import Note, Record, Step
from hpcsched.topology.machine import Machine, Node, atoms_of_nodes
from hpcsched.topology.span import Span, span_of

SPEED = {Span.ISLAND: 1.0, Span.NODE: 0.9, Span.SWITCH: 0.8, Span.BEYOND: 0.5}
GPUS = ("0", "1", "2", "3")


def a_machine() -> Machine:
    """Four nodes of two islands of two, two under each switch."""
    return atoms_of_nodes(
        tuple(
            Node(
                f"n{number}",
                GPUS,
                (0, 1, 2, 3),
                switches=("top", f"leaf{number // 2}"),
                islands=(GPUS[:2], GPUS[2:]),
            )
            for number in range(4)
        ),
        1,
    )


class Driven:
    """A profile's scheduler in a world where speed is known; keeps the log."""

    def __init__(self, sizes: tuple[int, ...] = (), *, fails_at: int = 0, lost: str = "") -> None:
        self.machine = a_machine()
        roles = touring(2, sizes)
        self.scheduler = roles.scheduler(
            Settings(policy=HyperSchedSettings(), max_iterations=1000), self.machine
        )
        self.fails_at = fails_at
        self.records: list[Record] = []
        self.visited: list[tuple[int, Span]] = []
        self.now = 0.0
        self.lost = lost
        self.send(ExperimentBegan(0.0, self.machine, 3600.0))

    def send(self, event: Event) -> None:
        actions = self.scheduler.handle(event)
        if self.lost and isinstance(event, ExperimentBegan):
            actions += self.scheduler.handle(NodeDown(0.0, self.lost))
        self.scheduler.check()
        self.records.append(Step(len(self.records) + 1, event, tuple(actions)))
        for action in actions:
            if isinstance(action, act.RequestTrial):
                assert action.num == 1
                self.send(TrialSubmitted(self.now, len(self.scheduler.trials), {}))
            elif isinstance(action, act.StartTrial):
                self.train(action)

    def train(self, start: act.StartTrial) -> None:
        """Until it is asked to leave."""
        key = (start.trial_id, start.incarnation)
        size, span = len(start.placement.atoms), span_of(self.machine, start.placement)
        self.visited.append((size, span))
        self.now += 2.0
        if size == self.fails_at:
            self.send(TrialExited(self.now, *key, Outcome.OUT_OF_MEMORY))
            return
        self.send(TrialStarted(self.now, *key, 1.0 + 0.1 * size))
        data = {"step_s": 0.5, "restore_s": 0.2 if start.checkpoint else 0.0}
        self.records.append(Note(self.now, "setup", "up", *key, data))
        iteration = 0 if start.checkpoint is None else start.checkpoint.training_iteration
        left = False
        took = 60.0  # the first iteration of each incarnation warms up
        while not left:
            iteration += 1
            self.now += took
            before = len(self.records)
            self.send(ResultReported(self.now, *key, iteration, 0.5, took))
            step = self.records[before]
            assert isinstance(step, Step)
            left = any(isinstance(action, act.PreemptTrial) for action in step.actions)
            took = 8.0 / (size * SPEED[span])
        self.send(CheckpointSaved(self.now, *key, iteration, 0.3))
        self.send(TrialExited(self.now, *key, Outcome.PREEMPTED))


def test_the_tour_visits_each_size_at_each_span_from_one_atom_up() -> None:
    halts = tour_of(a_machine(), Sizes(multiple_of=2))
    assert [(halt.size, str(halt.span)) for halt in halts] == [
        (1, "island"),
        (2, "island"), (2, "node"), (2, "switch"), (2, "beyond"),
        (4, "node"), (4, "switch"), (4, "beyond"),
        (8, "switch"), (8, "beyond"),
        (16, "beyond"),
    ]  # fmt: skip
    sizes = Sizes(multiple_of=2, largest=4)
    assert [halt.size for halt in tour_of(a_machine(), sizes, (4,))] == [1, 4, 4, 4]
    with pytest.raises(InputError, match=r"--sizes: 3, 8: no size .* they are 1, 2, 4"):
        tour_of(a_machine(), sizes, (3, 4, 8))


def test_what_was_measured_is_the_speed_of_each_span(tmp_path: Path) -> None:
    world = Driven()
    assert world.scheduler.state is ExperimentState.FINISHED
    assert world.visited == [(halt.size, halt.span) for halt in tour_of(a_machine(), Sizes(multiple_of=2))]
    assert len(world.scheduler.trials) == 1  # one trial goes round
    document, lines = profile_of_log(world.records)
    assert document is not None
    assert document["spans"]["switch"] == {"1": 1.0, "2": 1.6, "4": 3.2, "8": 6.4}
    assert document["spans"]["beyond"]["16"] == 8.0
    assert document["restart_s"]["4"] == pytest.approx(1.4)
    assert document["costs"]["4"]["parts"] == {"restore_s": 0.2, "step_s": 0.5}
    assert document["costs"]["4"]["checkpoint_s"] == {"mean": 0.3}
    assert any("16 atoms  span beyond" in line for line in lines)
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(document))
    read = read_profile(file)
    assert read.spans is not None
    assert read.spans["node"] == {1: 1.0, 2: 1.8, 4: 3.6}
    assert read.restart_s[16] == pytest.approx(2.6)


def test_where_the_trial_fails_a_new_one_goes_on_at_the_next_halt() -> None:
    """Too little memory on one atom: two atoms count as twice as fast as one, and that is said."""
    world = Driven((1, 2, 4), fails_at=1)
    assert world.scheduler.state is ExperimentState.FINISHED
    assert [size for size, _ in world.visited] == [1, 2, 2, 2, 2, 4, 4, 4]
    document, lines = profile_of_log(world.records)
    assert document is not None
    assert document["spans"]["island"]["2"] == 2.0
    assert document["spans"]["node"]["4"] == pytest.approx(3.6)
    assert any("nothing was measured on one atom" in line for line in lines)


def test_halts_on_a_node_that_is_down_are_left_out() -> None:
    world = Driven((1, 2), lost="n1")
    assert world.scheduler.state is ExperimentState.FINISHED
    assert [str(span) for _, span in world.visited] == ["island", "island", "node", "beyond"]
