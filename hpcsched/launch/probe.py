"""What machine is this? One short step a node in a Slurm allocation, or a look around on this computer.

The driver's own environment is no witness: in `salloc`'s shell no GPU variable exists, in a batch script they tell of the first
node only, and on a login node they tell nothing. So one task runs on every node of the job, with all that the job
holds there (`--overlap`: it waits for nobody), and prints what it sees. Nodes of unequal GPU count get one step per
count, for one `--gres` request over both is refused.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hpcsched.errors import AllocationError, CommandError
from hpcsched.launch.allocation import Allocation, RunCommand, reason_of
from hpcsched.launch.environment import srun_environment
from hpcsched.launch.gpurequest import gpu_requests
from hpcsched.launch.probe_node import MARK, VISIBLE, read_node
from hpcsched.topology.assemble import Assembled, MachineOptions, assemble
from hpcsched.topology.facts import NodeFacts
from hpcsched.topology.machine import Machine

PROBE_TIMEOUT_S = 90.0
ALONE_AT_MOST = 16
"""So many nodes are asked alone in vain, in all ways there are, when they did not answer among others."""
REFUSED_AT_MOST = 256
"""So many steps may be refused while it is found out by halves which nodes are why."""
REFUSED_FIRST = 20
"""As long as no node has answered at all, so many: one dead node among a million would have been found."""


class Probed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine, the facts it was made of, and what could not be read. This is what `machine.json` holds."""

    machine: Machine
    facts: tuple[NodeFacts, ...]
    invented: bool
    """No real GPU anywhere: CPU cores play GPUs (LaunchSpec.invented_gpus)."""
    warnings: tuple[str, ...] = ()


