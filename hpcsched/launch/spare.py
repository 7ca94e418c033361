"""A spare: a supervisor that waits on its node for a trial, with a zygote that has imported what ranks need.

`python -P -m hpcsched.launch.spare SPARE_FILE [--node NAME]`, in a step (or process) of its own.

It says hello as "trial NUMBER, incarnation 0", then `SpareReady` once its zygote has preloaded (or why it will serve
cold), and waits. `TakeTrial` makes it the supervisor of that incarnation, in the same step: it is used once, so every
incarnation keeps its own steps and shares its fate with nobody. A spare that loses its driver ends.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcsched.channel.client import Client
from hpcsched.launch.pulse import Pulse
from hpcsched.launch.supervisor import (
    GOODBYE_LIMIT_S,
    PR_SET_CHILD_SUBREAPER,
    log_to,
    serve_trial,
)
from hpcsched.launch.zygote_process import ZygoteProcess, preload_of
from hpcsched.launchspec import SpareSpec
from hpcsched.wire import Heartbeat, KillRanks, SpareReady, SupervisorGoodbye, SupervisorHello, TakeTrial

log = logging.getLogger("hpcsched.spare")


HUNG_AFTER_S = 10.0
"""A main thread away for longer takes no trial: no heartbeat says then that it would."""


def wait_for_trial(
    spec: SpareSpec, node: str, client: Client, zygote: ZygoteProcess, pulse: Pulse
) -> str | None:
    """The launch file of the trial to take, or None: end."""
    told_ready = False
    while True:
        pulse.came_round()
        message = client.receive(spec.heartbeat_s if told_ready else 0.05)
        match message:
            case TakeTrial(launch_file=launch_file):
                return launch_file
            case KillRanks(why=why):
                log.info("ended by the driver: %s", why)
                return None
            case _:
                pass
        if client.lost_for_s > spec.driver_lost_s:
            log.error("the driver is lost")
            return None
        if not told_ready and (ready := zygote.poll_ready()) is not None:
            told_ready = True
            log.info("preloaded in %.2f s; cold: %s", ready.preload_s, ready.cold)
            client.send(
                SpareReady(
                    spec.number, 0, node=node, pid=zygote.pid, cold=ready.cold, preload_s=ready.preload_s
                )
            )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hpcsched.launch.spare", description="Waits for a trial.")
    parser.add_argument("spare_file", type=Path)
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME"))
    args = parser.parse_args(argv)
    try:
        spec = msgspec.json.decode(args.spare_file.read_bytes(), type=SpareSpec)
    except (OSError, msgspec.DecodeError) as error:
        print(f"hpcsched spare: {args.spare_file}: {error}", file=sys.stderr)
        return 2
    node = args.node or spec.node
    log_to(args.spare_file.with_suffix(".log"))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        zygote = ZygoteProcess(preload_of(spec.preload), os.environ, spec.env)
    except OSError:
        log.exception("the preloading process cannot be started")
        return 3
    channel = spec.channel
    client = Client(
        channel.endpoints, channel.server_key_file, channel.client_key_file, f"{spec.number}.0.sup.{node}"
    )
    env = os.environ
    job, step = env.get("SLURM_JOB_ID", ""), env.get("SLURM_STEP_ID", "")
    client.send(
        SupervisorHello(
            spec.number,
            0,
            node=node,
            pid=os.getpid(),
            step_id=f"{job}.{step}" if job and step else "",
            devices=(),
            cores=tuple(sorted(os.sched_getaffinity(0))),
        )
    )
    beat = Heartbeat(spec.number, 0, node=node)
    pulse = Pulse(lambda: client.send(beat), spec.heartbeat_s, hung_after_s=HUNG_AFTER_S)
    pulse.start()
    launch_file = wait_for_trial(spec, node, client, zygote, pulse)
    pulse.stop()
    client.send(SupervisorGoodbye(spec.number, 0, node=node, exits={}))
    client.close(GOODBYE_LIMIT_S if launch_file is None else 0.5)
    if launch_file is None:
        zygote.close()
        return 0
    return serve_trial(Path(launch_file), node, slurm_picks=False, zygote=zygote)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # no thread of the channel may keep the process: all that matters has been said
