"""Whether there is any time for what is asked: said before anything starts.

A run that goes on counts from its beginning: a deadline in the past would end it for good, on the spot.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping

from hpcsched.config.deadline import clock_time
from hpcsched.config.spec import ExperimentSpec
from hpcsched.core.enums import ExperimentState
from hpcsched.driver.deadline import reserve_s
from hpcsched.driver.past import Past
from hpcsched.errors import AllocationError, InputError
from hpcsched.runfolder import RunFolder

NEED_DEADLINE = ("hypersched", "fixed_split", "deadline")


def deadline_of(spec: ExperimentSpec, began_at: float) -> float | None:
    """Seconds since the experiment began."""
    table = spec.experiment
    if table.deadline_at is not None:
        return clock_time(table.deadline_at, began_at) - began_at
    return table.deadline


def check_given_deadline(spec: ExperimentSpec, past: Past) -> None:
    """A deadline given to a run that goes on counts from its beginning; one that is over would end it for good."""
    given = deadline_of(spec, past.header.began_at)
    chain = spec.experiment.span == "chain" and spec.experiment.deadline_at is None
    gone = past.last_time_s if chain else max(time.time() - past.header.began_at, past.last_time_s)
    if given is not None and given <= gone:
        raise InputError(
            f"{spec.file}: experiment.deadline: {given:.0f} s after the beginning are over: this run began {gone:.0f} s ago, "
            "and a deadline counts from there. Give a later one"
        )


def check_own_deadline(
    spec: ExperimentSpec, past: Past, folder: RunFolder, environ: Mapping[str, str]
) -> None:
    """A run that somebody has suspended and takes up after its deadline would be finished on the spot, for good. (One that
    crashed, or that Slurm puts into the queue again, is.)"""
    deadline_s = past.scheduler.deadline_s
    suspended = past.end is not None and past.end.state is ExperimentState.SUSPENDED
    if deadline_s is None or not suspended or "SLURM_RESTART_COUNT" in environ:
        return
    chain = spec.experiment.span == "chain" and spec.experiment.deadline_at is None
    gone = past.last_time_s if chain else time.time() - past.header.began_at
    if gone >= deadline_s:
        raise InputError(
            f"{folder.root}: this run was suspended and its deadline, {deadline_s:.0f} s after the beginning, has passed since "
            f"(it began {gone:.0f} s ago). To train on give a later one, counted from the beginning, such as: hpcsched run "
            f"--resume {shlex.quote(str(folder.root))} --deadline {math.ceil((gone + deadline_s) / 60)}m. While it runs `hpcsched "
            "extend` moves it further. What it has come to stands in best/"
        )


def check_first_deadline(
    spec: ExperimentSpec, deadline_s: float | None, ends_at: float | None, now_unix_s: float
) -> None:
    if deadline_s is not None and deadline_s <= 0:
        raise InputError(f"{spec.file}: experiment.deadline: is {-deadline_s:.0f} s in the past")
    if ends_at is not None and ends_at - now_unix_s - reserve_s(spec) <= 0:
        raise AllocationError(
            f"the allocation ends in {ends_at - now_unix_s:.0f} s, which is less than the reserve of "
            f"{reserve_s(spec):.0f} s: nothing can be trained. Ask for more time"
        )
    if (
        deadline_s is None
        and ends_at is None
        and spec.scheduler.policy.__struct_config__.tag in NEED_DEADLINE
    ):
        policy = spec.scheduler.policy.__struct_config__.tag
        raise InputError(
            f'{spec.file}: experiment.deadline: missing; policy "{policy}" works towards a deadline and this allocation '
            'has no end. Give one, such as deadline = "2h"'
        )
