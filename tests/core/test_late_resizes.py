"""Resizes that come too late: once the trial has left, its new size cannot bring a result before the deadline any more."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hpcsched.core.enums import ExperimentState
from hpcsched.core.policies.fifo import Fifo
from hpcsched.core.settings import FifoSettings
from hpcsched.core.transitions import LIVE
from hpcsched.core.view import Decision, Resize, TrialView, View
from tests.support.core import Talk, settings

NUM_ATOMS = 6


class Resizing(Fifo):
    """Asks for the next of the drawn sizes with each result."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self._sizes = list(sizes)

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        return (Resize(trial.trial_id, self._sizes.pop(), "drawn"),) if self._sizes else ()


def goes_on(talk: Talk, trial_id: int, *, saves: bool) -> None:
    """What the trial's ranks would say next."""
    trial = talk.scheduler.trials[trial_id]
    match talk.state(trial_id):
        case "starting":
            assert trial.started_at is not None
            talk.started(trial_id, talk.now - trial.started_at)
        case "running":
            talk.result(trial_id, trial.training_iteration + 1, 0.5, took_s=talk.now - trial.heard_at)
        case "preempting" if saves:
            talk.leaves(trial_id)
        case "preempting":
            talk.exited(trial_id)
        case _:
            pass


@hypothesis_settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, NUM_ATOMS), min_size=3, max_size=8),
    steps=st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.1, 1.0, 3.0])), min_size=8, max_size=40),
    deadline_s=st.sampled_from([4.0, 8.0, 12.0, 30.0]),
    saves=st.booleans(),
)
def test_a_resize_that_is_too_late_to_start_keeps_no_atom(
    sizes: list[int], steps: list[tuple[int, float]], deadline_s: float, saves: bool
) -> None:
    """Whenever the deadline catches it, on the way out or in, growing or shrinking: every atom is free or a live trial's.

    Faults tried in `_settle`: not to give back the atoms that it was to keep; not to give back those reserved for it."""
    given_settings = settings(FifoSettings(), save_at_deadline=saves, num_trials=2)
    talk = Talk(given_settings, atoms=NUM_ATOMS, deadline_s=deadline_s, policy=Resizing(sizes))
    scheduler = talk.scheduler
    for _ in range(2):
        talk.submit()
    for trial_id, wait_s in steps:
        if scheduler.state is not ExperimentState.RUNNING:
            break
        talk.now += wait_s
        goes_on(talk, trial_id, saves=saves)
        taken = sum(trial.num_atoms for trial in scheduler.trials if trial.state in LIVE)
        assert scheduler.num_free == NUM_ATOMS - taken, [talk.state(0), talk.state(1)]
