"""Hints of a site in the environment of ranks."""

from __future__ import annotations

import msgspec

from hpcsched.launch.environment import rank_environment
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec

SPEC = LaunchSpec(
    trial_id=0, incarnation=1, config={}, command=("true",), cwd="/", env={}, nodes=(LaunchNode("n1", ("0",), (0,), None, 0, ("0",)),),
    master_addr="n1", master_port=20000, channel=Channel((), "", ""), run_dir="/", metric="accuracy", mode="max", max_iterations=1,
    seed=0, restore=None, restore_iteration=0,
)  # fmt: skip


def of(spec: LaunchSpec, **inherited: str) -> dict[str, str]:
    return rank_environment(spec, spec.nodes[0], 0, inherited=inherited, devices=None, num_cores=1)


def test_the_interface_is_told_to_nccl_and_gloo_unless_somebody_has_said_another_one() -> None:
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & of(SPEC).keys()
    spec = msgspec.structs.replace(SPEC, interface="hsn0")
    told = of(spec)
    assert (told["NCCL_SOCKET_IFNAME"], told["GLOO_SOCKET_IFNAME"]) == ("hsn0", "hsn0")
    assert of(spec, NCCL_SOCKET_IFNAME="ib0")["NCCL_SOCKET_IFNAME"] == "ib0"  # a module knows better
    mine = msgspec.structs.replace(spec, env={"GLOO_SOCKET_IFNAME": "eth1"})
    assert of(mine)["GLOO_SOCKET_IFNAME"] == "eth1"
