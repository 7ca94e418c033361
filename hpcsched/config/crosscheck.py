"""What must hold between the keys of an experiment file, and between it and the world."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsched.config.configurations import read_list_file
from hpcsched.config.deadline import clock_time
from hpcsched.config.files import find_program, is_file, is_folder
from hpcsched.config.kinds import WrongValueError
from hpcsched.config.mistakes import Mistakes
from hpcsched.config.options import NEEDS_DEADLINE
from hpcsched.config.spec import Constant, ExperimentSpec, Integer, LogUniform, Uniform
from hpcsched.core.rungs import milestones_of
from hpcsched.core.settings import ShaSettings

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


def check(
    spec: ExperimentSpec,
    mistakes: Mistakes,
    *,
    given: AbstractSet[str],
    environ: Mapping[str, str],
    now: float,
    simulated: bool,
) -> None:
    """Adds to `mistakes`; keys in which a mistake was found already are compared with nothing."""
    _check_rungs(spec, mistakes)
    _check_deadline(
        spec,
        mistakes,
        inside_job=bool(environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")),
        now=now,
        simulated=simulated,
    )
    _check_atoms(spec, mistakes, given)
    _check_search(spec, mistakes, given)
    if not simulated:
        _check_command(spec, mistakes, environ)


def least_sha_trials(grace_period: int, max_iterations: int, reduction_factor: int) -> int:
    """eta^k_max, k_max = floor(log_eta(R / r)): fewer configurations leave the last rung empty. 1 when r > R."""
    if grace_period > max_iterations:
        return 1
    return int(reduction_factor ** (len(milestones_of(grace_period, max_iterations, reduction_factor)) - 1))


def _check_rungs(spec: ExperimentSpec, mistakes: Mistakes) -> None:
    r, R, eta = spec.trial.grace_period, spec.trial.max_iterations, spec.scheduler.reduction_factor  # noqa: N806 (the paper's R)
    if not mistakes.clean("trial.grace_period", "trial.max_iterations"):
        return
    if r > R:
        mistakes.add(
            "trial.grace_period", f"r must not be above R: trials end at max_iterations = {R}", r, f"1 to {R}"
        )
        return
    policy = spec.scheduler.policy
    if isinstance(policy, ShaSettings) and mistakes.clean("scheduler", "search.num_trials"):
        least = least_sha_trials(r, R, eta)
        if policy.num_trials < least:
            mistakes.add(
                "scheduler.num_trials",
                f"too few for r = {r}, R = {R}, reduction_factor = {eta}: the last rung would be empty. "
                "Raise it, or grace_period",
                policy.num_trials,
                f"at least {least}",
            )


def _check_deadline(
    spec: ExperimentSpec, mistakes: Mistakes, *, inside_job: bool, now: float, simulated: bool
) -> None:
    if not mistakes.clean("experiment.deadline"):
        return
    experiment = spec.experiment
    if experiment.deadline_at is not None:
        try:
            at = clock_time(experiment.deadline_at, now)
        except ValueError as error:
            mistakes.add("experiment.deadline", str(error), experiment.deadline_at)
            return
        if at <= now and not simulated:
            mistakes.add("experiment.deadline", "is in the past", experiment.deadline_at)
        return
    if experiment.deadline is not None or not mistakes.clean("scheduler.policy", "experiment.span"):
        return
    policy = str(spec.scheduler.policy.__struct_config__.tag)
    if policy in NEEDS_DEADLINE and (not inside_job or experiment.span == "chain"):
        where = (
            'and with span = "chain" the end of a job is none'
            if inside_job
            else "and this is not inside a Slurm job"
        )
        mistakes.add(
            "experiment.deadline",
            f'is missing: policy "{policy}" plans towards a deadline, {where}. '
            'Set one, such as deadline = "2h", or take policy "asha"',
        )
    elif (
        spec.search.sampler in ("random", "optuna")
        and spec.search.num_trials is None
        and policy not in ("sha", "hyperband")
        and not inside_job
        and mistakes.clean("search")
    ):
        mistakes.add(
            "search.num_trials",
            f'is missing: sampler "{spec.search.sampler}" never ends by itself and there is no deadline. '
            "Set num_trials, or [experiment] deadline",
        )


def _check_atoms(spec: ExperimentSpec, mistakes: Mistakes, given: AbstractSet[str]) -> None:
    atoms = spec.atoms
    if (
        atoms.gpus_per_node is not None
        and mistakes.clean("atoms.gpus_per_atom", "atoms.gpus_per_node")
        and atoms.gpus_per_atom > atoms.gpus_per_node
    ):
        mistakes.add(
            "atoms.gpus_per_atom",
            f"an atom lies on one node, and a node has gpus_per_node = {atoms.gpus_per_node}",
            atoms.gpus_per_atom,
            f"1 to {atoms.gpus_per_node}",
        )
    if (
        "atoms.num_atoms" in given
        and spec.launcher.kind == "srun"
        and mistakes.clean("atoms.num_atoms", "launcher.kind")
    ):
        mistakes.add(
            "atoms.num_atoms",
            'is for the local launcher on a machine without GPUs; with [launcher] kind = "srun" the job decides',
            atoms.num_atoms,
        )


def _check_search(spec: ExperimentSpec, mistakes: Mistakes, given: AbstractSet[str]) -> None:
    search = spec.search
    if not mistakes.clean("search.sampler", "search.space"):
        return
    for name, dimension in search.space.items():
        key = f"search.space.{name}"
        num = getattr(dimension, "num", None)
        if search.sampler == "grid" and isinstance(dimension, (Uniform, LogUniform)) and num is None:
            shape = "uniform" if isinstance(dimension, Uniform) else "log_uniform"
            mistakes.add(
                key,
                f"a grid needs the number of points of {shape}: {{ {shape} = [{dimension.low:g}, {dimension.high:g}], num = 5 }}",
            )
        elif (
            search.sampler != "grid"
            and isinstance(dimension, (Uniform, LogUniform, Integer))
            and num is not None
        ):
            mistakes.add(key, f'num is for sampler "grid"; the sampler is "{search.sampler}"', num)
    if search.num_trials is not None and search.num_trials < len(search.first) and mistakes.clean("search"):
        mistakes.add(
            "search.num_trials",
            f"fewer than the {len(search.first)} configurations of `first`",
            search.num_trials,
        )
    if search.sampler == "list":
        if search.list_file is None:
            if mistakes.clean("search.list_file"):
                mistakes.add(
                    "search.list_file", 'is missing: sampler "list" reads its configurations from there'
                )
        else:
            try:
                read_list_file(Path(search.list_file), search.space)
            except WrongValueError as error:
                mistakes.add("search.list_file", str(error), search.list_file)
    elif "search.list_file" in given and mistakes.clean("search.list_file"):
        mistakes.add(
            "search.list_file", f'is for sampler "list"; the sampler is "{search.sampler}"', search.list_file
        )
    if (
        "search.optuna_sampler" in given
        and search.sampler != "optuna"
        and mistakes.clean("search.optuna_sampler")
    ):
        mistakes.add(
            "search.optuna_sampler",
            f'is for sampler "optuna"; the sampler is "{search.sampler}"',
            search.optuna_sampler,
        )
    if (
        search.sampler == "optuna"
        and search.space
        and all(isinstance(d, Constant) for d in search.space.values())
    ):
        mistakes.add("search.space", "holds only constants: there is nothing for Optuna to choose")


def _check_command(spec: ExperimentSpec, mistakes: Mistakes, environ: Mapping[str, str]) -> None:
    cwd = Path(spec.trial.cwd)
    if not mistakes.clean("trial.cwd"):
        return
    if not is_folder(cwd):
        mistakes.add("trial.cwd", "no such folder", spec.trial.cwd)
        return
    wrap, command = spec.launcher.wrap, spec.trial.command
    path = {"PATH": _path_of_ranks(spec, environ)}
    if wrap and mistakes.clean("launcher.wrap"):
        # The command is looked for inside the container, where we cannot look.
        if find_program(wrap[0], cwd=cwd, environ=path) is None:
            mistakes.add("launcher.wrap", f'"{wrap[0]}" is not on PATH', list(wrap))
        return
    if not command or not mistakes.clean("trial.command", "trial.env"):
        return
    program = command[0]
    if find_program(program, cwd=cwd, environ=path) is None:
        where = f"is not there (looked from {cwd})" if "/" in program else "is not on PATH"
        mistakes.add("trial.command", f'program "{program}" {where}, or may not be executed', list(command))
        return
    script = next((word for word in command[1:] if not word.startswith("-")), None)
    runs_script = Path(program).name.startswith(("python", "bash", "sh")) and script is not None
    if runs_script and script == command[1] and not is_file(Path(cwd, script)):
        mistakes.add("trial.command", f'script "{script}" is not in {cwd}', list(command))


def _path_of_ranks(spec: ExperimentSpec, environ: Mapping[str, str]) -> str:
    """PATH as a rank will have it: the folder of this virtual environment comes first unless PATH names it already."""
    path = spec.trial.env.get("PATH", environ.get("PATH", ""))
    own = str(Path(sys.executable).parent)  # not resolved: that would leave the virtual environment
    if sys.prefix == sys.base_prefix or own in path.split(os.pathsep):
        return path
    return os.pathsep.join(filter(None, (own, path)))
