"""What one incarnation is told: `trials/ID/INCARNATION/launch.json`, mode 0600, written by the driver before the
launch, read by the node supervisors (who start the ranks) and by rank 0's runtime. Seen by `launch`, `runtime`
and `driver`; depends on nothing but msgspec.
"""

from __future__ import annotations

from typing import Any

import msgspec


class LaunchNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of the incarnation on one node. Its ranks are first_rank .. first_rank + len(gpus) - 1."""

    node: str
    gpus: tuple[str, ...]
    """Indices, as strings, in the list of GPUs that the job holds on that node."""
    cores: tuple[int, ...]
    memory_mb: int | None
    first_rank: int
    job_gpus: tuple[str, ...]
    """All GPUs that the job holds there, to map indices through what the step shows."""
    uuids: tuple[str, ...] = ()
    """Of `gpus`, as the probe saw them; empty where it saw none."""
    memory_nodes: tuple[int, ...] = ()
    """NUMA nodes where ranks take their memory; empty: anywhere."""
    gpu_cores: tuple[tuple[int, ...], ...] = ()
    """Of `cores`, those of each of `gpus`, near it; empty: ranks share them evenly, in their order."""


class Channel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach the driver. Key files, not keys: nothing secret is in argv or the environment."""

    endpoints: tuple[str, ...]
    """Such as "tcp://10.77.0.1:23456"; the first that answers is used."""
    server_key_file: str
    client_key_file: str
    """zmq.auth certificate with the secret key, mode 0600."""


class RestorePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint that a trial may go on from."""

    path: str
    """Absolute."""
    training_iteration: int
    incarnation: int
    """That has saved it: two paths of one incarnation and iteration are copies of the same."""


class LaunchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    trial_id: int
    incarnation: int
    config: dict[str, Any]
    command: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    """[trial] env of the experiment file."""
    nodes: tuple[LaunchNode, ...]
    master_addr: str
    master_port: int
    channel: Channel
    run_dir: str
    """Absolute."""
    metric: str
    mode: str
    max_iterations: int
    seed: int
    restore: str | None
    """Absolute path of the checkpoint to go on from; None: from scratch."""
    restore_iteration: int
    restore_incarnation: int = 0
    """That has saved it."""
    fallbacks: tuple[RestorePoint, ...] = ()
    """What to go on from, in this order, when `restore` is not there any more or was damaged; then from scratch."""
    wrap: tuple[str, ...] = ()
    mpi: str = "none"
    """"pmix": ranks are started by an MPI launcher, each as a task of its own ([launcher] mpi)."""
    invented_gpus: bool = False
    """A CPU machine plays GPUs: do not set CUDA_VISIBLE_DEVICES."""
    interface: str | None = None
    """[launcher] interface, a hint for NCCL and Gloo; None: they choose."""
    verdict_wait_min_s: float = 0.2
    verdict_wait_max_s: float = 5.0
    checkpoint_budget: float = 0.05
    """Save after a report when the save costs less than this share of the training since the last one."""
    checkpoint_background: bool = True
    """Save after a report while training goes on, where that is safe."""
    group_timeout_s: float = 600.0
    driver_lost_s: float = 60.0
    heartbeat_s: float = 1.0
    save_on_exit_s: float = 60.0

    @property
    def restore_points(self) -> tuple[RestorePoint, ...]:
        """What the trial may go on from, in the order in which it is tried."""
        if self.restore is None:
            return ()
        first = RestorePoint(self.restore, self.restore_iteration, self.restore_incarnation)
        return (first, *self.fallbacks)

    @property
    def world_size(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)


class SpareSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one spare is told: `spares/NUMBER.json` in the run folder, mode 0600."""

    number: int
    node: str
    channel: Channel
    run_dir: str
    preload: tuple[str, ...]
    """[trial] preload: modules that are imported besides torch and the runtime."""
    env: dict[str, str] = {}
    """[trial] env, which the process that preloads is started with."""
    heartbeat_s: float = 1.0
    driver_lost_s: float = 60.0
