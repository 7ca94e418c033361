"""Giving an order to the live driver of a run folder: the other side of `control`."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from hpcsched.driver.control import drop_control
from hpcsched.driver.inbox import Control
from hpcsched.errors import InputError
from hpcsched.eventlog.status import Standing, read_status
from hpcsched.runfolder import RunFolder, neat

TAKEN_LIMIT_S = 5.0
"""The driver looks each second; on a network file system it may see a new file some seconds later."""


class LiveRun:
    """A run folder that a driver serves now."""

    def __init__(self, folder: RunFolder, standing: Standing) -> None:
        self.folder = folder
        self.run = standing.run
        assert standing.holder is not None, "live_run looks for a holder"
        record = standing.holder.record
        self.driver = f"process {record.pid} on {record.host}"
        if record.job_id:
            self.driver += f", Slurm job {record.job_id}"


def live_run(root: Path) -> LiveRun:
    """Raises RunFolderError for a folder without a run, InputError when no driver serves it."""
    folder = RunFolder(neat(root))
    standing = read_status(folder)
    state = standing.status.state
    if standing.run.end is not None or standing.holder is None or not standing.holder.holds:
        cure = ""
        if state.value == "suspended":
            later = " --deadline TIME" if _is_past_deadline(standing) else ""
            cure = f"; go on with it by `hpcsched run --resume {shlex.quote(str(root))}{later}`"
            cure += " (TIME counts from the beginning of the run)" if later else ""
        raise InputError(f"{root}: no driver serves this run, it is {state.value}{cure}")
    return LiveRun(folder, standing)


def _is_past_deadline(standing: Standing) -> bool:
    deadline_s = standing.run.deadline_s
    return deadline_s is not None and time.time() - standing.run.header.began_at >= deadline_s


def give_order(live: LiveRun, order: Control, what: str) -> str:
    """Hand it over and wait a little until it is taken; the answer in words. Raises RunFolderError."""
    file = drop_control(live.folder, order)
    end = time.monotonic() + TAKEN_LIMIT_S
    while time.monotonic() < end:
        if not file.exists():
            return f"the driver ({live.driver}) has been told to {what}"
        time.sleep(0.05)
    return (
        f"left for the driver ({live.driver}): {what}. It has not taken the order within {TAKEN_LIMIT_S:g} s; it does when "
        f"it next looks into {live.folder.control}"
    )
