"""An invented machine: nodes of equally many atoms, one GPU an atom."""

from __future__ import annotations

from functools import lru_cache

from hpcsched.topology.machine import Machine, Node, atoms_of_nodes


@lru_cache(maxsize=16)
def simulated_machine(num_atoms: int, atoms_per_node: int = 4, nodes_per_switch: int = 16) -> Machine:
    """`num_atoms` atoms on as few nodes as hold them (the last may have fewer), leaf switches under one spine."""
    nodes = []
    for number in range(-(-num_atoms // atoms_per_node)):
        num_gpus = min(atoms_per_node, num_atoms - number * atoms_per_node)
        nodes.append(
            Node(
                name=f"node{number:04d}",
                gpus=tuple(str(gpu) for gpu in range(num_gpus)),
                cores=tuple(range(num_gpus)),
                switches=("spine", f"leaf{number // nodes_per_switch}"),
            )
        )
    return atoms_of_nodes(tuple(nodes), 1, source="simulated")
