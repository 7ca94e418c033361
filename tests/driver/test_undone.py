"""What the next driver looks at again: all that may be left, and not everything there ever was."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.actions import Action, CheckpointRef, DeleteCheckpoint, StartTrial
from hpcsched.core.enums import Outcome
from hpcsched.core.events import Event, ExperimentResumed, ResultReported, TrialExited
from hpcsched.driver.undone import LATELY_S, Undone
from hpcsched.eventlog.records import Step
from hpcsched.topology.machine import Machine, Placement


class Log:
    def __init__(self) -> None:
        self.undone = Undone()
        self._number = count(1)

    def says(self, event: Event, *actions: Action) -> None:
        self.undone.take(Step(next(self._number), event, actions))

    def starts(self, at: float, trial: int, incarnation: int = 1) -> None:
        self.says(result(at), StartTrial("", trial, incarnation, Placement((0,)), None))

    def ends(self, at: float, trial: int, incarnation: int = 1, unproven: tuple[int, ...] = ()) -> None:
        self.says(TrialExited(at, trial, incarnation, Outcome.PREEMPTED, unproven=unproven))

    def deletes(self, at: float, trial: int) -> None:
        self.says(result(at), DeleteCheckpoint("", CheckpointRef(trial, 1, 1)))

    def resumes(self, at: float) -> None:
        self.says(ExperimentResumed(at, Machine((), ()), None))


def result(at: float) -> ResultReported:
    return ResultReported(at, 0, 1, 1, 0.5, 1.0)


def test_who_has_not_ended_or_only_just_has_is_looked_at() -> None:
    log = Log()
    for trial in range(4):
        log.starts(1.0, trial)
    log.ends(10.0, 0)
    log.ends(10.0, 1, unproven=(0,))
    log.ends(2000.0, 2)
    assert log.undone.incarnations() == [(1, 1), (2, 1), (3, 1)], "long ago 0 was forgotten in order"


def test_what_was_to_be_deleted_lately_is_looked_at() -> None:
    log = Log()
    log.deletes(1.0, 0)
    log.deletes(2000.0, 1)
    assert log.undone.deletions() == [CheckpointRef(1, 1, 1)]


def test_a_life_that_dies_at_its_beginning_leaves_all_that_it_found_to_the_next() -> None:
    log = Log()
    log.starts(1.0, 0)
    log.deletes(2.0, 0)
    log.resumes(90_000.0)
    log.resumes(99_000.0)
    assert (log.undone.incarnations(), log.undone.deletions()) == ([(0, 1)], [CheckpointRef(0, 1, 1)])
    log.says(result(99_000.0 + 2 * LATELY_S))
    assert (log.undone.incarnations(), log.undone.deletions()) == ([], [])


@given(
    st.lists(
        st.tuples(st.sampled_from(["start", "end", "resume"]), st.floats(0.0, 500.0), st.integers(0, 3)),
        max_size=60,
    )
)
def test_no_incarnation_that_ended_less_than_lately_ago_is_passed_over(
    story: list[tuple[str, float, int]],
) -> None:
    """Against a slow account of the same: each with all that has happened since it was last alive."""
    log, now = Log(), 0.0
    launched: dict[int, int] = {}
    alive: dict[tuple[int, int], float] = {}
    """When each was alive for the last time, or began to be tidied up by a new life."""
    running: set[tuple[int, int]] = set()
    for what, gap_s, trial in story:
        now += gap_s
        match what:
            case "start" if (trial, launched.get(trial, 0)) not in running:
                launched[trial] = launched.get(trial, 0) + 1
                running.add((trial, launched[trial]))
                log.starts(now, trial, launched[trial])
            case "end" if (key := (trial, launched.get(trial, 0))) in running:
                running.discard(key)
                alive[key] = now
                log.ends(now, *key)
            case "resume":
                open_now = running | {key for key, at in alive.items() if at >= log.undone._now - LATELY_S}
                alive.update(dict.fromkeys(open_now, now))
                running.clear()
                log.resumes(now)
            case _:
                pass
    left = running | {key for key, at in alive.items() if at >= log.undone._now - LATELY_S}
    assert set(log.undone.incarnations()) == left
