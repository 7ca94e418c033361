"""What becomes of a trial when an incarnation of it has ended: a pure function of outcome and circumstances.

Blame decides about retries. CRASHED, OUT_OF_MEMORY and KILLED (it hung) are the trial's own, unless one of its nodes
is down; NODE_FAILED and LAUNCH_FAILED have limits of their own. What ended because we wanted it to go (STOP, DEADLINE,
a shutdown) is nobody's fault.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from hpcsched.core.enums import Outcome, PreemptReason
from hpcsched.core.settings import RetrySettings
from hpcsched.core.transitions import Cause
from hpcsched.core.trial import Trial


class Blame(StrEnum):
    NOBODY = "nobody"
    TRIAL = "trial"
    NODE = "node"
    LAUNCH = "launch"


class Fate(msgspec.Struct, frozen=True):
    cause: Cause
    blame: Blame
    why: str


MOST_FRUITLESS = 3
"""Incarnations in a row that train, leave when asked and save nothing; more and the trial is given up."""


def blame_of(trial: Trial, outcome: Outcome, *, wanted_gone: bool) -> Blame:
    """Whose fault the end of the incarnation was."""
    if outcome in {Outcome.PREEMPTED, Outcome.COMPLETED} or wanted_gone:
        return Blame.NOBODY
    if outcome is Outcome.NODE_FAILED or trial.node_fault:
        return Blame.NODE
    if outcome is Outcome.LAUNCH_FAILED:
        return Blame.LAUNCH
    return Blame.TRIAL


def fate_of(
    trial: Trial,
    outcome: Outcome,
    *,
    why: str,
    wanted_gone: bool,
    max_iterations: int,
    retries: RetrySettings,
) -> Fate:
    """The transition of the trial. Its failures so far do not include this one."""
    if outcome is Outcome.COMPLETED and not trial.reported and trial.restart_ref is None:
        outcome, why = Outcome.CRASHED, why or "it ended without a single report"
    blame = blame_of(trial, outcome, wanted_gone=wanted_gone)
    done = trial.restart.training_iteration >= max_iterations
    if outcome is Outcome.COMPLETED or done:
        return Fate(Cause.FINISH, Blame.NOBODY, why or "it is done")
    if trial.preempt_reason is PreemptReason.STOP:
        return Fate(Cause.STOP, Blame.NOBODY, why or "it was stopped")
    failures, most, kind = {
        Blame.NOBODY: (0, 0, ""),
        Blame.TRIAL: (trial.crashes + 1, retries.crashed, "crashes"),
        Blame.NODE: (trial.node_failures + 1, retries.node_failed, "node failures"),
        Blame.LAUNCH: (trial.launch_failures + 1, retries.launch_failed, "failed launches"),
    }[blame]
    if failures > most:
        return Fate(
            Cause.GIVE_UP, blame, f"{outcome}: {why or 'no reason given'}; {failures} {kind}, {most} allowed"
        )
    if blame is Blame.NOBODY and not wanted_gone and trial.fruitless >= MOST_FRUITLESS:
        return Fate(
            Cause.GIVE_UP, blame, f"{trial.fruitless} times in a row it trained and saved no checkpoint"
        )
    if trial.preempt_reason is PreemptReason.PAUSE:
        return Fate(Cause.PAUSE, blame, why)
    return Fate(Cause.RESTART, blame, why)