def probe_machine(
    allocation: Allocation,
    options: MachineOptions,
    environ: Mapping[str, str],
    run_command: RunCommand,
    *,
    python: str = sys.executable,
    srun_args: Sequence[str] = (),
    cache: Path | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> Probed:
    """Ask every node of the allocation what it is.

    `srun_args` are the site's ([launcher] srun_args). With `cache` (`RunFolder.machine`), facts of the same turn of the
    same job and nodes are read from there, and written to it. A node that does not answer is left out with a warning.
    Raises AllocationError when no node answers, or no atom can be made.
    """
    warnings = list(allocation.warnings)
    facts = _cached(cache, allocation)
    if facts is None:
        facts = _ask_nodes(allocation, environ, run_command, python, srun_args, timeout_s, warnings)
    by_node = {fact.node: fact for fact in facts}
    made = assemble(
        [by_node[node] for node in allocation.nodes if node in by_node],
        options,
        grants={grant.node: grant for grant in allocation.grants},
        switches=allocation.switches,
        slurm_addresses={fact.name: fact.address for fact in allocation.node_facts if fact.address},
        driver_node=allocation.driver_node,
    )
    probed = _probed(made, tuple(by_node[node] for node in allocation.nodes if node in by_node), warnings)
    if cache is not None:
        write_machine(cache, probed, allocation.job_id, allocation.num_restarts)
    return probed


def local_machine(
    num_atoms: int | None,
    options: MachineOptions,
    environ: Mapping[str, str],
    *,
    default_atoms: int = 4,
    cache: Path | None = None,
) -> Probed:
    """This computer as a machine of one node: its real GPUs, else `num_atoms * gpus_per_atom` invented ones.

    `num_atoms` None: all real GPUs, or `default_atoms` invented atoms. The node's name is the host's; it is reached by
    127.0.0.1. Memory is not shared out, and nothing is set aside for the driver (nobody enforces either here).
    """
    facts = msgspec.structs.replace(read_node(environ), node=socket.gethostname(), topology_address="")
    wanted = (num_atoms or default_atoms) * options.gpus_per_atom
    if not facts.gpus and options.gpus_per_node is None:
        options = msgspec.structs.replace(options, gpus_per_node=wanted)
    if facts.gpus and num_atoms is not None:
        if wanted > len(facts.gpus):
            raise AllocationError(
                f"[atoms] num_atoms = {num_atoms} of {options.gpus_per_atom} GPUs each, but this computer shows {len(facts.gpus)} GPUs ({facts.gpu_rule})"
            )
        options = msgspec.structs.replace(options, max_gpus=wanted)
    made = assemble([facts], options)
    node = msgspec.structs.replace(made.machine.nodes[0], address="127.0.0.1")
    source = "invented: this computer shows no GPU" if made.invented else made.machine.source
    machine = msgspec.structs.replace(made.machine, nodes=(node,), source=source)
    made = msgspec.structs.replace(made, machine=machine)
    probed = _probed(made, (facts,), [])
    if cache is not None:
        write_machine(cache, probed, "")
    return probed


def _probed(made: Assembled, facts: tuple[NodeFacts, ...], warnings: Sequence[str]) -> Probed:
    return Probed(made.machine, facts, made.invented, tuple(dict.fromkeys([*warnings, *made.warnings])))


def probe_argv(
    nodes: Sequence[str], gpus: str | None, *, python: str, srun_args: Sequence[str] = ()
) -> tuple[str, ...]:
    """One task on each of `nodes`. `gpus`: the option that asks for GPUs; None: none, Slurm then gives what it likes."""
    num = str(len(nodes))
    return (
        "srun", "--overlap", "-N", num, "-n", num, "--ntasks-per-node=1", "-w", ",".join(nodes),
        *(() if gpus is None else (gpus,)),
        "--cpu-bind=none", "--mpi=none", "--wait=0", "--kill-on-bad-exit=1", "--export=ALL", "--unbuffered", "--input=none",
        *srun_args, python, "-P", "-m", "hpcsched.launch.probe_node",
    )  # fmt: skip


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a helper step may inherit; see `srun_environment`."""
    return srun_environment(environ)


def _ask_nodes(
    allocation: Allocation,
    environ: Mapping[str, str],
    run_command: RunCommand,
    python: str,
    srun_args: Sequence[str],
    timeout_s: float,
    warnings: list[str],
) -> tuple[NodeFacts, ...]:
    # The batch script's own GPU variables tell of the first node, and a node without GPUs would hand them on.
    inherited = {name: value for name, value in srun_environment(environ).items() if name not in VISIBLE}
    env = inherited | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "SLURM_JOB_ID": allocation.job_id}
    answers: dict[str, NodeFacts] = {}
    refusals: dict[str, str] = {}
    alone: dict[str, str] = {}
    num_refused = 0

    def ask(nodes: Sequence[str], gpus: str | None) -> bool:
        """False: it took too long."""
        nonlocal num_refused
        in_time = True
        argv = probe_argv(nodes, gpus, python=python, srun_args=srun_args)
        try:
            text = run_command(argv, timeout_s=timeout_s, env=env)
        except CommandError as error:
            text = error.stdout
            reason = reason_of(error)
            in_time = error.returncode is not None
            num_refused += 1
            for node in nodes:
                (refusals if len(nodes) > 1 else alone).setdefault(node, reason)
        for fact in parse_answers(text):
            answers.setdefault(fact.node, fact)
        return in_time

    def ask_all(nodes: Sequence[str], gpus: str | None) -> None:
        """One dead node refuses the step to all: they are asked by halves then."""
        in_time = ask(nodes, gpus)
        left = [node for node in nodes if node not in answers]
        if len(left) < 2 or not in_time:
            return
        middle = len(left) // 2
        for half in (left[:middle], left[middle:]):
            if num_refused < (REFUSED_AT_MOST if answers else REFUSED_FIRST):
                ask_all(half, gpus)

    job_gpus = job_gpus_of(allocation)
    known = [node for node in allocation.nodes if job_gpus[node] is not None]
    unknown = [node for node in allocation.nodes if job_gpus[node] is None]
    for request in gpu_requests(known, {node: job_gpus[node] or 0 for node in known}):
        ask_all(request.nodes, request.option)
    if unknown:
        ask_all(unknown, None)
    # Slurm's word on a node's GPUs may be wrong.
    least = min((num for num in job_gpus.values() if num), default=1)
    in_vain = 0
    for node in allocation.nodes:
        if node in answers or in_vain == ALONE_AT_MOST:
            continue
        num = job_gpus[node]
        # Seen on 22.05.8, in a job whose first node holds 1 GPU and whose second holds 3: a step on the second may ask
        # for no more than 1, however it asks.
        options = (f"--gpus={num}", f"--gres=gpu:{least}", None) if num else (None,)
        for option in (*options, "--gres=none"):
            if node not in answers:
                ask([node], option)
        in_vain += node not in answers
    silent = [node for node in allocation.nodes if node not in answers]
    why = {node: alone.get(node) or refusals.get(node, "no answer") for node in silent}
    if not answers:
        raise AllocationError(
            f"no node of job {allocation.job_id} answered the probe step: "
            + "; ".join(f"{node}: {why[node]}" for node in silent[:4])
            + ". Try `srun --overlap -N1 -n1 hostname` in this shell."
        )
    warnings += [f"{node} did not answer the probe step and is left out ({why[node]})" for node in silent]
    return tuple(answers.values())


def job_gpus_of(allocation: Allocation) -> dict[str, int | None]:
    """How many GPUs the job holds on each node: Slurm's word on the job, else on the node; None: it says nothing."""
    granted = {grant.node: grant.gpus.num for grant in allocation.grants if grant.gpus is not None}
    has = {fact.name: fact.gpus.num for fact in allocation.node_facts}
    return {node: granted.get(node, has.get(node)) for node in allocation.nodes}


def step_gpus_of(allocation: Allocation, probed: Probed) -> dict[str, int]:
    """How many GPUs a step can be shown on each node: what the job holds there, or fewer where the probe was shown fewer."""
    told = job_gpus_of(allocation)
    num_gpus = {node.name: len(node.gpus) for node in probed.machine.nodes}
    num_gpus |= {node: num for node, num in told.items() if num is not None}
    shown = {fact.node: len(fact.gpus) for fact in probed.facts}
    return {node: min(num, shown.get(node) or num) for node, num in num_gpus.items()}


def parse_answers(text: str) -> list[NodeFacts]:
    """The probe's lines among whatever else was printed."""
    found: list[NodeFacts] = []
    for line in text.splitlines():
        _, mark, rest = line.partition(MARK)
        if mark:
            try:
                found.append(msgspec.json.decode(rest, type=NodeFacts))
            except msgspec.DecodeError:
                continue
    return found


class MachineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`machine.json`: what was probed, and in which turn of which job ("": outside of Slurm)."""

    job_id: str
    probed: Probed
    num_restarts: int = 0


def write_machine(file: Path, probed: Probed, job_id: str, num_restarts: int = 0) -> None:
    """Write `machine.json` by rename; readable by the owner only, as all of the run folder."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    written = MachineFile(job_id, probed, num_restarts)
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1))
    temporary.chmod(0o600)
    temporary.replace(file)


def read_machine(file: Path) -> MachineFile | None:
    """What stands in a `machine.json`; None when it is missing or another version's."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=MachineFile)
    except (OSError, msgspec.DecodeError):
        return None


def _cached(cache: Path | None, allocation: Allocation) -> tuple[NodeFacts, ...] | None:
    read = None if cache is None else read_machine(cache)
    if read is None or (read.job_id, read.num_restarts) != (allocation.job_id, allocation.num_restarts):
        return None
    facts = read.probed.facts
    return facts if {fact.node for fact in facts} >= set(allocation.nodes) else None
