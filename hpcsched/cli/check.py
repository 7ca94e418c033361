"""`hpcsched check`: what an experiment file would run, here and now. Starts no trial."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hpcsched.config.spec import ExperimentSpec
    from hpcsched.launch.allocation import Allocation
    from hpcsched.launch.probe import Probed
    from hpcsched.launchspec import LaunchNode
    from hpcsched.topology.machine import Machine


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
    deadline: Annotated[str | None, typer.Option(help="In place of the file's deadline.")] = None,
    launcher: Annotated[str | None, typer.Option(help="In place of the file's: auto, local or srun.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Print what an experiment file would run: atoms, sizes, ranks, commands, deadline, rungs, one configuration.

    Exit code 0 when it could be run here, 2 with every mistake that was found otherwise. Starts no trial; inside a Slurm
    allocation one short step a node reads the machine.
    """
    from hpcsched.config.load import load_experiment
    from hpcsched.launch.allocation import read_allocation
    from hpcsched.launch.command import run_command
    from hpcsched.launch.probe import step_gpus_of

    spec = load_experiment(
        file, overrides={"experiment.deadline": deadline, "launcher.kind": launcher}, simulate=False
    )
    environ = dict(os.environ)
    allocation = None
    if spec.launcher.kind != "local":
        allocation = read_allocation(environ, run_command, hostname=socket.gethostname())
    probed = read_machine(spec, allocation, environ)
    step_gpus = None if allocation is None else step_gpus_of(allocation, probed)
    plan = plan_of(
        spec, allocation, probed.machine, now=time.time(), warnings=probed.warnings, step_gpus=step_gpus
    )
    typer.echo(json.dumps(plan, indent=2, default=str) if as_json else text_of(plan))


def read_machine(spec: ExperimentSpec, allocation: Allocation | None, environ: Mapping[str, str]) -> Probed:
    """The machine as a run would see it. Raises AllocationError."""
    from hpcsched.errors import AllocationError
    from hpcsched.launch.command import run_command
    from hpcsched.launch.probe import local_machine, probe_machine
    from hpcsched.topology.assemble import MachineOptions

    options = MachineOptions(
        gpus_per_atom=spec.atoms.gpus_per_atom,
        gpus_per_node=spec.atoms.gpus_per_node,
        driver_cores=spec.driver.driver_cores,
        driver_memory_mb=spec.driver.driver_memory_mb,
        interface=spec.launcher.interface,
    )
    if allocation is not None:
        return probe_machine(allocation, options, environ, run_command, srun_args=spec.launcher.srun_args)
    if spec.launcher.kind == "srun":
        raise AllocationError(
            f'{spec.file}: launcher.kind = "srun" needs a Slurm job, and this is none (SLURM_JOB_ID is not set). '
            "Run check inside salloc or sbatch, or take --launcher local"
        )
    return local_machine(spec.atoms.num_atoms, options, environ)


