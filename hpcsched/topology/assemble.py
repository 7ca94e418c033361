"""From what the nodes said of themselves (and Slurm of them) to the Machine. Pure; what had to be guessed is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hpcsched.errors import AllocationError
from hpcsched.topology.facts import NodeFacts, is_mig
from hpcsched.topology.links import GpuLinks, islands_of, parse_topo_matrix
from hpcsched.topology.machine import Atom, AtomId, Device, Machine, Node, atoms_of_nodes
from hpcsched.topology.slurmtext import NodeGrant, parse_topology_address

_MIG = "a CUDA process sees only one of them, and NCCL joins them at most as an experiment, since 2.31"
"""NVIDIA's MIG User Guide, "Device Enumeration"; NCCL User Guide, "Using MIG instances"."""


class MachineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the experiment file says about the machine."""

    gpus_per_atom: int = 1
    gpus_per_node: int | None = None
    """[atoms] gpus_per_node: overrides what was found; where no node shows a GPU, so many are invented on each."""
    max_gpus: int | None = None
    """Use no more GPUs than these in all; None: all."""
    driver_cores: int = 0
    """Physical cores set aside on the driver's node."""
    driver_memory_mb: int = 0
    interface: str | None = None
    """[launcher] interface: nodes are reached by its address."""


class Assembled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine, and what a reader of `hpcsched machine` should know about how it came to be."""

    machine: Machine
    invented: bool
    """No node shows a real GPU: the GPUs are played by CPU cores."""
    warnings: tuple[str, ...] = ()


def assemble(
    facts: Sequence[NodeFacts],
    options: MachineOptions,
    *,
    grants: Mapping[str, NodeGrant] = {},
    switches: Mapping[str, tuple[str, ...]] = {},
    slurm_addresses: Mapping[str, str] = {},
    driver_node: str | None = None,
) -> Assembled:
    """The Machine of these nodes, in their order.

    `switches` and `slurm_addresses` are Slurm's word (`scontrol show topology`, NodeAddr); a node's own
    SLURM_TOPOLOGY_ADDR counts where the first has nothing. Raises AllocationError when no atom comes out.
    """
    warnings: list[str] = []
    nodes: list[Node] = []
    rules: list[str] = []
    left = options.max_gpus
    without_gpu = [grant.node for grant in grants.values() if grant.gpus is not None and grant.gpus.num == 0]
    is_invented = not any(fact.gpus for fact in facts)
    for fact in facts:
        warnings += [f"{fact.node}: {warning}" for warning in fact.warnings]
        grant = grants.get(fact.node)
        gpus, rule = _gpus(fact, grant, options.gpus_per_node, may_invent=is_invented)
        if grant is not None and grant.gpus is not None and grant.gpus.num > len(fact.gpus):
            warnings.append(_too_few(fact, grant.gpus.num, without_gpu))
        elif not fact.gpus and not is_invented:
            warnings.append(f"{fact.node}: a step is shown no GPU, and other nodes have some: it is not used")
        if left is not None:
            gpus = gpus[: max(0, left)]
            left -= len(gpus)
        rules.append(rule)
        links = parse_topo_matrix(fact.links_text) if fact.links_text else None
        if links is not None and links.num_gpus != len(fact.gpus):
            warnings.append(
                f"{fact.node}: nvidia-smi topo -m shows {links.num_gpus} GPUs and the job holds {len(fact.gpus)}: links are not used"
            )
            links = None
        cores = fact.cores
        if grant is not None and grant.num_cpus is not None and grant.num_cpus < len(cores):
            warnings.append(
                f"{fact.node}: the job was given {grant.num_cpus} CPUs, and its steps may run on {len(cores)} cores (this site does not confine them): all of them are used"
            )
        # The job's share where Slurm counts memory; else None: no limit is then asked of a step.
        memory_mb = None if grant is None else grant.memory_mb
        if fact.node == driver_node:
            cores = _without_driver(cores, fact, len(gpus) // options.gpus_per_atom, options.driver_cores)
            if memory_mb is not None:
                memory_mb = max(memory_mb - options.driver_memory_mb, memory_mb // 2)
        nodes.append(
            Node(
                name=fact.node,
                gpus=gpus,
                cores=cores,
                memory_mb=memory_mb,
                switches=switches.get(fact.node)
                or parse_topology_address(fact.topology_address, fact.topology_pattern),
                islands=_islands(links, gpus),
                address=_address(fact, options.interface, slurm_addresses.get(fact.node)),
                devices=_devices(fact, links, gpus, cores),
                core_groups=_groups(fact, cores),
                links={}
                if links is None
                else {
                    pair: str(link) for pair, link in links.links.items() if set(pair.split("-")) <= set(gpus)
                },
            )
        )
    mig = [node for node in nodes if any(is_mig(device.uuid) for device in node.devices)]
    if mig and options.gpus_per_atom > 1:
        raise AllocationError(
            f"[atoms] gpus_per_atom = {options.gpus_per_atom}, but {mig[0].name} shows MIG instances of GPUs ({_MIG}): set it to 1"
        )
    warnings += [f"{node.name}: GPUs are MIG instances ({_MIG}), so a trial has one atom" for node in mig]
    machine = atoms_of_nodes(tuple(nodes), options.gpus_per_atom, source=_source(facts, rules))
    if mig:
        machine = msgspec.structs.replace(machine, max_trial_atoms=1)
    machine = _with_memory_nodes(machine, facts, warnings)
    for fact, node in zip(facts, nodes, strict=True):
        num_atoms = sum(atom.node == node.name for atom in machine.atoms)
        if is_invented and num_atoms > len(node.cores):
            warnings.append(f"{node.name}: {num_atoms} atoms share {len(node.cores)} cores")
        elif not is_invented and len(fact.cores) < len(node.gpus):
            warnings.append(f"{node.name}: {too_few_cores(len(fact.cores), len(node.gpus))}")
    for node in nodes:
        unused = len(node.gpus) % options.gpus_per_atom
        if unused and len(node.gpus) > unused:
            warnings.append(
                f"{node.name}: {unused} of {len(node.gpus)} GPUs {'is' if unused == 1 else 'are'} not used: an atom has "
                f"{options.gpus_per_atom}"
            )
    if not machine.atoms:
        counts = ", ".join(f"{node.name}: {len(node.gpus)}" for node in nodes[:8])
        raise AllocationError(
            f"no atom of {options.gpus_per_atom} GPUs can be made ({counts}): ask the job for GPUs (--gres=gpu:N), lower "
            "[atoms] gpus_per_atom, or set [atoms] gpus_per_node to let CPU cores play GPUs"
            + "".join(f"\n  note: {warning}" for warning in _gathered(warnings))
        )
    if len({node.switches for node in nodes}) == 1 and not nodes[0].switches and len(nodes) > 1:
        warnings.append("no switches are known: all nodes count as one hop apart")
    return Assembled(
        machine=machine,
        invented=is_invented,
        warnings=_gathered(warnings),
    )


def _with_memory_nodes(machine: Machine, facts: Sequence[NodeFacts], warnings: list[str]) -> Machine:
    """Each atom's NUMA nodes, on nodes that have several and where Slurm counts memory.

    A bound rank cannot have the memory of other NUMA nodes, so an atom is bound only where the shares of all atoms fit into the NUMA
    nodes that their cores lie on; where they do not (all GPUs at one socket, say), nobody is, and it is said."""
    numa_of = {fact.node: [numa for numa in fact.numa if numa.memory_mb] for fact in facts}
    atoms_of: dict[str, list[Atom]] = {}
    for atom in machine.atoms:
        atoms_of.setdefault(atom.node, []).append(atom)
    bound: dict[AtomId, tuple[int, ...]] = {}
    for name, atoms in atoms_of.items():
        numas = numa_of.get(name, [])
        if len(numas) < 2 or any(atom.memory_mb is None or not atom.cores for atom in atoms):
            continue
        near = {
            atom.atom_id: {
                numa.numa: len(shared) / len(atom.cores)
                for numa in numas
                if (shared := set(numa.cores).intersection(atom.cores))
            }
            for atom in atoms
        }
        wanted = {
            numa.numa: sum((atom.memory_mb or 0) * near[atom.atom_id].get(numa.numa, 0.0) for atom in atoms)
            for numa in numas
        }
        short = [numa for numa in numas if wanted[numa.numa] > (numa.memory_mb or 0)]
        if short:
            warnings.append(
                f"{name}: memory is not bound to NUMA nodes: the atoms at node {short[0].numa} share "
                f"{wanted[short[0].numa]:.0f} MB and it has {short[0].memory_mb} MB"
            )
            continue
        for atom in atoms:
            shares = near[atom.atom_id]
            if abs(sum(shares.values()) - 1.0) < 1e-9:
                bound[atom.atom_id] = tuple(sorted(shares))
    return msgspec.structs.replace(
        machine,
        atoms=tuple(
            msgspec.structs.replace(atom, memory_nodes=bound.get(atom.atom_id, ())) for atom in machine.atoms
        ),
    )


def _gathered(warnings: Sequence[str]) -> tuple[str, ...]:
    """What several nodes say in the same words is said once, with their names."""
    by_text: dict[str, list[str]] = {}
    for warning in warnings:
        node, colon, text = warning.partition(": ")
        by_text.setdefault(text if colon else node, []).append(node if colon else "")
    return tuple(
        f"{', '.join(nodes[:4])}{f' and {len(nodes) - 4} more' if len(nodes) > 4 else ''}: {text}"
        if nodes[0]
        else text
        for text, nodes in by_text.items()
    )


def _gpus(
    fact: NodeFacts, grant: NodeGrant | None, wanted: int | None, *, may_invent: bool
) -> tuple[tuple[str, ...], str]:
    """(ids, where they come from). Beside nodes with GPUs none is invented: a trial over both could form no group."""
    ids = tuple(gpu.index for gpu in fact.gpus)
    if wanted is not None and (ids or may_invent):
        if not ids:
            return tuple(
                str(i) for i in range(wanted)
            ), "[atoms] gpus_per_node (invented: the node shows no GPU)"
        if wanted > len(ids):
            raise AllocationError(
                f"[atoms] gpus_per_node = {wanted}, but the job can use {len(ids)} GPUs on {fact.node} ({fact.gpu_rule}): "
                "lower it, or ask the job for more"
            )
        return ids[:wanted], "[atoms] gpus_per_node"
    if grant is not None and grant.gpus is not None and grant.gpus.num == len(ids) and ids:
        return ids, f"{fact.gpu_rule} of the probe step, as Slurm says the job holds"
    return ids, f"{fact.gpu_rule} of the probe step" if ids else "none"


def _too_few(fact: NodeFacts, granted: int, without_gpu: Sequence[str]) -> str:
    told = f"{fact.node}: Slurm says that the job holds {granted} GPUs, and a step is shown {len(fact.gpus)}: these are used"
    if without_gpu and not fact.gpus:
        # Seen on 22.05.8: --gres and --gpus are held against the least of the job's nodes, which is then 0.
        told += f" (in a job with nodes without GPUs Slurm may refuse every GPU step: leave them out with --exclude={','.join(without_gpu[:4])})"
    return told


def too_few_cores(num_cores: int, num_gpus: int) -> str:
    """What is said of a node with fewer cores for the job than GPUs: mostly nobody asked for cores, and got one."""
    return (
        f"the job has {num_cores} core{'s' * (num_cores != 1)} for {num_gpus} GPUs, which wait for them: ask for whole nodes "
        "(sbatch --exclusive --mem=0), or for more cores a node (--cpus-per-task)"
    )


def _source(facts: Sequence[NodeFacts], rules: Sequence[str]) -> str:
    by_rule: dict[str, list[str]] = {}
    for fact, rule in zip(facts, rules, strict=True):
        by_rule.setdefault(rule, []).append(fact.node)
    if len(by_rule) == 1:
        return next(iter(by_rule))
    return "; ".join(
        f"{rule} ({', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''})"
        for rule, nodes in by_rule.items()
    )


def _without_driver(
    cores: tuple[int, ...], fact: NodeFacts, num_atoms: int, driver_cores: int
) -> tuple[int, ...]:
    """Leave the driver its physical cores, the last ones, where every atom still gets one of its own."""
    groups = _groups(fact, cores) or tuple((core,) for core in cores)
    single = [core for core in cores if not any(core in group for group in groups)]
    units = sorted([*groups, *((core,) for core in single)])
    if driver_cores < 1 or len(units) - driver_cores < max(1, num_atoms):
        return cores
    away = {core for unit in units[-driver_cores:] for core in unit}
    return tuple(core for core in cores if core not in away)


def _groups(fact: NodeFacts, cores: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    usable = set(cores)
    cut = (tuple(core for core in group if core in usable) for group in fact.core_groups)
    return tuple(group for group in cut if len(group) > 1)


def _islands(links: GpuLinks | None, gpus: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    if links is None:
        return ()
    kept = set(gpus)
    islands = (tuple(str(gpu) for gpu in island if str(gpu) in kept) for island in islands_of(links))
    return tuple(island for island in islands if island)


def _devices(
    fact: NodeFacts, links: GpuLinks | None, gpus: tuple[str, ...], cores: tuple[int, ...]
) -> tuple[Device, ...]:
    usable = set(cores)
    by_index = {gpu.index: gpu for gpu in fact.gpus}
    devices: list[Device] = []
    for position, name in enumerate(gpus):
        gpu = by_index.get(name)
        if gpu is None:
            continue
        near = links.cores[position] if links is not None else None
        devices.append(
            Device(
                gpu=name,
                uuid=gpu.uuid,
                model=gpu.name,
                memory_mb=gpu.memory_mb,
                cores=tuple(core for core in near or () if core in usable),
                numa=links.numa[position] if links is not None else None,
                nics=links.nics[position] if links is not None else (),
            )
        )
    if not any(device.uuid or device.cores for device in devices):
        return ()
    return tuple(devices)


def _address(fact: NodeFacts, interface: str | None, slurm: str | None) -> str | None:
    if interface is not None:
        if interface in fact.addresses:
            return fact.addresses[interface]
        raise AllocationError(
            f"[launcher] interface = {interface!r}: {fact.node} has no such interface with an IPv4 address "
            f"(it has {', '.join(sorted(fact.addresses)) or 'none'})"
        )
    return slurm if slurm and slurm != fact.node else None
