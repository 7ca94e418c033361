"""Which srun commands bring up an incarnation. Pure: values in, argument lists out.

Binding "overlap" (Slurm 22.05 and later, the default): one task a node, the supervisor, sees *all* GPUs of the job on its
node and whatever cores the node has, and the placement decides; no step ever waits for another. Never ``-c`` or ``--exact``
here (an exact overlap step is confined to the first core), nor ``-m arbitrary``.
Binding "slurm": ``--exact`` asks for as many GPUs and cores as the placement holds there, and Slurm picks them.

Nodes share a step when the same options fit them all: the same GPU request (see `gpurequest`) and the same share of
memory, since ``--mem`` counts per node. Usually that is one step.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hpcsched.errors import LaunchError
from hpcsched.launch.gpurequest import gpu_requests
from hpcsched.launchspec import LaunchNode, LaunchSpec, SpareSpec

Binding = Literal["overlap", "slurm"]

NAME_PREFIX = "hpcsched-"


MOST_PARTS = 128
"""Of a heterogeneous step (slurm/src/common/slurm_protocol_defs.h, MAX_HET_JOB_COMPS)."""


class Step(msgspec.Struct, frozen=True):
    """One srun command. `name` tells the step apart in `scontrol show step`, also after a crash of the driver."""

    nodes: tuple[str, ...]
    name: str
    argv: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    """For an MPI trial the node of each task, in the order of ranks: the lines of SLURM_HOSTFILE (srun(1))."""


def run_mark(run_dir: str) -> str:
    """Marks all steps of one run folder; other experiments in the same job have other marks."""
    return f"{NAME_PREFIX}{zlib.crc32(run_dir.encode()):08x}."


def step_name(run_dir: str, trial_id: int, incarnation: int, number: int) -> str:
    return f"{run_mark(run_dir)}{trial_id}.{incarnation}.{number}"


def trial_steps(
    spec: LaunchSpec,
    *,
    binding: Binding,
    job_gpus: Mapping[str, int],
    launch_file: str,
    python: str,
    srun_args: Sequence[str] = (),
    srun: str = "srun",
) -> tuple[Step, ...]:
    """The steps of one incarnation, in the order of its nodes.

    `job_gpus`: how many GPUs the job holds on each of *its* nodes. `srun_args`: the site's, after ours, so that they win.
    """
    if spec.mpi != "none":
        return (_mpi_step(spec, binding, job_gpus, launch_file, python, srun_args, srun),)
    steps: list[Step] = []
    for nodes, resources in _groups(spec, binding, job_gpus):
        name = step_name(spec.run_dir, spec.trial_id, spec.incarnation, len(steps))
        module = (
            "hpcsched.launch.supervisor",
            launch_file,
            *(["--slurm-picks"] if binding == "slurm" else []),
        )
        argv = _supervisor_argv(srun, binding, nodes, resources, name, srun_args, python, module)
        steps.append(Step(nodes=nodes, name=name, argv=argv))
    return tuple(steps)


def _mpi_step(
    spec: LaunchSpec,
    binding: Binding,
    job_gpus: Mapping[str, int],
    launch_file: str,
    python: str,
    srun_args: Sequence[str],
    srun: str,
) -> Step:
    """The one step of an MPI trial: a task a rank, placed by a host file. All ranks must be of one step to find each other.

    No `-N` beside `-m arbitrary` (refused from 24.11 on) and no `-w`. Where the job holds different numbers of GPUs on the trial's nodes,
    which one request cannot say, the step is heterogeneous (srun(1), HETEROGENEOUS JOBS: parts with ":" between them): a part a node, in the
    order of ranks, still one step and one MPI world. Raises LaunchError where one step cannot serve all its nodes.
    """
    if binding != "overlap":
        raise LaunchError('an MPI trial is one step: it needs launcher.binding = "overlap"')
    requests = gpu_requests([node.node for node in spec.nodes], job_gpus)
    if len(requests) > 1:
        return _uneven_mpi_step(spec, job_gpus, launch_file, python, srun_args, srun)
    shares = [node.memory_mb for node in spec.nodes]
    most = None if None in shares else max(share for share in shares if share is not None)
    name = step_name(spec.run_dir, spec.trial_id, spec.incarnation, 0)
    argv = (
        srun, "--overlap", "-n", str(spec.world_size), "-m", "arbitrary", requests[0].option, _memory_option(most),
        "--cpu-bind=none", f"--mpi={spec.mpi}", "--wait=0", "--kill-on-bad-exit=1", "--export=ALL", "--unbuffered",
        f"--job-name={name}", *srun_args,
        python, "-P", "-m", "hpcsched.launch.mpi_task", launch_file,
    )  # fmt: skip
    return Step(
        nodes=tuple(node.node for node in spec.nodes),
        name=name,
        argv=argv,
        hosts=tuple(node.node for node in spec.nodes for _ in node.gpus),
    )


def _uneven_mpi_step(
    spec: LaunchSpec,
    job_gpus: Mapping[str, int],
    launch_file: str,
    python: str,
    srun_args: Sequence[str],
    srun: str,
) -> Step:
    if len(spec.nodes) > MOST_PARTS:
        raise LaunchError(
            f"an MPI trial over {len(spec.nodes)} nodes on which the job holds different numbers of GPUs needs as many parts of a step, "
            f"and Slurm allows {MOST_PARTS}: let its placements be smaller ([atoms] max_trial_atoms)"
        )
    name = step_name(spec.run_dir, spec.trial_id, spec.incarnation, 0)
    argv: list[str] = [srun]
    for node in spec.nodes:
        if len(argv) > 1:
            argv.append(":")
        argv += [
            "--overlap", "-N", "1", "-n", str(len(node.gpus)), "-w", node.node, gpu_requests([node.node], job_gpus)[0].option,
            _memory_option(node.memory_mb), "--cpu-bind=none", f"--mpi={spec.mpi}", "--wait=0", "--kill-on-bad-exit=1", "--export=ALL",
            "--unbuffered", f"--job-name={name}", *srun_args,
            python, "-P", "-m", "hpcsched.launch.mpi_task", launch_file,
        ]  # fmt: skip
    return Step(nodes=tuple(node.node for node in spec.nodes), name=name, argv=tuple(argv))


def spare_step(
    spec: SpareSpec,
    *,
    job_gpus: Mapping[str, int],
    memory_mb: int | None,
    spare_file: str,
    python: str,
    srun_args: Sequence[str] = (),
    srun: str = "srun",
) -> Step:
    """The step of a spare. Whose atoms it will serve is not known yet, so `memory_mb` is that of all atoms of its
    node: the driver keeps its own share, but a leaking trial that was started warm can hurt its neighbours there."""
    name = step_name(spec.run_dir, spec.number, 0, 0)
    resources = (gpu_requests([spec.node], job_gpus)[0].option, _memory_option(memory_mb))
    module = ("hpcsched.launch.spare", spare_file)
    argv = _supervisor_argv(srun, "overlap", (spec.node,), resources, name, srun_args, python, module)
    return Step(nodes=(spec.node,), name=name, argv=argv)


def _supervisor_argv(
    srun: str,
    binding: Binding,
    nodes: tuple[str, ...],
    resources: tuple[str, ...],
    name: str,
    srun_args: Sequence[str],
    python: str,
    module: tuple[str, ...],
) -> tuple[str, ...]:
    num = str(len(nodes))
    return (
        srun,
        "--overlap" if binding == "overlap" else "--exact",
        "-N", num, "-n", num, "--ntasks-per-node=1", "-w", ",".join(nodes), *resources,
        "--cpu-bind=none", "--mpi=none", "--wait=0", "--kill-on-bad-exit=1", "--export=ALL", "--unbuffered",
        f"--job-name={name}", *srun_args,
        python, "-P", "-m", *module,
    )  # fmt: skip


def check_step(
    node: LaunchNode,
    *,
    job_gpus: Mapping[str, int],
    python: str,
    invented: bool = False,
    srun_args: Sequence[str] = (),
    srun: str = "srun",
) -> Step:
    """A step that looks at a node's GPUs and cores as a trial's step would see them, and ends."""
    resources = (gpu_requests([node.node], job_gpus)[0].option,)
    module = (
        "hpcsched.launch.checks",
        msgspec.json.encode(node).decode(),
        *(("--invented",) if invented else ()),
    )
    name = f"{NAME_PREFIX}check"
    argv = _supervisor_argv(srun, "overlap", (node.node,), resources, name, srun_args, python, module)
    return Step(nodes=(node.node,), name=name, argv=argv)


def helper_step(
    node: str, command: Sequence[str], *, name: str, srun_args: Sequence[str] = (), srun: str = "srun"
) -> Step:
    """A step that needs no GPU (staging, the driver itself on a node): beside whatever runs there."""
    argv = (
        srun, "--overlap", "-N", "1", "-n", "1", "-w", node, "--gres=none", "--cpu-bind=none", "--mpi=none", "--wait=0",
        "--export=ALL", "--unbuffered", f"--job-name={name}", *srun_args, *command,
    )  # fmt: skip
    return Step((node,), name, argv)


def _groups(
    spec: LaunchSpec, binding: Binding, job_gpus: Mapping[str, int]
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(nodes, options that ask for their resources), in the order of the nodes."""
    by_options: dict[tuple[str, ...], list[str]] = {}
    if binding == "overlap":
        gpu_option = {
            node: (request.option, number)
            for number, request in enumerate(gpu_requests([each.node for each in spec.nodes], job_gpus))
            for node in request.nodes
        }
        for node in spec.nodes:
            option, number = gpu_option[node.node]
            by_options.setdefault((option, _memory(node), str(number)), []).append(node.node)
        return [(tuple(nodes), options[:2]) for options, nodes in by_options.items()]
    for node in spec.nodes:
        options = (f"--gres=gpu:{len(node.gpus)}", _memory(node), "-c", str(max(1, len(node.cores))))
        by_options.setdefault(options, []).append(node.node)
    return [(tuple(nodes), options) for options, nodes in by_options.items()]


def _memory(node: LaunchNode) -> str:
    """`--mem`, MiB a node; 0 where the site does not count memory: all that the job has there."""
    return _memory_option(node.memory_mb)


def _memory_option(memory_mb: int | None) -> str:
    return f"--mem={0 if memory_mb is None else memory_mb}"