def plan_of(
    spec: ExperimentSpec,
    allocation: Allocation | None,
    machine: Machine,
    *,
    now: float,
    warnings: tuple[str, ...] = (),
    step_gpus: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Everything that `check` prints, as one JSON-like object. Durations in seconds, moments in UNIX seconds.

    `step_gpus`: how many GPUs a step was shown on each node."""
    from hpcsched.config.settings import core_settings
    from hpcsched.core.sizes import Sizes
    from hpcsched.search.samplers import make_sampler

    settings = core_settings(spec)
    sizes = Sizes.within(settings.multiple_of, settings.max_trial_atoms, machine.max_trial_atoms)
    num_atoms = len(machine.atoms)
    allowed = [size for size in range(1, num_atoms + 1) if sizes.allows(size)]
    sampler = make_sampler(spec, seed=spec.experiment.seed)
    policy = spec.scheduler.policy
    return {
        "experiment": spec.experiment.name,
        "file": str(spec.file),
        "metric": spec.experiment.metric,
        "mode": spec.experiment.mode.value,
        "metric_window": spec.experiment.metric_window,
        "command": list(spec.launcher.wrap + spec.trial.command),
        "cwd": spec.trial.cwd,
        "launcher": "local" if allocation is None else "srun",
        "machine": {
            "source": machine.source,
            "nodes": [
                {
                    "node": node.name,
                    "gpus": len(node.gpus),
                    "cores": len(node.cores),
                    "memory_mb": node.memory_mb,
                }
                for node in machine.nodes
            ],
            "num_atoms": num_atoms,
            "gpus_per_atom": machine.gpus_per_atom,
            "warnings": list(warnings),
        },
        "sizes": allowed,
        "world_sizes": [size * machine.gpus_per_atom for size in allowed],
        "launches": launches_of(
            spec,
            machine,
            sizes=sorted({allowed[0], allowed[-1]}),
            allocation=allocation,
            step_gpus=step_gpus,
        ),
        "deadline": deadline_of(spec, allocation, now),
        "policy": {
            "name": str(policy.__struct_config__.tag),
            "options": {name: getattr(policy, name) for name in policy.__struct_fields__},
            "reduction_factor": settings.reduction_factor,
        },
        "rungs": rungs_of(spec),
        "max_iterations": settings.max_iterations,
        "search": {
            "sampler": spec.search.sampler,
            "num_trials": settings.num_trials,
            "first": len(spec.search.first),
            "example": sampler.ask(0),
            "warning": nobody_goes_on(spec, settings.num_trials),
        },
    }


def nobody_goes_on(spec: ExperimentSpec, num_trials: int | None) -> str:
    """Why no trial would come beyond the first rung, or "": ASHA promotes one of every eta, and of fewer none."""
    from hpcsched.core.settings import AshaSettings, RasdaSettings

    policy, eta = spec.scheduler.policy, spec.scheduler.reduction_factor
    waits = isinstance(policy, RasdaSettings) or (isinstance(policy, AshaSettings) and not policy.stopping)
    rungs = rungs_of(spec)
    if not waits or not rungs or num_trials is None or num_trials >= eta:
        return ""
    name = str(policy.__struct_config__.tag)
    return (
        f"{name} promotes one of {eta} (reduction_factor): of {num_trials} nobody is trained beyond iteration {rungs[0]}, "
        f"and the run ends there. Set num_trials to {eta} or more, or take a policy that uses the time, such as hypersched"
    )


def rungs_of(spec: ExperimentSpec) -> list[int]:
    """Iterations, below R, at which trials are compared; none where the policy compares nobody."""
    from hpcsched.core.rungs import milestones_of
    from hpcsched.core.settings import FifoSettings

    if isinstance(spec.scheduler.policy, FifoSettings):
        return []
    trial = spec.trial
    rungs = milestones_of(trial.grace_period, trial.max_iterations, spec.scheduler.reduction_factor)
    return [rung for rung in rungs if rung < trial.max_iterations]


def deadline_of(spec: ExperimentSpec, allocation: Allocation | None, now: float) -> dict[str, Any]:
    """When it would end if it began now: the earlier of the file's deadline and the job's end less the reserve."""
    from hpcsched.config.deadline import clock_time

    table = spec.experiment
    file_at = clock_time(table.deadline_at, now) if table.deadline_at is not None else None
    if table.deadline is not None:
        file_at = now + table.deadline
    ends_at = None if allocation is None else allocation.ends_at
    reserve_s = 10.0 if spec.timeouts.reserve is None else spec.timeouts.reserve
    job_at = None if ends_at is None or table.span == "chain" else ends_at - reserve_s
    at = min((moment for moment in (file_at, job_at) if moment is not None), default=None)
    return {
        "at": at,
        "in_s": None if at is None else at - now,
        "whose": "none" if at is None else "file" if at == file_at else "allocation",
        "allocation_ends_at": ends_at,
        "reserve_s": reserve_s if ends_at is not None else None,
        "span": table.span,
    }


def launches_of(
    spec: ExperimentSpec,
    machine: Machine,
    *,
    sizes: list[int],
    allocation: Allocation | None,
    step_gpus: Mapping[str, int] | None,
) -> list[dict[str, Any]]:
    """How a trial of each size would be started on an empty machine; RUN stands for the run folder."""
    from hpcsched.launchspec import LaunchNode
    from hpcsched.topology.machine import shares_of
    from hpcsched.topology.pool import Pool

    launches = []
    for size in sizes:
        placement = Pool(machine).find(size)
        if placement is None:
            continue
        nodes: list[LaunchNode] = []
        world_size = 0
        for share in shares_of(machine, placement):
            node = next(node for node in machine.nodes if node.name == share.node)
            nodes.append(
                LaunchNode(
                    share.node,
                    share.gpus,
                    share.cores,
                    share.memory_mb,
                    first_rank=world_size,
                    job_gpus=node.gpus,
                    gpu_cores=share.gpu_cores,
                )
            )
            world_size += len(share.gpus)
        launches.append(
            {
                "num_atoms": size,
                "world_size": world_size,
                "nodes": {node.node: list(node.gpus) for node in nodes},
                "commands": []
                if allocation is None
                else srun_commands(spec, machine, tuple(nodes), allocation, step_gpus),
            }
        )
    return launches


def srun_commands(
    spec: ExperimentSpec,
    machine: Machine,
    nodes: tuple[LaunchNode, ...],
    allocation: Allocation,
    step_gpus: Mapping[str, int] | None,
) -> list[list[str]]:
    """The very srun command lines of trial 0's first incarnation, the run folder aside."""
    from hpcsched.launch.stepping import stepping_of
    from hpcsched.launchspec import Channel, LaunchSpec

    launch = LaunchSpec(
        trial_id=0,
        incarnation=1,
        config={},
        command=spec.trial.command,
        cwd=spec.trial.cwd,
        env=spec.trial.env,
        nodes=nodes,
        master_addr=nodes[0].node,
        master_port=0,
        channel=Channel((), "", ""),
        run_dir="RUN",
        metric=spec.experiment.metric,
        mode=spec.experiment.mode.value,
        max_iterations=spec.trial.max_iterations,
        seed=spec.experiment.seed,
        restore=None,
        restore_iteration=0,
        mpi=spec.launcher.mpi,
    )
    stepping = stepping_of(allocation, machine, spec.launcher, step_gpus=step_gpus)
    return [list(step.argv) for step in stepping.trial(launch, "RUN/trials/0/1/launch.json")]


def text_of(plan: Mapping[str, Any]) -> str:
    """The plan for people."""
    import shlex

    from hpcsched.config.kinds import show

    machine, search, policy = plan["machine"], plan["search"], plan["policy"]
    window = plan["metric_window"]
    score = f"{plan['metric']}, {plan['mode']}" + (
        f", mean of the last {window} reports" if window > 1 else ""
    )
    rows: list[tuple[str, str]] = [
        ("experiment", f"{plan['experiment']}  ({plan['file']})"),
        ("score", score),
        ("command", f"{shlex.join(plan['command'])}  (in {plan['cwd']})"),
        ("launcher", plan["launcher"]),
        ("machine", machine["source"] or "this computer"),
    ]
    for node in machine["nodes"]:
        memory = "" if node["memory_mb"] is None else f", {node['memory_mb']} MB"
        rows.append(("", f"{node['node']}: {node['gpus']} GPUs, {node['cores']} cores{memory}"))
    rows += [("warning", warning) for warning in machine["warnings"]]
    rows += [
        (
            "atoms",
            f"{machine['num_atoms']} of {machine['gpus_per_atom']} GPU{'s' * (machine['gpus_per_atom'] > 1)} each",
        ),
        ("sizes", _series(plan["sizes"]) + " atoms a trial"),
        ("ranks", _series(plan["world_sizes"]) + " (one a GPU)"),
        ("deadline", _deadline_text(plan["deadline"])),
        ("policy", f"{policy['name']}, reduction factor {policy['reduction_factor']}"),
    ]
    rows += [
        ("", f"{name} = {show(value)}") for name, value in policy["options"].items() if value is not None
    ]
    first = f", {search['first']} given ones first" if search["first"] else ""
    num = (
        "as many as fit before the deadline"
        if search["num_trials"] is None
        else f"at most {search['num_trials']}"
    )
    if search["num_trials"] is None and search["sampler"] in ("grid", "list"):
        num = "all"
    rows += [
        ("rungs", f"{_series(plan['rungs']) or 'none'}; complete at {plan['max_iterations']} iterations"),
        ("trials", f"{num}, by sampler {search['sampler']}{first}"),
        *([("warning", search["warning"])] if search["warning"] else []),
        ("first config", show(search["example"], longest=400)),
    ]
    for launch in plan["launches"]:
        where = ", ".join(f"{node} GPU {','.join(gpus)}" for node, gpus in launch["nodes"].items())
        rows.append(
            (
                f"{launch['num_atoms']} atom{'s' * (launch['num_atoms'] > 1)}",
                f"world size {launch['world_size']}: {where}",
            )
        )
        rows += [("", shlex.join(argv)) for argv in launch["commands"]]
    return "\n".join(f"{label:<13} {text}".rstrip() for label, text in rows)


def _series(numbers: list[int]) -> str:
    """1, 2, 4, ..., 64 when there are many."""
    if len(numbers) <= 8:
        return ", ".join(map(str, numbers))
    return ", ".join(map(str, numbers[:4])) + f", ..., {numbers[-1]}"


def _deadline_text(deadline: Mapping[str, Any]) -> str:
    from hpcsched.config.duration import format_duration

    if deadline["at"] is None:
        return "none"
    moment = datetime.fromtimestamp(deadline["at"]).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    text = f"{format_duration(round(deadline['in_s']))} from now ({moment}), "
    text += "by the experiment file" if deadline["whose"] == "file" else "by the end of the Slurm job"
    if deadline["reserve_s"] is not None:
        text += f"; reserve {format_duration(deadline['reserve_s'])} before the job's end"
    return text
