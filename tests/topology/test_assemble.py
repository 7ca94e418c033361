"""From facts to atoms: GPUs, near cores, memory, the driver's share, and what is said when something is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.errors import AllocationError
from hpcsched.topology.assemble import MachineOptions, assemble
from hpcsched.topology.facts import GpuFact, NodeFacts, NumaFact
from hpcsched.topology.machine import (
    AtomId,
    Device,
    Machine,
    Node,
    Placement,
    atoms_of_nodes,
    cores_of_groups,
    shares_of,
)
from hpcsched.topology.slurmtext import GpuGrant, NodeGrant

MACHINES = Path(__file__).parent / "fixtures" / "machines"


def facts(
    node: str = "n1", num_gpus: int = 4, cores: tuple[int, ...] = tuple(range(16)), links: str = "", groups: tuple[tuple[int, ...], ...] = ()
) -> NodeFacts:  # fmt: skip
    return NodeFacts(
        node=node,
        gpus=tuple(GpuFact(index=str(i), visible=str(i), uuid=f"GPU-{node}-{i}") for i in range(num_gpus)),
        gpu_rule="CUDA_VISIBLE_DEVICES" if num_gpus else "none",
        cores=cores,
        num_cores_online=len(cores),
        core_groups=groups,
        addresses={"eth0": "10.0.0.1", "ib0": "10.1.0.1"},
        links_text=(MACHINES / f"{links}.topo.txt").read_text() if links else "",
    )


def grant(
    node: str, num_gpus: int, num_cpus: int = 16, memory_mb: int | None = 16000
) -> dict[str, NodeGrant]:
    return {node: NodeGrant(node, GpuGrant(num_gpus), num_cpus, memory_mb)}


def test_a_dgx_gives_atoms_with_the_cores_of_their_socket_and_whole_physical_cores() -> None:
    siblings = tuple((core, core + 112) for core in range(112))
    made = assemble(
        [facts(num_gpus=8, cores=tuple(range(224)), links="dgx-h100", groups=siblings)], MachineOptions()
    )
    first, last = made.machine.atoms[0], made.machine.atoms[7]
    assert first.cores == (*range(14), *range(112, 126))
    assert last.cores == (*range(98, 112), *range(210, 224))
    node = made.machine.nodes[0]
    assert node.islands == (tuple("01234567"),)
    assert node.links["0-7"] == "NV18"
    assert (node.devices[5].nics, node.devices[5].numa, node.devices[5].uuid) == (("mlx5_5",), 1, "GPU-n1-5")
    assert made.invented is False


def with_numa(fact: NodeFacts, *memory_mb: int) -> NodeFacts:
    """Its cores in equal parts on so many NUMA nodes."""
    part = len(fact.cores) // len(memory_mb)
    numa = tuple(
        NumaFact(number, fact.cores[number * part : (number + 1) * part], mb)
        for number, mb in enumerate(memory_mb)
    )
    return msgspec.structs.replace(fact, numa=numa)


@pytest.mark.parametrize(
    ("numa_mb", "granted_mb", "expected"),
    [
        ((8000, 8000), 16000, [(0,), (0,), (1,), (1,)]),
        ((8000, 8000), None, [()] * 4),  # Slurm does not count memory: a bound trial might need more than its socket has
        ((16000,), 16000, [()] * 4),  # one NUMA node
        ((8000, 0), 16000, [()] * 4),  # the other has no memory of its own
        ((4000, 12000), 16000, [()] * 4),  # the shares of two atoms do not fit on the first
    ],
)  # fmt: skip
def test_atoms_take_memory_from_their_cores_numa_nodes_where_all_shares_fit(
    numa_mb: tuple[int, ...], granted_mb: int | None, expected: list[tuple[int, ...]]
) -> None:
    made = assemble(
        [with_numa(facts(), *numa_mb)], MachineOptions(), grants=grant("n1", 4, memory_mb=granted_mb)
    )
    assert [atom.memory_nodes for atom in made.machine.atoms] == expected
    said = [warning for warning in made.warnings if "memory is not bound" in warning]
    assert said == (
        ["n1: memory is not bound to NUMA nodes: the atoms at node 0 share 8000 MB and it has 4000 MB"]
        if numa_mb == (4000, 12000)
        else []
    )


def test_a_trial_over_both_sockets_may_use_the_memory_of_both() -> None:
    made = assemble([with_numa(facts(), 8000, 8000)], MachineOptions(), grants=grant("n1", 4))
    atoms = [atom.atom_id for atom in made.machine.atoms]
    assert [share.memory_nodes for share in shares_of(made.machine, Placement((atoms[0],)))] == [(0,)]
    assert [share.memory_nodes for share in shares_of(made.machine, Placement((atoms[1], atoms[2])))] == [
        (0, 1)
    ]


def test_atoms_of_two_gpus_are_nvlink_pairs_also_when_those_are_no_neighbours() -> None:
    made = assemble([facts(links="nvlink-bridges")], MachineOptions(gpus_per_atom=2))
    assert [atom.gpus for atom in made.machine.atoms] == [("0", "2"), ("1", "3")]


def mig_instances(node: str) -> NodeFacts:
    gpus = tuple(
        GpuFact(index=str(i), visible=f"MIG-{node}-{i}", uuid=f"MIG-{node}-{i}", name="NVIDIA H100 MIG")
        for i in range(2)
    )
    return msgspec.structs.replace(facts(node), gpus=gpus)


def test_trials_on_mig_instances_have_one_atom_of_one_and_it_is_said_once() -> None:
    made = assemble([mig_instances("n1"), mig_instances("n2"), facts("n3")], MachineOptions())
    assert made.machine.max_trial_atoms == 1
    (said,) = [warning for warning in made.warnings if "MIG" in warning]
    assert said.startswith("n1, n2: GPUs are MIG instances (a CUDA process sees only one of them")
    with pytest.raises(AllocationError, match=r"\[atoms\] gpus_per_atom = 2, but n1 shows MIG.*set it to 1"):
        assemble([mig_instances("n1")], MachineOptions(gpus_per_atom=2))
    assert assemble([facts()], MachineOptions()).machine.max_trial_atoms is None


def test_gpus_that_fill_no_atom_stay_unused() -> None:
    made = assemble([facts(num_gpus=5)], MachineOptions(gpus_per_atom=2))
    assert [atom.gpus for atom in made.machine.atoms] == [("0", "1"), ("2", "3")]


def test_the_driver_gets_a_core_and_memory_on_its_own_node_only() -> None:
    nodes = [facts("n1"), facts("n2")]
    made = assemble(
        nodes,
        MachineOptions(driver_cores=2, driver_memory_mb=4000),
        grants=grant("n1", 4) | grant("n2", 4),
        driver_node="n2",
    )
    one, two = made.machine.nodes
    assert (len(one.cores), one.memory_mb) == (16, 16000)
    assert (two.cores, two.memory_mb) == (tuple(range(14)), 12000)
    assert made.machine.atoms[4].memory_mb == 3000


def test_the_driver_takes_no_core_when_the_atoms_would_go_without() -> None:
    made = assemble([facts(cores=(0, 1, 2, 3))], MachineOptions(driver_cores=1), driver_node="n1")
    assert made.machine.nodes[0].cores == (0, 1, 2, 3)


def test_fewer_cores_than_atoms_are_shared_and_it_is_said() -> None:
    made = assemble([facts(num_gpus=0, cores=(0, 1))], MachineOptions(gpus_per_node=4))
    assert [atom.cores for atom in made.machine.atoms] == [(0,), (1,), (0,), (1,)]
    assert "n1: 4 atoms share 2 cores" in made.warnings


@pytest.mark.parametrize("gpus_per_atom", [1, 4])
def test_fewer_cores_than_gpus_are_told_with_both_numbers_and_a_cure(gpus_per_atom: int) -> None:
    """As in a job that asked for GPUs alone."""
    made = assemble([facts(cores=(0,))], MachineOptions(gpus_per_atom=gpus_per_atom))
    (told,) = made.warnings
    assert told.startswith("n1: the job has 1 core for 4 GPUs")
    assert "--exclusive --mem=0" in told
    assert not assemble([facts(cores=(0, 1, 2, 3))], MachineOptions()).warnings


def test_invented_gpus_need_to_be_asked_for() -> None:
    with pytest.raises(AllocationError, match=r"no atom of 1 GPUs.*--gres=gpu:N.*gpus_per_node"):
        assemble([facts(num_gpus=0)], MachineOptions())
    made = assemble([facts(num_gpus=0)], MachineOptions(gpus_per_node=3))
    assert made.invented is True
    assert len(made.machine.atoms) == 3
    assert "invented" in made.machine.source


def test_beside_nodes_with_gpus_none_is_invented() -> None:
    """A trial over both could form no group: NCCL here, Gloo there."""
    made = assemble([facts("n1", 2), facts("n2", 0)], MachineOptions(gpus_per_node=2))
    assert [atom.node for atom in made.machine.atoms] == ["n1", "n1"]
    assert made.machine.nodes[1].gpus == ()
    assert not made.invented
    assert "n2: a step is shown no GPU, and other nodes have some: it is not used" in made.warnings


def test_more_gpus_a_node_than_there_are_is_refused_with_the_node() -> None:
    with pytest.raises(AllocationError, match=r"gpus_per_node = 4.*2 GPUs on n2"):
        assemble([facts("n1", 4), facts("n2", 2)], MachineOptions(gpus_per_node=4))


def test_the_interface_gives_the_address() -> None:
    made = assemble([facts()], MachineOptions(interface="ib0"), slurm_addresses={"n1": "10.0.0.1"})
    assert made.machine.nodes[0].address == "10.1.0.1"
    with pytest.raises(AllocationError, match=r"'ib7'.*eth0, ib0"):
        assemble([facts()], MachineOptions(interface="ib7"))


def test_slurm_gives_the_address_where_no_interface_is_named() -> None:
    made = assemble(
        [facts("n1"), facts("n2")], MachineOptions(), slurm_addresses={"n1": "10.0.0.1", "n2": "n2"}
    )
    assert [node.address for node in made.machine.nodes] == ["10.0.0.1", None]


def test_a_node_whose_gpus_steps_cannot_have_is_named_with_the_way_out() -> None:
    made = assemble(
        [facts("n1", 4), facts("n2", 0), facts("n3", 0)],
        MachineOptions(),
        grants=grant("n1", 4) | grant("n2", 4) | grant("n3", 0),
    )
    assert any("n2: Slurm says that the job holds 4 GPUs" in warning and "--exclude=n3" in warning for warning in made.warnings)  # fmt: skip


def test_what_many_nodes_say_is_said_once() -> None:
    nodes = [facts(f"n{i}", cores=(0, 1)) for i in range(6)]
    made = assemble(nodes, MachineOptions())
    assert any(
        told.startswith("n0, n1, n2, n3 and 2 more: the job has 2 cores for 4 GPUs") for told in made.warnings
    )
    assert "no switches are known: all nodes count as one hop apart" in made.warnings


def test_a_matrix_of_other_gpus_is_not_used() -> None:
    made = assemble([facts(num_gpus=2, links="dgx-h100")], MachineOptions())
    assert made.machine.nodes[0].islands == ()
    assert any("shows 8 GPUs and the job holds 2" in warning for warning in made.warnings)


def test_near_cores_are_left_when_the_job_holds_hardly_any_of_them() -> None:
    node = Node(
        name="n",
        gpus=("0", "1"),
        cores=tuple(range(9)),
        devices=(Device("0", cores=tuple(range(8))), Device("1", cores=(8,))),
    )
    assert cores_of_groups(node, [("0",), ("1",)]) == [(0, 1, 2, 3), (4, 5, 6, 7, 8)]


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    num_gpus = draw(st.integers(1, 8))
    gpus = tuple(str(i) for i in range(num_gpus))
    cores = tuple(draw(st.lists(st.integers(0, 40), unique=True, min_size=1, max_size=24).map(sorted)))
    half = tuple(core for core in cores if core < 20), tuple(core for core in cores if core >= 20)
    return Node(
        name="n",
        gpus=gpus,
        cores=cores,
        memory_mb=draw(st.none() | st.integers(1, 10**6)),
        devices=tuple(Device(gpu, cores=draw(st.sampled_from([*half, ()]))) for gpu in gpus),
        core_groups=tuple((i, i + 1) for i in range(0, 41, 2) if draw(st.booleans())),
    )


def two_sockets(gpus_per_atom: int) -> Machine:
    """8 GPUs, four a socket; 32 cores a socket, each of two threads that are numbered 64 apart."""
    near = [(*range(32), *range(64, 96)), (*range(32, 64), *range(96, 128))]
    node = Node(
        name="n",
        gpus=tuple("01234567"),
        cores=tuple(range(128)),
        devices=tuple(Device(str(gpu), cores=near[gpu // 4]) for gpu in range(8)),
        core_groups=tuple((core, core + 64) for core in range(64)),
    )
    return atoms_of_nodes((node,), gpus_per_atom)


@pytest.mark.parametrize(
    ("gpus_per_atom", "atoms"), [(1, [0, 4]), (1, [3, 4]), (1, range(8)), (2, [0]), (2, [1, 2]), (4, [0, 1])]
)
def test_each_gpu_of_a_trial_has_whole_physical_cores_of_its_own_socket(
    gpus_per_atom: int, atoms: Sequence[int]
) -> None:
    placement = Placement(tuple(AtomId(atom) for atom in atoms))
    (share,) = shares_of(two_sockets(gpus_per_atom), placement)
    assert len(share.gpus) == len(share.gpu_cores) == gpus_per_atom * len(atoms)
    for gpu, cores in zip(share.gpus, share.gpu_cores, strict=True):
        first = 8 * int(gpu)
        assert cores == (*range(first, first + 8), *range(first + 64, first + 72))


def test_gpus_of_one_atom_that_hang_at_two_sockets_share_its_cores_by_socket() -> None:
    node = Node(
        name="n",
        gpus=("0", "1"),
        cores=tuple(range(8)),
        devices=(Device("0", cores=(1, 3, 5, 7)), Device("1", cores=(0, 2, 4, 6))),
    )
    (share,) = shares_of(atoms_of_nodes((node,), 2), Placement((AtomId(0),)))
    assert share.gpu_cores == ((1, 3, 5, 7), (0, 2, 4, 6))
    assert share.cores == tuple(range(8))


@given(nodes(), st.integers(1, 4), st.data())
def test_cores_of_the_gpus_of_a_trial_are_their_atoms_and_disjoint_where_they_suffice(
    node: Node, gpus_per_atom: int, data: st.DataObject
) -> None:
    machine = atoms_of_nodes((node,), gpus_per_atom)
    if not machine.atoms:
        return
    atoms = data.draw(st.sets(st.sampled_from([atom.atom_id for atom in machine.atoms]), min_size=1))
    (share,) = shares_of(machine, Placement(tuple(atoms)))
    cores_of = dict(zip(share.gpus, share.gpu_cores, strict=True))
    for atom_id in atoms:
        atom = machine.atoms[atom_id]
        mine = [cores_of[gpu] for gpu in atom.gpus]
        units = [set(group) & set(atom.cores) for group in node.core_groups]
        units = [unit for unit in units if unit]
        num_units = len(units) + len(set(atom.cores).difference(*units))
        assert {core for cores in mine for core in cores} <= set(atom.cores)
        assert all(mine)
        if num_units >= len(atom.gpus):
            assert sum(map(len, mine)) == len(set().union(*mine)), "none is given to two"
            assert all(unit <= set(cores) or not unit & set(cores) for unit in units for cores in mine)
    assert set(share.cores) == {core for cores in share.gpu_cores for core in cores}


@given(nodes(), st.integers(1, 3))
def test_atoms_share_out_gpus_cores_and_memory_without_overlap(node: Node, gpus_per_atom: int) -> None:
    machine = atoms_of_nodes((node,), gpus_per_atom)
    atoms = machine.atoms
    assert len(atoms) == len(node.gpus) // gpus_per_atom
    assert [atom.atom_id for atom in atoms] == list(range(len(atoms)))
    gpus = [gpu for atom in atoms for gpu in atom.gpus]
    assert len(gpus) == len(set(gpus)) == len(atoms) * gpus_per_atom
    for atom in atoms:
        assert atom.cores and set(atom.cores) <= set(node.cores)
    if len(node.cores) >= len(atoms):
        cores = [core for atom in atoms for core in atom.cores]
        assert len(cores) == len(set(cores)), "no two atoms share a core while there are enough"
    if node.memory_mb is not None:
        assert sum(atom.memory_mb or 0 for atom in atoms) <= node.memory_mb
