"""Launches that are refused, from srun's word to the end of the search."""

from __future__ import annotations

from pathlib import Path

from hpcsched.core import events as ev
from hpcsched.core.enums import ExperimentState, Outcome, TrialState
from hpcsched.launch.launcher import StepRefused, WhoseFault
from tests.support.loops import LoopByHand

WORDS = "srun: unrecognized option '--overlap'\n(this srun does not know an option: see [launcher] srun_args)"


def refuse_all(loop: LoopByHand, whose: WhoseFault, *, until: float, after_s: float) -> float:
    """Whatever is started is refused at once; when there was nothing more to refuse, or `until`."""
    now, num = 1.0, 0
    while now < until and loop.scheduler.state is ExperimentState.RUNNING:
        for spec in loop.told.started[num:]:
            num += 1
            loop.take(StepRefused(spec.trial_id, spec.incarnation, WORDS, after_s, whose), now)
        now += 1.0
        loop.look(now)
    return now


def test_an_error_that_hits_every_launch_ends_the_search_soon_and_says_why(tmp_path: Path) -> None:
    loop = LoopByHand(tmp_path, num_trials=50)
    assert refuse_all(loop, "site", until=600.0, after_s=60.0) < 60.0
    assert loop.scheduler.state is ExperimentState.FAILED
    assert "the first 4 trials all failed" in loop.scheduler.why_ended
    assert WORDS in loop.scheduler.why_ended
    assert {event.outcome for event in loop.events(ev.TrialExited)} == {Outcome.LAUNCH_FAILED}
    assert not loop.events(ev.MachineChanged)


def test_an_outage_of_an_hour_fails_no_trial_and_begins_no_new_one(tmp_path: Path) -> None:
    loop = LoopByHand(tmp_path, num_trials=50)
    refuse_all(loop, "slurm", until=3600.0, after_s=60.0)
    assert loop.scheduler.state is ExperimentState.RUNNING
    assert not loop.events(ev.TrialExited)
    assert len(loop.scheduler.trials) == 4
    assert {trial.state for trial in loop.scheduler.trials} <= {TrialState.PENDING, TrialState.STARTING}
    assert [trial.launch_failures for trial in loop.scheduler.trials] == [0, 0, 0, 0]
