"""From promised GPUs to what a step shows: numbers of the node, numbers relative to the step, UUIDs, nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.launch.devices import (
    MismatchError,
    check_cores,
    cores_of_ranks,
    map_devices,
    visible_devices,
)
from hpcsched.launchspec import LaunchNode
from hpcsched.topology.machine import share_evenly


def node(gpus: str, job_gpus: str = "0,1,2,3", cores: tuple[int, ...] = ()) -> LaunchNode:
    return LaunchNode("n1", tuple(gpus.split(",")), cores, None, 0, tuple(job_gpus.split(",")))


@pytest.mark.parametrize(
    ("shown", "gpus", "job_gpus", "devices"),
    [
        ("0,1,2,3", "2", "0,1,2,3", "2"),
        ("4,5,6,7", "0,3", "0,1,2,3", "4,7"),  # node numbers: the job holds the second half
        ("7,4,6,5", "0,3", "0,1,2,3", "4,7"),  # printed in another order: CUDA numbers by PCI order
        ("10,9", "0", "0,1", "9"),  # as numbers, not as text
        ("GPU-b,GPU-a", "1", "0,1", "GPU-a"),
        ("MIG-x,MIG-y", "0,1", "0,1", "MIG-x,MIG-y"),
        ("GPU-a,GPU-b", "GPU-b", "GPU-a,GPU-b", "GPU-b"),
        (None, "1,2", "0,1,2,3", "1,2"),
        ("0,1,2,3", "1", "0,1", "1"),  # some are left unused on purpose
    ],
)
def test_an_index_is_a_position_in_what_the_step_shows(
    shown: str | None, gpus: str, job_gpus: str, devices: str
) -> None:
    seen = None if shown is None else visible_devices({"CUDA_VISIBLE_DEVICES": shown})
    assert map_devices(node(gpus, job_gpus), seen) == tuple(devices.split(","))


def test_instances_of_mig_are_named_by_uuid_where_the_step_says_nothing_of_gpus() -> None:
    """CUDA numbers only the first that it finds."""
    mig = msgspec.structs.replace(node("1", "0,1"), uuids=("MIG-2222",))
    assert map_devices(mig, None) == ("MIG-2222",)
    assert map_devices(mig, ("MIG-1111", "MIG-2222")) == ("MIG-2222",)
    whole = msgspec.structs.replace(mig, uuids=("GPU-2222",))
    assert map_devices(whole, None) == ("1",)


@pytest.mark.parametrize("shown", ["", "NoDevFiles", "0,1,2", "-1"])
def test_fewer_devices_than_promised_are_a_mismatch_that_says_both(shown: str) -> None:
    with pytest.raises(MismatchError, match="holds 4 GPUs"):
        map_devices(node("0"), visible_devices({"CUDA_VISIBLE_DEVICES": shown}))


def test_where_slurm_picks_the_step_shows_exactly_the_trials_gpus() -> None:
    assert map_devices(node("2,3"), ("0", "1"), slurm_picks=True) == ("0", "1")
    with pytest.raises(MismatchError):
        map_devices(node("2,3"), ("0", "1", "2"), slurm_picks=True)


def test_a_core_that_may_not_be_used_is_named() -> None:
    assert check_cores(node("0", cores=(1, 2)), (0, 1, 2, 3)) == (1, 2)
    with pytest.raises(MismatchError, match="may only use 0,1; 2 cannot"):
        check_cores(node("0", cores=(1, 2)), (0, 1))


def test_a_rank_has_the_cores_of_its_gpu_unless_slurm_picked_them() -> None:
    promised = LaunchNode("n1", ("0", "5"), (0, 1, 8, 9), None, 0, (), gpu_cores=((0, 8), (1, 9)))
    assert cores_of_ranks(promised, (0, 1, 8, 9)) == [(0, 8), (1, 9)]
    threads = ((2, 66), (3, 67), (4, 68))
    picked = cores_of_ranks(promised, (2, 3, 66, 67), slurm_picks=True, core_groups=threads)
    assert picked == [(2, 66), (3, 67)], "those that the step shows, whole physical cores"


@given(cores=st.lists(st.integers(0, 255), unique=True, min_size=1), num_ranks=st.integers(1, 16))
def test_ranks_share_out_all_cores_and_overlap_only_when_there_are_too_few(
    cores: list[int], num_ranks: int
) -> None:
    shares = share_evenly(cores, (), num_ranks)
    assert all(shares)
    if len(cores) >= num_ranks:
        assert sorted(core for share in shares for core in share) == sorted(cores)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
