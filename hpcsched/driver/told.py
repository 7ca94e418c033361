"""What samplers that learn are told, and when."""

from __future__ import annotations

from hpcsched.core import events as ev
from hpcsched.core.enums import Outcome, TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.search.samplers import Sampler


def tell_sampler(
    sampler: Sampler, scheduler: Scheduler, event: ev.Event, told: dict[TrialId, tuple[int, TrialState]]
) -> None:
    """Model-based samplers learn a trial's score when it leaves the field (paused, stopped, completed, failed).

    A function of the logged events alone, so that a resumed driver rebuilds the sampler by the same calls.
    """
    if not isinstance(event, ev.TrialExited):
        return
    trial = scheduler.trials[event.trial_id]
    if trial.state in (TrialState.PENDING, TrialState.STARTING, TrialState.RUNNING, TrialState.PREEMPTING):
        return
    if event.outcome is not Outcome.COMPLETED and trial.score is None:
        return
    key = (trial.training_iteration, trial.state)
    if told.get(event.trial_id) != key:
        told[event.trial_id] = key
        sampler.tell(event.trial_id, trial.config, trial.training_iteration, trial.score, trial.state)
