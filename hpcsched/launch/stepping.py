"""What a site decides about the srun commands of trials. Made in one way for `hpcsched check` and for the launcher, so that the one
prints what the other runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol

import msgspec

from hpcsched.launch.allocation import Allocation
from hpcsched.launch.probe import job_gpus_of
from hpcsched.launch.steps import Binding, Step, trial_steps
from hpcsched.launch.versions import abilities_of
from hpcsched.launchspec import LaunchSpec
from hpcsched.topology.machine import Machine


class SteppingTable(Protocol):
    """Of the [launcher] table of an experiment file."""

    @property
    def binding(self) -> Binding: ...
    @property
    def srun_args(self) -> tuple[str, ...]: ...


class Stepping(msgspec.Struct, frozen=True):
    """How steps are asked for in one job."""

    binding: Binding
    """What is really used: "slurm" where this Slurm is too old for "overlap"."""
    job_gpus: dict[str, int]
    """How many GPUs a step can be shown on each node of the job."""
    srun_args: tuple[str, ...] = ()
    python: str = sys.executable

    def trial(self, spec: LaunchSpec, launch_file: str) -> tuple[Step, ...]:
        """The steps of an incarnation. Raises LaunchError where one step cannot serve an MPI trial."""
        return trial_steps(
            spec,
            binding=self.binding,
            job_gpus=self.job_gpus,
            launch_file=launch_file,
            python=self.python,
            srun_args=self.srun_args,
        )


def stepping_of(
    allocation: Allocation,
    machine: Machine,
    table: SteppingTable,
    *,
    step_gpus: Mapping[str, int] | None = None,
    python: str = sys.executable,
) -> Stepping:
    """`machine`: whose GPUs the job holds where Slurm does not say. `step_gpus`: what a probe found that a step can be shown
    (`probe.step_gpus_of`); it has the last word."""
    job_gpus = {node.name: len(node.gpus) for node in machine.nodes}
    job_gpus |= {node: num for node, num in job_gpus_of(allocation).items() if num is not None}
    job_gpus |= step_gpus or {}
    overlap = table.binding == "overlap" and abilities_of(allocation.version).overlap
    return Stepping("overlap" if overlap else "slurm", job_gpus, table.srun_args, python)
