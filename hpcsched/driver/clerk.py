"""What comes of a user's order: the event that carries it out, or why nothing does. Computes; the loop acts.

An id is carried out once. Those of earlier lives are known from the journal, whose steps name the order that they carry out, so that
an order and the memory of it become durable in one record.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import msgspec

from hpcsched.config.configurations import complete_config
from hpcsched.config.duration import format_duration
from hpcsched.config.kinds import WrongValueError
from hpcsched.config.spec import ExperimentSpec
from hpcsched.core import events as ev
from hpcsched.core.enums import ExperimentState, PreemptReason, TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.transitions import ENDED
from hpcsched.core.words import no_such_trial
from hpcsched.driver.deadline import Limits, limits
from hpcsched.orders import AddAsked, Answer, ExtendAsked, Order, StopAsked


class Times(msgspec.Struct, frozen=True):
    """What limits the time now; seconds since the experiment began."""

    now: float
    began_at_unix_s: float
    file_deadline_s: float | None
    """With what earlier orders have added."""
    allocation_ends_s: float | None
    reserve_s: float

    def limits(self, file_deadline_s: float | None, *, chain: bool) -> Limits:
        return limits(
            file_deadline_s=file_deadline_s,
            allocation_ends_s=self.allocation_ends_s,
            reserve_s=self.reserve_s,
            chain=chain,
        )


class Verdict(msgspec.Struct, frozen=True):
    """`event` None: there is nothing to do (any more), or it is refused."""

    answer: Answer
    event: ev.TrialStopRequested | ev.ShutdownRequested | ev.DeadlineChanged | ev.TrialSubmitted | None = None
    file_deadline_s: float | None = None
    """Of an extension: the deadline from now on, before the allocation's end is looked at."""


class Clerk:
    """Knows which orders have been carried out. `done`: those of the lives before."""

    def __init__(self, spec: ExperimentSpec, done: Collection[str]) -> None:
        self._spec = spec
        self._answers = {
            order_id: Answer(order_id, True, "an earlier life of this driver has carried out this order")
            for order_id in done
        }

    def look(self, order: Order, scheduler: Scheduler, times: Times) -> Verdict:
        """What to do about it. Asked again about one that was carried out: nothing, and the same answer."""
        known = self._answers.get(order.order_id)
        if known is not None:
            return Verdict(known)
        verdict = self._look(order, scheduler, times)
        if verdict.event is not None:
            self._answers[order.order_id] = verdict.answer
        return verdict

    def _look(self, order: Order, scheduler: Scheduler, times: Times) -> Verdict:
        if scheduler.state is not ExperimentState.RUNNING:
            return _refused(order, f"the run is over: {scheduler.why_ended}")
        match order.ask:
            case StopAsked(trial_id=None):
                event = ev.ShutdownRequested(time=times.now, save=True, why="hpcsched stop")
                num = len(scheduler.live())
                return Verdict(_done(order, f"the run ends: {_num_trials(num)} to save and leave"), event)
            case StopAsked(trial_id=trial_id):
                assert trial_id is not None, "the case before"
                return _stop(order, TrialId(trial_id), scheduler, times.now)
            case ExtendAsked(by_s=by_s):
                return self._extend(order, by_s, scheduler, times)
            case AddAsked(config=config):
                if scheduler.is_draining:
                    return _refused(order, f"nothing starts any more: {_why_ending(scheduler)}")
                try:
                    whole = complete_config(config, self._spec.search.space)
                except WrongValueError as error:
                    return _refused(order, f"this is no configuration of the run: {error}")
                trial_id = TrialId(len(scheduler.trials))
                return Verdict(
                    Answer(order.order_id, True, f"it is trial {trial_id}", trial_id),
                    ev.TrialSubmitted(time=times.now, trial_id=trial_id, config=whole),
                )

    def _extend(self, order: Order, by_s: float, scheduler: Scheduler, times: Times) -> Verdict:
        chain = self._spec.experiment.span == "chain"
        before = scheduler.deadline_s
        if times.file_deadline_s is None or before is None:
            ends = "" if before is None else "; it ends with its allocation, for whose end you ask Slurm"
            return _refused(order, f"this run has no deadline of its own that could be moved{ends}")
        if scheduler.is_ending:
            return _refused(order, f"the run is ending already: {_why_ending(scheduler)}")
        wanted = times.file_deadline_s + by_s
        new = times.limits(wanted, chain=chain)
        assert new.deadline_s is not None, "the file's deadline is one"
        gained_s = new.deadline_s - before
        if gained_s < min(1.0, by_s / 2):
            return _refused(
                order,
                f"the deadline ({_clock(before, times)}) cannot be later: it is {new.why}. Ask for that first, by "
                "`scontrol update JobId=... TimeLimit=...`, and extend then",
            )
        text = f"the deadline is {format_duration(round(gained_s))} later, {_clock(new.deadline_s, times)}"
        if new.deadline_s < wanted - 1.0:
            text += f" and not {_clock(wanted, times)}: it is {new.why}"
        event = ev.DeadlineChanged(
            time=times.now, deadline_s=new.deadline_s, why=f"hpcsched extend: {new.why}"
        )
        return Verdict(_done(order, text), event, file_deadline_s=wanted)


def _stop(order: Order, trial_id: TrialId, scheduler: Scheduler, now: float) -> Verdict:
    if trial_id >= len(scheduler.trials):
        return _refused(order, no_such_trial(trial_id, len(scheduler.trials)))
    trial = scheduler.trials[trial_id]
    event = ev.TrialStopRequested(time=now, trial_id=trial_id)
    if trial.state in ENDED:
        return Verdict(_done(order, f"trial {trial_id} has ended already: it is {trial.state}"))
    if trial.state is TrialState.PREEMPTING and trial.preempt_reason is PreemptReason.STOP:
        return Verdict(_done(order, f"trial {trial_id} is leaving already"))
    if trial.state in (TrialState.PENDING, TrialState.PAUSED):
        return Verdict(_done(order, f"trial {trial_id}, which was {trial.state}, does not run again"), event)
    return Verdict(_done(order, f"trial {trial_id} saves and leaves; it does not run again"), event)


def _done(order: Order, text: str) -> Answer:
    return Answer(order.order_id, True, text)


def _refused(order: Order, text: str) -> Verdict:
    return Verdict(Answer(order.order_id, False, text))


def _why_ending(scheduler: Scheduler) -> str:
    return scheduler.why_ended or "the deadline is near, and everybody has been asked for a last checkpoint"


def _num_trials(num: int) -> str:
    return "1 trial has" if num == 1 else f"{num} trials have"


def _clock(at_s: float, times: Times) -> str:
    """A time of the experiment as people say it here: with the date when that is another day."""
    when = datetime.fromtimestamp(times.began_at_unix_s + at_s)
    today = datetime.fromtimestamp(times.began_at_unix_s + times.now).date()
    return when.strftime("at %H:%M:%S" if when.date() == today else "at %Y-%m-%d %H:%M:%S")
