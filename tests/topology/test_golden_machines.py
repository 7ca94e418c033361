"""For each fixture machine a table of requests, the placement expected, and its reason.

Machines are assembled from what they print, as a run does; the GPUs of a DGX, of PCIe boxes and of bridged pairs were not seen live.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.launch.nodelist import expand_nodelist
from hpcsched.launch.probe_node import gpus_of
from hpcsched.topology.assemble import MachineOptions, assemble
from hpcsched.topology.facts import GpuFact, NodeFacts
from hpcsched.topology.machine import AtomId, Machine, Placement, shares_of
from hpcsched.topology.pool import Pool
from hpcsched.topology.slurmtext import parse_show_job, parse_topology

FIXTURES = Path(__file__).parent / "fixtures"
SEEN = FIXTURES / "slurm-22.05"


def facts(node: str, num_gpus: int, *, links: str = "", address: tuple[str, str] = ("", "")) -> NodeFacts:
    return NodeFacts(
        node=node,
        gpus=tuple(GpuFact(index=str(i), visible=str(i)) for i in range(num_gpus)),
        gpu_rule="CUDA_VISIBLE_DEVICES",
        cores=tuple(range(4 * num_gpus)),
        num_cores_online=4 * num_gpus,
        topology_address=address[0],
        topology_pattern=address[1],
        links_text=(FIXTURES / "machines" / f"{links}.topo.txt").read_text() if links else "",
    )


def of(*nodes: NodeFacts, switches: str = "", gpus_per_atom: int = 1) -> Machine:
    named = parse_topology(switches, expand_nodelist) if switches else {}
    return assemble(nodes, MachineOptions(gpus_per_atom=gpus_per_atom), switches=named).machine


def heterogeneous() -> Machine:
    """What the test cluster printed of a job that holds 4, 4, 2 and 1 GPUs on four nodes under two leaves."""
    job = parse_show_job((SEEN / "show-job-unequal.txt").read_text(), expand_nodelist)
    grants = {grant.node: grant for grant in job.grants}
    return assemble(
        [facts(name, grant.gpus.num) for name, grant in grants.items() if grant.gpus is not None],
        MachineOptions(),
        grants=grants,
        switches=parse_topology((SEEN / "show-topology.txt").read_text(), expand_nodelist),
    ).machine


def mig() -> Machine:
    """A GPU cut into two instances and a whole one, named by UUIDs."""

    def smi(*args: str) -> str:
        return (
            "GPU 0: NVIDIA (UUID: GPU-aaa)\n  MIG 1g.10gb Device 0: (UUID: MIG-111)\n  MIG 1g.10gb Device 1: (UUID: MIG-222)\n"
            "GPU 1: NVIDIA (UUID: GPU-bbb)\n"
            if args[0] == "-L"
            else ""
        )

    gpus, rule = gpus_of({"CUDA_VISIBLE_DEVICES": "MIG-222,MIG-111,GPU-bbb"}, smi)
    node = NodeFacts("m1", tuple(gpus), rule, cores=tuple(range(6)), num_cores_online=6)
    return assemble([node], MachineOptions()).machine


BLOCKS = (
    "BlockName=b1 BlockIndex=0 Nodes=gpu-a[1-2]n[01-02] BlockSize=4\n"
    "BlockName=b2 BlockIndex=1 Nodes=gpu-b1n[01-04] BlockSize=4\n"
    "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=gpu-a[1-2]n[01-02],gpu-b1n[01-04] BlockSize=8\n"
)
PADDED = ("jwb0009", "jwb0010", "n1", "n01")
TREE = "switch.switch.node"

MACHINES = {
    "dgx": of(facts("d1", 8, links="dgx-h100")),
    "two dgx": of(
        facts("d1", 8, links="dgx-h100"), facts("d2", 8, links="dgx-h100"), switches="SwitchName=leaf Nodes=d[1-2]\n"
    ),
    "pcie": of(facts("p1", 8, links="pcie-two-sockets")),
    "pcie, pairs": of(facts("p1", 8, links="pcie-two-sockets"), gpus_per_atom=2),
    "bridges": of(facts("v1", 4, links="nvlink-bridges")),
    "four": of(facts("f1", 4, links="four-nvlink-old-driver")),
    "heterogeneous": heterogeneous(),
    "mig": mig(),
    "blocks": of(*(facts(name, 4) for name in expand_nodelist("gpu-a[1-2]n[01-02],gpu-b1n[01-04]")), switches=BLOCKS),
    "address": of(
        *(facts(f"n{i}", 4, address=(f"spine.leaf{(i + 1) // 2}.n{i}", TREE)) for i in range(1, 5))
    ),
    "padded": of(*(facts(name, 2) for name in PADDED), switches="SwitchName=a Nodes=jwb[0009-0010]\nSwitchName=b Nodes=n[1,01]\nSwitchName=top Switches=a,b\n"),
    "flat": of(facts("x1", 2), facts("x2", 2), facts("x3", 2)),
}  # fmt: skip

CASES = [
    # machine, GPUs taken already, atoms asked for, placement, because
    # one island of eight behind NVSwitch: aligned from the front, what is begun is filled first
    ("dgx", "", 1, "d1:0", "on one node, d1"),
    ("dgx", "", 2, "d1:0,1", "on one node, d1"),
    ("dgx", "d1:0", 1, "d1:1", "on one node, d1"),
    ("dgx", "d1:0", 2, "d1:2,3", "on one node, d1"),
    ("dgx", "d1:0", 4, "d1:4,5,6,7", "on one node, d1"),
    ("dgx", "", 8, "d1:0,1,2,3,4,5,6,7", "on one node, d1"),
    # two of them under one leaf: evenly over both where one is too small
    ("two dgx", "", 8, "d1:0,1,2,3,4,5,6,7", "on one node, d1"),
    ("two dgx", "d1:0", 8, "d2:0,1,2,3,4,5,6,7", "on one node, d2"),
    ("two dgx", "", 12, "d1:0,1,2,3,4,5 d2:0,1,2,3,4,5", "no node has 12 atoms free: on 2 nodes under leaf, the fewest"),
    ("two dgx", "d1:0,1,2", 10, "d1:3,4,5,6,7 d2:0,1,2,3,4", "no node has 10 atoms free: on 2 nodes under leaf, the fewest"),
    ("two dgx", "", 16, "d1:0,1,2,3,4,5,6,7 d2:0,1,2,3,4,5,6,7", "no node has 16 atoms free: on 2 nodes under leaf, the fewest"),
    # two sockets, pairs behind a switch: a pair, then a socket, then both
    ("pcie", "", 2, "p1:0,1", "inside one island of p1"),
    ("pcie", "p1:0", 1, "p1:1", "inside one island of p1"),
    ("pcie", "p1:0", 2, "p1:2,3", "inside one island of p1"),
    ("pcie", "p1:0", 4, "p1:4,5,6,7", "inside one island of p1"),
    ("pcie", "p1:0,4", 4, "p1:1,2,3,5", "on one node, p1, over 2 islands: no island has 4 atoms free"),
    ("pcie", "", 6, "p1:0,1,2,3,4,5", "on one node, p1, over 2 islands: no island has 6 atoms free"),
    # atoms of two GPUs are those pairs
    ("pcie, pairs", "", 1, "p1:0,1", "inside one island of p1"),
    ("pcie, pairs", "", 2, "p1:0,1,2,3", "inside one island of p1"),
    ("pcie, pairs", "p1:0,1", 2, "p1:4,5,6,7", "inside one island of p1"),
    ("pcie, pairs", "", 3, "p1:0,1,2,3,4,5", "on one node, p1, over 2 islands: no island has 3 atoms free"),
    # bridges join 0-2 and 1-3: a trial of two gets a bridged pair while there is one
    ("bridges", "", 1, "v1:0", "inside one island of v1"),
    ("bridges", "", 2, "v1:0,2", "inside one island of v1"),
    ("bridges", "v1:0", 1, "v1:2", "inside one island of v1"),
    ("bridges", "v1:0", 2, "v1:1,3", "inside one island of v1"),
    ("bridges", "", 3, "v1:0,2,1", "on one node, v1, over 2 islands: no island has 3 atoms free"),
    ("bridges", "v1:0,1", 2, "v1:2,3", "on one node, v1, over 2 islands: no island has 2 atoms free"),
    # NVLink between all four
    ("four", "", 2, "f1:0,1", "on one node, f1"),
    ("four", "f1:0", 2, "f1:2,3", "on one node, f1"),
    ("four", "f1:1", 2, "f1:2,3", "on one node, f1"),
    ("four", "", 4, "f1:0,1,2,3", "on one node, f1"),
    # 4, 4, 2 and 1 GPUs: the tightest node that fits; beyond the leaf as few nodes as do
    ("heterogeneous", "", 1, "n4:0", "on one node, n4"),
    ("heterogeneous", "", 2, "n3:0,1", "on one node, n3"),
    ("heterogeneous", "", 3, "n1:0,1,2", "on one node, n1"),
    ("heterogeneous", "", 4, "n1:0,1,2,3", "on one node, n1"),
    ("heterogeneous", "n1:0,1", 3, "n2:0,1,2", "on one node, n2"),
    ("heterogeneous", "", 6, "n1:0,1,2 n2:0,1,2", "no node has 6 atoms free: on 2 nodes under leaf1, the fewest"),
    ("heterogeneous", "", 8, "n1:0,1,2,3 n2:0,1,2,3", "no node has 8 atoms free: on 2 nodes under leaf1, the fewest"),
    ("heterogeneous", "n4:0", 1, "n3:0", "on one node, n3"),
    ("heterogeneous", "n1:0", 8, "n1:1,2,3 n2:0,1,2 n3:0,1", "no switch has 8 atoms free: on 3 nodes under 2 switches below spine, the fewest"),
    ("heterogeneous", "", 10, "n1:0,1,2,3 n2:0,1,2,3 n3:0,1", "no switch has 10 atoms free: on 3 nodes under 2 switches below spine, the fewest"),
    # two instances and a whole GPU: the lone one first, so that two stay together
    ("mig", "", 1, "m1:2", "on one node, m1"),
    ("mig", "", 2, "m1:0,1", "on one node, m1"),
    ("mig", "m1:0", 2, "m1:1,2", "on one node, m1"),
    ("mig", "", 3, "m1:0,1,2", "on one node, m1"),
    # block plugin: a block is the leaf, the aggregated block the switch above
    ("blocks", "", 4, "gpu-a1n01:0,1,2,3", "on one node, gpu-a1n01"),
    ("blocks", "", 8, "gpu-a1n01:0,1,2,3 gpu-a1n02:0,1,2,3", "no node has 8 atoms free: on 2 nodes under b1, the fewest"),
    ("blocks", "gpu-a1n01:0", 16, "gpu-b1n01:0,1,2,3 gpu-b1n02:0,1,2,3 gpu-b1n03:0,1,2,3 gpu-b1n04:0,1,2,3", "no node has 16 atoms free: on 4 nodes under b2, the fewest"),
    ("blocks", "", 16, "gpu-a1n01:0,1,2,3 gpu-a1n02:0,1,2,3 gpu-a2n01:0,1,2,3 gpu-a2n02:0,1,2,3", "no node has 16 atoms free: on 4 nodes under b1, the fewest"),
    ("blocks", "", 20, "gpu-a1n01:0,1,2,3 gpu-a1n02:0,1,2,3 gpu-a2n01:0,1,2,3 gpu-a2n02:0,1,2,3 gpu-b1n01:0,1,2,3", "no switch has 20 atoms free: on 5 nodes under 2 switches below b[1-2], the fewest"),
    ("blocks", "gpu-a1n01:0,1,2,3", 16, "gpu-b1n01:0,1,2,3 gpu-b1n02:0,1,2,3 gpu-b1n03:0,1,2,3 gpu-b1n04:0,1,2,3", "no node has 16 atoms free: on 4 nodes under b2, the fewest"),
    # no topology from scontrol, but SLURM_TOPOLOGY_ADDR of each step
    ("address", "", 6, "n1:0,1,2 n2:0,1,2", "no node has 6 atoms free: on 2 nodes under leaf1, the fewest"),
    ("address", "n1:0", 8, "n3:0,1,2,3 n4:0,1,2,3", "no node has 8 atoms free: on 2 nodes under leaf2, the fewest"),
    ("address", "n1:0 n3:0", 8, "n2:0,1,2,3 n4:0,1,2,3", "no switch has 8 atoms free: on 2 nodes under 2 switches below spine, the fewest"),
    ("address", "", 12, "n1:0,1,2,3 n2:0,1,2,3 n3:0,1,2,3", "no switch has 12 atoms free: on 3 nodes under 2 switches below spine, the fewest"),
    # jwb0009 and jwb0010, n1 and n01: names are names, in the job's order
    ("padded", "", 2, "jwb0009:0,1", "on one node, jwb0009"),
    ("padded", "", 3, "jwb0009:0,1 jwb0010:0", "no node has 3 atoms free: on 2 nodes under a, the fewest"),
    ("padded", "jwb0009:0", 4, "n1:0,1 n01:0,1", "no node has 4 atoms free: on 2 nodes under b, the fewest"),
    ("padded", "", 6, "jwb0009:0,1 jwb0010:0,1 n1:0,1", "no switch has 6 atoms free: on 3 nodes under 2 switches below top, the fewest"),
    # nothing known: every node one hop from every other
    ("flat", "", 2, "x1:0,1", "on one node, x1"),
    ("flat", "", 3, "x1:0,1 x2:0", "no node has 3 atoms free: on 2 nodes of this machine, the fewest"),
    ("flat", "x1:0", 4, "x2:0,1 x3:0,1", "no node has 4 atoms free: on 2 nodes of this machine, the fewest"),
]  # fmt: skip


def shown(machine: Machine, placement: Placement) -> str:
    return " ".join(f"{share.node}:{','.join(share.gpus)}" for share in shares_of(machine, placement))


def taken_atoms(machine: Machine, text: str) -> list[AtomId]:
    wanted = {
        (node, gpu)
        for part in text.split()
        for node, _, gpus in [part.partition(":")]
        for gpu in gpus.split(",")
    }
    return [atom.atom_id for atom in machine.atoms if any((atom.node, gpu) in wanted for gpu in atom.gpus)]


@pytest.mark.parametrize(("name", "taken", "size", "expected", "because"), CASES)
def test_a_request_gets_the_placement_of_the_table(
    name: str, taken: str, size: int, expected: str, because: str
) -> None:
    machine = MACHINES[name]
    pool = Pool(machine)
    pool.take(taken_atoms(machine, taken))
    found = pool.find(size)
    assert found is not None
    assert (shown(machine, found), found.because) == (expected, because)


def test_a_mig_instance_is_its_uuid_and_its_name_a_position() -> None:
    devices = MACHINES["mig"].nodes[0].devices
    assert [(device.gpu, device.uuid) for device in devices] == [
        ("0", "MIG-222"),
        ("1", "MIG-111"),
        ("2", "GPU-bbb"),
    ]


def test_what_cannot_be_read_is_said_once_and_the_machine_is_flat() -> None:
    """Three nodes that show neither links nor switches: one line for all, islands and switches empty, and placement goes on."""
    made = assemble([facts(f"x{i}", 2) for i in range(3)], MachineOptions())
    assert [warning for warning in made.warnings if "switch" in warning] == [
        "no switches are known: all nodes count as one hop apart"
    ]
    assert len(made.warnings) == len(set(made.warnings))
    assert all(node.switches == () and node.islands == () for node in made.machine.nodes)
    found = Pool(made.machine).find(5)
    assert found is not None and shown(made.machine, found) == "x0:0,1 x1:0,1 x2:0"
