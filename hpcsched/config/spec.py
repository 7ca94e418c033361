"""An experiment, as read from `experiment.toml`: validated values, every default filled in.

Tables and keys are named as in the file. Durations are written "90s", "2h30m", "1d" or a number of seconds, and
held as float seconds. See `hpcsched.config.load` for reading and for what is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from hpcsched.core.enums import Mode
from hpcsched.core.settings import PolicySettings, ScalingSettings


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """Any number from low to high, each as likely."""

    low: float
    high: float
    num: int | None = None
    """Points of a grid, ends included; for sampler "grid" only."""


class LogUniform(msgspec.Struct, frozen=True, tag="log_uniform"):
    """Any number from low (above 0) to high, each order of magnitude as likely."""

    low: float
    high: float
    num: int | None = None


class Integer(msgspec.Struct, frozen=True, tag="integer"):
    """A whole number from low to high, both included."""

    low: int
    high: int
    log: bool = False
    """Each order of magnitude as likely; low is at least 1."""
    num: int | None = None
    """Points of a grid; None: every number."""


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    values: tuple[Any, ...]


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    value: Any


Dimension: TypeAlias = Uniform | LogUniform | Integer | Choice | Constant


class ExperimentTable(msgspec.Struct, frozen=True):
    name: str
    metric: str
    mode: Mode
    metric_window: int
    deadline: float | None
    """Seconds from the beginning; None when it is a clock time or there is none."""
    deadline_at: str | None
    """A clock time "17:30" (the next one) or "2026-11-30T17:30"."""
    seed: int
    span: Literal["allocation", "chain"]
    run_dir: str | None
    """None: `runs/NAME-DATE-TIME` beside the file."""


class TrialTable(msgspec.Struct, frozen=True):
    command: tuple[str, ...]
    grace_period: int
    max_iterations: int
    env: dict[str, str]
    preload: tuple[str, ...]
    cwd: str
    """Absolute: where the command runs; default: the file's folder."""


class SchedulerTable(msgspec.Struct, frozen=True):
    policy: PolicySettings
    reduction_factor: int


class AtomsTable(msgspec.Struct, frozen=True):
    gpus_per_atom: int
    multiple_of: int
    max_trial_atoms: int | None
    gpus_per_node: int | None
    num_atoms: int | None
    """Local launcher without GPUs: how many invented GPUs to play, over gpus_per_atom. Default 4 atoms."""


class SearchTable(msgspec.Struct, frozen=True):
    sampler: Literal["random", "grid", "list", "optuna"]
    space: dict[str, Dimension]
    num_trials: int | None
    first: tuple[dict[str, Any], ...]
    list_file: str | None
    """Absolute path of a JSON-lines file for sampler "list"."""
    optuna_sampler: str | None


class LauncherTable(msgspec.Struct, frozen=True):
    kind: Literal["auto", "local", "srun"]
    binding: Literal["overlap", "slurm"]
    mpi: Literal["none", "pmix"]
    srun_args: tuple[str, ...]
    wrap: tuple[str, ...]
    max_steps: int | None
    interface: str | None
    warm: bool
    spares_per_node: int


class TimeoutsTable(msgspec.Struct, frozen=True):
    """Seconds."""

    start: float
    silence: float
    preempt_grace: float
    kill_wait: float
    group: float
    reserve: float | None
    """Before the allocation's end; None: from measured save times, at least 10 s."""


class RetriesTable(msgspec.Struct, frozen=True):
    crashed: int
    node_failed: int
    launch_failed: int
    fail_fast: int


class CheckpointTable(msgspec.Struct, frozen=True):
    budget: float
    """Share of training time that saves may cost; default 0.05."""
    background: bool
    """Save after a report while training goes on, where that is safe; default on."""


class DriverTable(msgspec.Struct, frozen=True):
    where: Literal["auto", "here", "node"]
    driver_cores: int
    driver_memory_mb: int


class SetupTable(msgspec.Struct, frozen=True):
    per_node: str | None


class ExperimentSpec(msgspec.Struct, frozen=True):
    """The whole file."""

    experiment: ExperimentTable
    trial: TrialTable
    scheduler: SchedulerTable
    atoms: AtomsTable
    scaling: ScalingSettings
    search: SearchTable
    launcher: LauncherTable
    timeouts: TimeoutsTable
    retries: RetriesTable
    checkpoint: CheckpointTable
    driver: DriverTable
    setup: SetupTable
    simulation: dict[str, Any]
    """The raw [simulation] table; `hpcsched.sim` reads it. Empty when there is none."""
    file: Path
    text: str
