"""What the keeper does for a driver life: each looks at something now and then and puts what it learns into the inbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from hpcsched.driver import inbox as ib
from hpcsched.driver.keeper import Chore
from hpcsched.driver.loop import Loop
from hpcsched.driver.nodewatch import NodeWatch, step_runs_on
from hpcsched.driver.orderdesk import OrderDesk
from hpcsched.driver.sealer import Sealer
from hpcsched.errors import LaunchError
from hpcsched.eventlog.lease import Lease
from hpcsched.launch.allocation import Allocation, read_ends_at, why_over
from hpcsched.launch.command import run_command
from hpcsched.launch.launcher import Launcher

SEAL_LOOK_S = 5.0
CONTROL_S = 1.0
ALLOCATION_S = 20.0
NODES_S = 1.0
ASIDE_S = 2.0


def look_at_asides(loop: Loop, launcher: Launcher, put: Callable[[object], None], *, invented: bool) -> Chore:
    def look() -> None:
        for kept in loop.asides_due():
            try:
                why = launcher.check(kept.node, invented=invented)
            except LaunchError as error:
                why = str(error)
            put(ib.Checked(kept, why))

    return Chore("aside", "look again at GPUs that were set aside", "they stay aside", ASIDE_S, look)


def look_for_orders(desk: OrderDesk) -> Chore:
    return Chore(
        "control",
        "look for orders in control/",
        "those that are left there as files wait",
        CONTROL_S,
        desk.look_at_files,
    )


def tell_how_the_disk_does(loop: Loop, lease: Lease) -> Chore:
    def remark() -> None:
        if lease.record.remark != loop.stall:
            lease.renew(remark=loop.stall)

    return Chore(
        "remark",
        "write into driver.json how the disk does",
        "`hpcsched status` and `watch` do not say so",
        CONTROL_S,
        remark,
    )


def seal(sealer: Sealer) -> Chore:
    return Chore(
        "seal",
        "bring log.h5 up to date",
        "it is as old as its last version; the journal has everything",
        SEAL_LOOK_S,
        sealer.now_and_then,
    )


def ask_for_the_end(
    allocation: Allocation, environ: Mapping[str, str], put: Callable[[object], None]
) -> Chore:
    def ask() -> None:
        ends_at, known = read_ends_at(allocation.job_id, environ, run_command)
        if known:
            put(ib.AllocationEnds(ends_at))
        elif why := why_over(allocation.job_id, environ, run_command):
            put(ib.AllocationOver(f"the Slurm job {allocation.job_id} is over: {why}"))

    return Chore(
        "allocation", "ask Slurm for the job's end", "the end that was known before counts", ALLOCATION_S, ask
    )


def try_nodes(
    loop: Loop, environ: Mapping[str, str], put: Callable[[object], None], *, srun_args: Sequence[str]
) -> Chore:
    watch = NodeWatch(lambda node: step_runs_on(node, environ, run_command, srun_args=srun_args))

    def look() -> None:
        for node in watch.back(sorted(loop.down_nodes), time.monotonic()):
            put(ib.NodeBack(node))

    return Chore("nodes", "try the nodes that are down", "none of them comes back", NODES_S, look)
