"""The trial's process groups: one for training, one for verdicts, one for saving.

Verdicts and saves have gloo groups of their own, so that neither waits behind a collective of the model nor needs the
GPU.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from datetime import timedelta
from types import FunctionType
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from hpcsched.errors import TrialError
from hpcsched.runtime.device import find_device
from hpcsched.runtime.place import Place

DEFAULT_TIMEOUT_S = 600.0
KNOCK_AGAIN_S = 0.005


class Groups(msgspec.Struct, frozen=True):
    device: torch.device
    verdicts: dist.ProcessGroup
    saves: dist.ProcessGroup


def join_groups(place: Place) -> Groups:
    """Join the group that the environment names (or the one the script has made already). Blocks until all ranks
    are there, at most the launch's `group_timeout_s`; raises TrialError."""
    launch = place.launch
    timeout = timedelta(seconds=DEFAULT_TIMEOUT_S if launch is None else launch.group_timeout_s)
    device = find_device(place, os.environ)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            if place.rendezvous:
                if launch is not None and place.rank > 0:
                    wait_for_rank_0(launch.master_addr, launch.master_port, timeout.total_seconds())
                dist.init_process_group(backend, init_method="env://", timeout=timeout)
            else:
                # Alone: a group of one, so that DDP and collectives in the script work all the same.
                store = dist.HashStore()  # type: ignore[attr-defined]  # not in its list of exports
                dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
        verdicts = dist.new_group(backend="gloo", timeout=timeout)
        saves = dist.new_group(backend="gloo", timeout=timeout)
    except (
        RuntimeError,
        ValueError,
    ) as error:  # torch's own errors (DistError, DistStoreError) are RuntimeErrors
        raise TrialError(
            f"rank {place.rank} of {place.world_size} could not join the process group within {timeout.total_seconds():g} s: {error}"
        ) from error
    return Groups(device=device, verdicts=verdicts, saves=saves)


def wait_for_rank_0(address: str, port: int, limit_s: float) -> None:
    """Return once somebody listens there, or after `limit_s` (then torch says what is wrong).

    A rank that comes to torch's store before rank 0 has made it waits half a second until it tries again: most of what a warm
    start took (measured: 0.57 s with it, 0.02 s so).
    """
    until = time.monotonic() + limit_s
    while (left := until - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), timeout=left).close()
            return
        except OSError:  # refused: not yet; a name that is not known yet; a host that is not there yet
            time.sleep(KNOCK_AGAIN_S)


def count_collectives(besides: dist.ProcessGroup) -> int:
    """Collectives that this rank has entered, over all groups but one. May be called by any thread; costs microseconds."""
    total = 0
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is besides:
            continue
        for device in group._device_types:
            # A backend that counts nothing, or one that is being torn down.
            with contextlib.suppress(RuntimeError, ValueError):
                backend: Any = group._get_backend(device)  # its stub lacks the method that it has
                total += backend._get_sequence_number_for_group()
    return total


def leave_groups() -> None:
    """Destroy what is left, as at the end of a torchrun script, so that whoever drops the last reference to a group joins its
    threads.

    That has to be before the interpreter ends. A gloo thread that finishes a collective may be the last to hold its tensor;
    to give up the tensor's Python object it waits for the interpreter's lock; when the interpreter begins to end meanwhile, it
    ends the thread that waits, inside of a C++ destructor, and the process aborts with "terminate called without an active
    exception" (seen once in some hundred exits on a busy machine; tests/runtime/test_exit.py makes it certain).
    """
    if not dist.is_initialized():
        return
    world = dist.group.WORLD
    dist.destroy_process_group()
    # Functions that were defined while the group stood keep it as the default of an argument: `group=group.WORLD`.
    functions = vars(sys.modules.get("torch.distributed.nn.functional", sys)).values()
    for function in functions:
        if isinstance(function, FunctionType) and function.__defaults__ is not None:
            function.__defaults__ = tuple(
                None if default is world else default for default in function.__defaults__
            )
