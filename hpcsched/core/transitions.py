"""The life of a trial, as a table.

::

    PENDING ──LAUNCH──> STARTING ──CONTACT──> RUNNING ──LEAVE──> PREEMPTING ──┬─RESTART──> PENDING
       ^                   │  └──────────────LEAVE/KILL───────────^           ├─PAUSE────> PAUSED ──PROMOTE──> PENDING
       └──RESTART/REFUSE───┘                                                  └─STOP─────> STOPPED

Any state that holds atoms may also end in COMPLETED (FINISH) or FAILED (GIVE_UP); PENDING and PAUSED may be dropped.
PREEMPTING is "asked or forced to leave". What is not in the table cannot happen.
"""

from __future__ import annotations

from enum import StrEnum

from hpcsched.core.enums import TrialState as S


class Cause(StrEnum):
    """Why a trial changes its state."""

    LAUNCH = "launch"
    CONTACT = "contact"
    """All ranks are up."""
    REFUSE = "refuse"
    """The launch was refused; nothing ran."""
    LEAVE = "leave"
    KILL = "kill"
    RESTART = "restart"
    """The incarnation is over and the trial is to go on: after a resize, a crash, a lost node."""
    PAUSE = "pause"
    STOP = "stop"
    FINISH = "finish"
    GIVE_UP = "give_up"
    PROMOTE = "promote"
    DROP = "drop"


TRANSITIONS: dict[tuple[S, Cause], S] = {
    (S.PENDING, Cause.LAUNCH): S.STARTING,
    (S.PENDING, Cause.DROP): S.STOPPED,
    (S.PAUSED, Cause.PROMOTE): S.PENDING,
    (S.PAUSED, Cause.DROP): S.STOPPED,
    (S.STARTING, Cause.CONTACT): S.RUNNING,
    (S.STARTING, Cause.REFUSE): S.PENDING,
    (S.PREEMPTING, Cause.CONTACT): S.PREEMPTING,
    (S.STARTING, Cause.LEAVE): S.PREEMPTING,
    (S.RUNNING, Cause.LEAVE): S.PREEMPTING,
    (S.PREEMPTING, Cause.LEAVE): S.PREEMPTING,
    **{(live, Cause.KILL): S.PREEMPTING for live in (S.STARTING, S.RUNNING, S.PREEMPTING)},
    **{(live, Cause.RESTART): S.PENDING for live in (S.STARTING, S.RUNNING, S.PREEMPTING)},
    **{(live, Cause.PAUSE): S.PAUSED for live in (S.STARTING, S.RUNNING, S.PREEMPTING)},
    **{(live, Cause.STOP): S.STOPPED for live in (S.STARTING, S.RUNNING, S.PREEMPTING)},
    **{(live, Cause.FINISH): S.COMPLETED for live in (S.STARTING, S.RUNNING, S.PREEMPTING)},
    **{(live, Cause.GIVE_UP): S.FAILED for live in (S.STARTING, S.RUNNING, S.PREEMPTING)},
}
"""(state, cause) -> next state."""

LIVE = frozenset({S.STARTING, S.RUNNING, S.PREEMPTING})
"""An incarnation exists and holds atoms."""

ENDED = frozenset({S.STOPPED, S.COMPLETED, S.FAILED})
"""It will not run again."""
