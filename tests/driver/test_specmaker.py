"""What ranks are told of where they run."""

from __future__ import annotations

from typing import Any, cast

from hpcsched.driver.specmaker import SpecMaker
from hpcsched.topology.machine import AtomId, Device, Node, Placement, atoms_of_nodes


def test_each_rank_is_told_its_gpu_and_the_cores_near_it() -> None:
    gpus = tuple("0123")
    near = {"0": (0, 2, 4, 6), "1": (0, 2, 4, 6), "2": (1, 3, 5, 7), "3": (1, 3, 5, 7)}
    devices = tuple(Device(gpu, uuid=f"GPU-{gpu}", cores=near[gpu]) for gpu in gpus)
    machine = atoms_of_nodes((Node("n1", gpus, tuple(range(8)), devices=devices),), 1)
    nothing = cast("Any", None)
    maker = SpecMaker(nothing, nothing, nothing, machine, nothing, nothing, local=False, invented_gpus=False)
    (node,) = maker.nodes_of(Placement((AtomId(1), AtomId(2))))
    assert (node.gpus, node.uuids, node.cores) == (("1", "2"), ("GPU-1", "GPU-2"), (1, 3, 4, 6))
    assert node.gpu_cores == ((4, 6), (1, 3))
