"""`hpcsched machine`: what was read of the machine, and what atoms come out of it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hpcsched.launch.allocation import Allocation
    from hpcsched.launch.probe import Probed
    from hpcsched.topology.machine import Node


def command(
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Print the machine that this run has read."),
    ] = None,
    gpus_per_atom: Annotated[int, typer.Option(min=1, help="GPUs that are handed out together.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="Use so many GPUs a node; where there are none, invent them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Print nodes, GPUs and their links, cores by GPU, switches and atoms, as read now (or by a run).

    Inside a Slurm allocation one short step runs on each node; elsewhere this computer is read.
    """
    from hpcsched.errors import RunFolderError
    from hpcsched.launch.allocation import read_allocation
    from hpcsched.launch.command import run_command
    from hpcsched.launch.probe import local_machine, probe_machine, read_machine
    from hpcsched.runfolder import RunFolder
    from hpcsched.topology.assemble import MachineOptions

    allocation = None
    if run_dir is not None:
        file = RunFolder(run_dir).machine
        read = read_machine(file)
        if read is None:
            raise RunFolderError(f"{file}: missing, or not the machine of a run of this version")
        probed = read.probed
    else:
        environ = dict(os.environ)
        options = MachineOptions(gpus_per_atom=gpus_per_atom, gpus_per_node=gpus_per_node)
        allocation = read_allocation(environ, run_command, hostname=socket.gethostname())
        if allocation is None:
            probed = local_machine(None, options, environ)
        else:
            probed = probe_machine(allocation, options, environ, run_command)
    shown = machine_object(probed, allocation)
    typer.echo(json.dumps(shown, indent=2) if as_json else "\n".join(machine_lines(shown)))


def machine_object(probed: Probed, allocation: Allocation | None) -> dict[str, Any]:
    """What `--json` prints."""
    machine = probed.machine
    facts = {fact.node: fact for fact in probed.facts}
    atoms: dict[str, list[dict[str, Any]]] = {}
    for atom in machine.atoms:
        atoms.setdefault(atom.node, []).append(
            {
                "atom_id": atom.atom_id,
                "gpus": list(atom.gpus),
                "cores": list(atom.cores),
                "memory_mb": atom.memory_mb,
                "memory_nodes": list(atom.memory_nodes),
            }
        )
    switches: dict[str, list[str]] = {}
    for node in machine.nodes:
        if node.switches:
            switches.setdefault("/".join(node.switches), []).append(node.name)

    def gpus_of(node: Node) -> Iterable[dict[str, Any]]:
        devices = {device.gpu: device for device in node.devices}
        seen = {gpu.index: gpu for gpu in facts[node.name].gpus} if node.name in facts else {}
        for gpu in node.gpus:
            device, fact = devices.get(gpu), seen.get(gpu)
            yield {
                "gpu": gpu,
                "visible": None if fact is None else fact.visible,
                "uuid": None if device is None else device.uuid,
                "model": None if device is None else device.model,
                "memory_mb": None if device is None else device.memory_mb,
                "cores": [] if device is None else list(device.cores),
                "numa": None if device is None else device.numa,
                "nics": [] if device is None else list(device.nics),
            }

    return {
        "job_id": None if allocation is None else allocation.job_id,
        "slurm": None
        if allocation is None or allocation.version is None
        else f"{allocation.version[0]}.{allocation.version[1]:02d}",
        "ends_at": None if allocation is None else allocation.ends_at,
        "no_kill": None if allocation is None else allocation.no_kill,
        "driver_node": None if allocation is None else allocation.driver_node,
        "source": machine.source,
        "invented": probed.invented,
        "gpus_per_atom": machine.gpus_per_atom,
        "num_atoms": len(machine.atoms),
        "num_gpus": sum(len(node.gpus) for node in machine.nodes),
        "switches": switches,
        "nodes": [
            {
                "node": node.name,
                "address": node.address,
                "switches": list(node.switches),
                "memory_mb": node.memory_mb,
                "cores": list(node.cores),
                "core_groups": [list(group) for group in node.core_groups],
                "numa": [
                    {"numa": numa.numa, "cores": list(numa.cores), "memory_mb": numa.memory_mb}
                    for numa in (facts[node.name].numa if node.name in facts else ())
                ],
                "gpus": list(gpus_of(node)),
                "links": node.links,
                "islands": [list(island) for island in node.islands],
                "atoms": atoms.get(node.name, []),
            }
            for node in machine.nodes
        ],
        "warnings": list(probed.warnings),
    }


def machine_lines(shown: dict[str, Any]) -> Iterable[str]:
    """The same for people. Nodes that are alike share a paragraph."""
    nodes = shown["nodes"]
    yield (
        f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {shown['num_gpus']} GPUs{' (invented)' if shown['invented'] else ''}, "
        f"{shown['num_atoms']} atoms of {shown['gpus_per_atom']}; GPUs from {shown['source']}"
    )
    if shown["job_id"] is not None:
        yield f"Slurm job {shown['job_id']}" + (f", Slurm {shown['slurm']}" if shown["slurm"] else "")
    for path, members in shown["switches"].items():
        yield f"switch {path}: {_some(members)}"
    alike: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        alike.setdefault("\n".join(_node_lines(node)), []).append(node)
    for text, members in alike.items():
        yield ""
        yield f"{_some([node['node'] for node in members])}:"
        yield text
    for warning in shown["warnings"]:
        yield f"note: {warning}"


def _node_lines(node: dict[str, Any]) -> Iterable[str]:
    memory = "not counted" if node["memory_mb"] is None else f"{node['memory_mb']} MiB"
    yield f"  cores {_ranges(node['cores'])}; memory of the job: {memory}"
    for gpu in node["gpus"]:
        known = [
            gpu["model"] or "",
            f"{gpu['memory_mb']} MiB" if gpu["memory_mb"] else "",
            f"near cores {_ranges(gpu['cores'])}" if gpu["cores"] else "",
            f"NUMA {gpu['numa']}" if gpu["numa"] is not None else "",
            f"NIC {', '.join(gpu['nics'])}" if gpu["nics"] else "",
        ]
        yield f"  GPU {gpu['gpu']}: {', '.join(filter(None, known)) or 'nothing more is known'}"
    if len(node["islands"]) > 1:
        yield "  islands: " + "; ".join(", ".join(island) for island in node["islands"])
    if node["links"]:
        kinds: dict[str, int] = {}
        for kind in node["links"].values():
            kinds[kind] = kinds.get(kind, 0) + 1
        yield "  links: " + ", ".join(f"{num} pairs by {kind}" for kind, num in kinds.items())
    for number, atom in enumerate(node["atoms"]):
        share = "" if atom["memory_mb"] is None else f", {atom['memory_mb']} MiB"
        share += f" of NUMA {_ranges(atom['memory_nodes'])}" if atom["memory_nodes"] else ""
        yield f"  atom +{number}: GPU {', '.join(atom['gpus'])}; cores {_ranges(atom['cores'])}{share}"


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:7])}, ... {names[-1]} ({len(names)})"


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"
