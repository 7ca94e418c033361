"""Giving an order to the live driver of a run folder, from another process: over its endpoint, else as a file.

The same order, with the same id, goes first to the endpoint that `driver.json` names. When no answer comes soon (a firewall, another host's
loopback, a disk that does not answer) it is dropped into `control/`, whether the driver may have it already or not: it carries out an id once.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import msgspec

from hpcsched.channel.keys import keys_in
from hpcsched.channel.ordering import OrderLine
from hpcsched.driver.control import drop_order, take_answer
from hpcsched.errors import ChannelError, InputError, MessageError
from hpcsched.eventlog.lease import LeaseRecord, holder_of, this_host
from hpcsched.eventlog.status import Standing, read_status
from hpcsched.launch.tails import clean
from hpcsched.orders import Answer, Ask, Order, encode_order, new_order_id
from hpcsched.runfolder import RunFolder, neat

CONNECT_S = 2.0
"""To reach any of the endpoints: a handshake takes two round trips."""
NUM_ROUNDS = 2
"""Over all endpoints: where nobody listens that is told at once, and a third time says no more."""
ANSWER_S = 3.0
"""Once it is reached: the answer comes when the journal has the order."""
TAKEN_LIMIT_S = 5.0
"""The driver looks each second; on a network file system it may see a new file some seconds later."""
LOOK_S = 0.05


class LiveRun:
    """A run folder that a driver serves now."""

    def __init__(self, folder: RunFolder, standing: Standing) -> None:
        self.folder = folder
        self.run = standing.run
        assert standing.holder is not None, "live_run looks for a holder"
        self.record: LeaseRecord = standing.holder.record
        self.driver = f"process {self.record.pid} on {self.record.host}"
        if self.record.job_id:
            self.driver += f", Slurm job {self.record.job_id}"


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


def give_order(live: LiveRun, ask: Ask, *, limit_s: float = TAKEN_LIMIT_S) -> Answer | None:
    """What the driver did; None: it has not answered, the file waits for it (see `left_in_words`).

    `limit_s`: longest wait for it to take the file. Raises InputError when it refuses, or has ended before it took the order;
    RunFolderError when the order can be left nowhere.
    """
    order = Order(new_order_id(), live.record.life, ask)
    try:
        encode_order(order)
    except MessageError as error:
        raise InputError(str(error)) from error
    answer = _over_endpoint(live, order)
    if answer is None:
        answer = _by_file(live, order, limit_s)
    if answer is None:
        return None
    answer = msgspec.structs.replace(answer, text=clean(answer.text))
    if not answer.done:
        raise InputError(f"{live.folder.root}: the driver refuses: {answer.text}")
    return answer


def left_in_words(live: LiveRun, what: str) -> str:
    return (
        f"left for the driver ({live.driver}): {what}. It has not said that it took the order; it does so when it next looks into "
        f"{live.folder.control}"
    )


def _over_endpoint(live: LiveRun, order: Order) -> Answer | None:
    """None: not reached, or no answer in time; it may have the order all the same."""
    endpoints = live.record.endpoints
    if not endpoints:
        return None
    keys = keys_in(live.folder.order_keys(live.record.life))
    try:
        line = OrderLine(
            endpoints, live.record.server_key, keys, order, connect_limit_s=CONNECT_S / len(endpoints)
        )
    except ChannelError:
        return None  # a key that we may not read, or none: whether the folder is ours the file will show
    try:
        end = time.monotonic() + CONNECT_S
        while not line.wait_connected(LOOK_S):
            if time.monotonic() > end or line.num_failed >= NUM_ROUNDS * len(endpoints):
                return None
        return line.receive(ANSWER_S)
    finally:
        line.close(0.0)


def _by_file(live: LiveRun, order: Order, limit_s: float) -> Answer | None:
    file = drop_order(live.folder, order)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        answer = take_answer(live.folder, order.order_id)
        if answer is not None:
            return answer
        time.sleep(LOOK_S)
    holder = holder_of(live.folder, host=this_host())
    if (holder is None or not holder.holds) and file.exists():
        file.unlink(missing_ok=True)
        raise InputError(f"{live.folder.root}: the driver ({live.driver}) has ended without taking the order")
    return None
