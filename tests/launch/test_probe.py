"""The probe step: its command lines, what comes back, and the real cluster."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from hpcsched.errors import AllocationError, CommandError
from hpcsched.launch.allocation import Allocation, read_allocation
from hpcsched.launch.command import run_command
from hpcsched.launch.gpurequest import GpuRequest, gpu_requests
from hpcsched.launch.probe import (
    Probed,
    local_machine,
    probe_argv,
    probe_machine,
    read_machine,
    step_gpus_of,
)
from hpcsched.launch.probe_node import MARK, gpus_of, mig_instances, read_node, visible_ids
from hpcsched.topology.assemble import MachineOptions
from hpcsched.topology.facts import GpuFact, NodeFacts
from hpcsched.topology.machine import Machine
from hpcsched.topology.slurmtext import GpuGrant, NodeGrant
from tests.support.cluster import Cluster, cluster, confined_cluster, slurmbox  # noqa: F401 - fixtures
from tests.support.slurmsays import SlurmSays


def allocation(**gpus: int) -> Allocation:
    return Allocation(
        job_id="7",
        nodes=tuple(gpus),
        grants=tuple(NodeGrant(node, GpuGrant(num), 16, 16000) for node, num in gpus.items()),
    )


def answer(node: str, num_gpus: int) -> str:
    gpus = tuple(GpuFact(index=str(i), visible=str(i)) for i in range(num_gpus))
    fact = NodeFacts(
        node=node, gpus=gpus, gpu_rule="CUDA_VISIBLE_DEVICES", cores=(0, 1, 2, 3), num_cores_online=4
    )
    return MARK + msgspec.json.encode(fact).decode() + "\n"


def test_the_command_line_is_one_task_a_node_that_waits_for_nobody() -> None:
    assert probe_argv(("n1", "n2"), "--gres=gpu:4", python="/venv/bin/python", srun_args=("--account=x",)) == (
        "srun", "--overlap", "-N", "2", "-n", "2", "--ntasks-per-node=1", "-w", "n1,n2", "--gres=gpu:4", "--cpu-bind=none", "--mpi=none",
        "--wait=0", "--kill-on-bad-exit=1", "--export=ALL", "--unbuffered", "--input=none", "--account=x", "/venv/bin/python", "-P", "-m",
        "hpcsched.launch.probe_node",
    )  # fmt: skip


def test_a_step_is_not_asked_for_more_gpus_than_the_probe_was_shown() -> None:
    facts = msgspec.json.decode(answer("b", 1).removeprefix(MARK), type=NodeFacts)
    probed = Probed(machine=Machine(nodes=(), atoms=()), facts=(facts,), invented=False)
    assert step_gpus_of(allocation(a=1, b=3), probed) == {"a": 1, "b": 1}


def test_unequal_nodes_are_asked_one_by_one() -> None:
    assert gpu_requests(("a", "b", "c"), {"a": 4, "b": 4, "c": 4}) == (
        GpuRequest(("a", "b", "c"), "--gres=gpu:4"),
    )
    assert gpu_requests(("a", "b", "c", "d"), {"a": 4, "b": 2, "c": 3, "d": 2}) == (
        GpuRequest(("b", "d"), "--gres=gpu:2"),
        GpuRequest(("a",), "--gpus=4"),
        GpuRequest(("c",), "--gpus=3"),
    )
    assert gpu_requests(("a",), {"a": 4, "b": 2}) == (GpuRequest(("a",), "--gpus=4"),), (
        "the job counts, not the step"
    )
    assert gpu_requests(("a", "b"), {"a": 0, "b": 2}) == (GpuRequest(("b",), "--gpus=2"), GpuRequest(("a",), "--gres=none"))  # fmt: skip


def test_the_steps_environment_holds_none_of_the_jobs_request_nor_its_gpus() -> None:
    slurm = SlurmSays({"srun": "welcome to the cluster\n" + answer("n1", 2)})
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_GPUS": "11",
        "SLURM_NTASKS": "4",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
    }
    probed = probe_machine(allocation(n1=2), MachineOptions(), environ, slurm)
    assert len(probed.machine.atoms) == 2
    assert slurm.asked[0][1] == {"SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_dead_node_costs_only_itself() -> None:
    def srun(argv: tuple[str, ...]) -> str:
        nodes = argv[argv.index("-w") + 1].split(",")
        if "n2" in nodes:
            raise CommandError(
                argv, 1, "", "srun: error: Task launch failed on node n2\nsrun: Job step aborted\n"
            )
        return "".join(answer(node, 4) for node in nodes)

    probed = probe_machine(allocation(n1=4, n2=4, n3=4), MachineOptions(), {}, SlurmSays({"srun": srun}))
    assert [node.name for node in probed.machine.nodes] == ["n1", "n3"]
    assert (
        "n2 did not answer the probe step and is left out (srun: error: Task launch failed on node n2)"
        in probed.warnings
    )


def many(num: int) -> Allocation:
    return allocation(**{f"n{number}": 4 for number in range(num)})


def test_of_many_nodes_that_are_refused_as_a_whole_only_the_dead_ones_are_left_out() -> None:
    dead = {"n17", "n99"}

    def srun(argv: tuple[str, ...]) -> str:
        nodes = argv[argv.index("-w") + 1].split(",")
        if dead.intersection(nodes):
            raise CommandError(argv, 1, "", "srun: error: Requested node configuration is not available\n")
        return "".join(answer(node, 4) for node in nodes)

    slurm = SlurmSays({"srun": srun})
    probed = probe_machine(many(128), MachineOptions(), {}, slurm)
    assert len(probed.machine.nodes) == 126
    left_out = [warning.partition(" ")[0] for warning in probed.warnings if "is left out" in warning]
    assert left_out == ["n17", "n99"]
    assert len(slurm.asked) < 40


def test_where_each_node_answers_only_alone_and_in_another_way_none_is_left_out() -> None:
    """Slurm's word on their GPUs is wrong."""

    def srun(argv: tuple[str, ...]) -> str:
        if "--gpus=4" not in argv:
            raise CommandError(argv, 1, "", "srun: error: Invalid generic resource (gres) specification\n")
        return answer(argv[argv.index("-w") + 1], 2)

    slurm = SlurmSays({"srun": srun})
    probed = probe_machine(many(40), MachineOptions(), {}, slurm)
    assert len(probed.machine.nodes) == 40
    assert len(slurm.asked) <= 40 + 20


def test_a_step_that_takes_too_long_is_not_tried_again_on_halves_of_its_nodes() -> None:
    slurm = SlurmSays({"--gpus=4": answer("n0", 4), "srun": CommandError(("srun",), None, "", "")})
    probe_machine(many(2), MachineOptions(), {}, slurm)
    assert [argv[argv.index("-w") + 1] for argv, _ in slurm.asked][:2] == ["n0,n1", "n0"]
    assert "--gpus=4" in slurm.asked[1][0]


def test_no_answer_at_all_is_an_error_with_the_reason() -> None:
    slurm = SlurmSays({"srun": CommandError(("srun",), 1, "", "srun: error: Invalid account\n")})
    with pytest.raises(AllocationError, match=r"no node of job 7 answered.*n1: srun: error: Invalid account"):
        probe_machine(allocation(n1=4), MachineOptions(), {}, slurm)


def test_the_machine_is_read_once_a_job_and_kept_in_the_run_folder(tmp_path: Path) -> None:
    slurm = SlurmSays({"srun": answer("n1", 4)})
    file = tmp_path / "machine.json"
    first = probe_machine(allocation(n1=4), MachineOptions(), {}, slurm, cache=file)
    again = probe_machine(allocation(n1=4), MachineOptions(), {}, slurm, cache=file)
    assert first == again
    assert len(slurm.asked) == 1
    assert file.stat().st_mode & 0o777 == 0o600
    read = read_machine(file)
    assert read is not None and read.probed.machine == first.machine
    other = msgspec.structs.replace(allocation(n1=4), job_id="8")
    probe_machine(other, MachineOptions(), {}, slurm, cache=file)
    assert len(slurm.asked) == 2, "another job is another machine"
    requeued = msgspec.structs.replace(other, num_restarts=1)
    for _ in range(2):
        probe_machine(requeued, MachineOptions(), {}, slurm, cache=file)
    assert len(slurm.asked) == 3, "a requeued job keeps its id and gets other cores and GPUs"
    file.write_text("{")
    assert read_machine(file) is None


# ---- on the node


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0,1,3", ["0", "1", "3"]),
        ("GPU-8a5,MIG-1b2/3/0", ["GPU-8a5", "MIG-1b2/3/0"]),
        ("NoDevFiles", []),
        ("", []),
        ("0,-1,2", ["0"]),
        ("0, 1", ["0", "1"]),
    ],
)
def test_visible_devices_are_strings_and_end_where_cuda_ends(text: str, ids: list[str]) -> None:
    assert visible_ids(text) == ids


QUERY = """0, GPU-aaa, 00000000:07:00.0, 81559, 4, 550.1, NVIDIA H100 80GB HBM3
1, GPU-bbb, 00000000:0A:00.0, 81559, 1024, 550.1, NVIDIA H100 80GB HBM3
"""


def smi(*args: str) -> str:
    if args[0] == "-L":
        return "GPU 0: NVIDIA (UUID: GPU-aaa)\n  MIG 1g.10gb Device 0: (UUID: MIG-111)\n  MIG 1g.10gb Device 1: (UUID: MIG-222)\nGPU 1: NVIDIA (UUID: GPU-bbb)\n"
    return QUERY if args[0].startswith("--query-gpu") else ""


@pytest.mark.parametrize(
    ("environ", "uuids", "rule"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["GPU-aaa", "GPU-bbb"], "CUDA_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["GPU-bbb"], "CUDA_VISIBLE_DEVICES"),
        (
            {"CUDA_VISIBLE_DEVICES": "GPU-bbb,GPU-aaa"},
            ["GPU-aaa", "GPU-bbb"],
            "CUDA_VISIBLE_DEVICES",
        ),  # PCI order
        (
            {"CUDA_VISIBLE_DEVICES": "2,3"},
            ["GPU-aaa", "GPU-bbb"],
            "CUDA_VISIBLE_DEVICES",
        ),  # confined: the step's own are listed
        ({"CUDA_VISIBLE_DEVICES": "MIG-222"}, ["MIG-222"], "CUDA_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], "CUDA_VISIBLE_DEVICES"),
        ({"SLURM_STEP_GPUS": "1"}, ["GPU-bbb"], "SLURM_STEP_GPUS"),
        ({}, ["MIG-111", "MIG-222", "GPU-bbb"], "nvidia-smi"),
    ],
)
def test_gpus_of_a_step(environ: dict[str, str], uuids: list[str], rule: str) -> None:
    gpus, told = gpus_of(environ, smi)
    assert [gpu.uuid for gpu in gpus] == uuids
    assert [gpu.index for gpu in gpus] == [str(i) for i in range(len(uuids))]
    assert told == rule


def test_mig_instances_belong_to_their_gpu() -> None:
    assert mig_instances(smi) == {"GPU-aaa": ["MIG-111", "MIG-222"]}


def test_a_node_with_a_broken_nvidia_smi_still_answers(tmp_path: Path) -> None:
    broken = tmp_path / "nvidia-smi"
    broken.write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch' >&2\nexit 18\n"
    )
    broken.chmod(0o755)
    facts = read_node({"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,1"})
    assert [gpu.visible for gpu in facts.gpus] == ["0", "1"]
    assert any("Driver/library version mismatch" in warning for warning in facts.warnings)
    assert facts.cores == tuple(sorted(os.sched_getaffinity(0)))


def test_a_faked_gpu_node_is_read_with_links_and_memory(tmp_path: Path) -> None:
    matrix = "\\tGPU0\\tGPU1\\tCPU Affinity\\tNUMA Affinity\\nGPU0\\t X \\tNV18\\t0-1\\t0\\nGPU1\\tNV18\\t X \\t0-1\\t0\\n"
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        f"#!/bin/sh\ncase $1 in topo) printf '{matrix}';; -L) ;; *) cat <<'END'\n{QUERY}END\n;; esac\n"
    )
    fake.chmod(0o755)
    probed = local_machine(None, MachineOptions(), {"PATH": f"{tmp_path}:/bin:/usr/bin"})
    assert probed.invented is False
    assert [device.uuid for device in probed.machine.nodes[0].devices] == ["GPU-aaa", "GPU-bbb"]
    assert probed.machine.nodes[0].links == {"0-1": "NV18"}
    assert probed.facts[0].driver_version == "550.1"


def test_a_computer_without_gpus_plays_as_many_as_asked() -> None:
    probed = local_machine(3, MachineOptions(gpus_per_atom=2), {"PATH": "/nonexistent"})
    assert probed.invented is True
    assert [atom.gpus for atom in probed.machine.atoms] == [("0", "1"), ("2", "3"), ("4", "5")]
    assert probed.machine.nodes[0].address == "127.0.0.1"
    assert len(local_machine(None, MachineOptions(), {"PATH": "/nonexistent"}).machine.atoms) == 4


# ---- the real thing


@pytest.mark.slurm
def test_the_real_cluster_is_read_from_inside_salloc(cluster: Cluster) -> None:  # noqa: F811
    with cluster.allocation("-N4", "--gres=gpu:2", "-c2", "-t10") as job:
        found = read_allocation(job.env, run_command, hostname=socket.gethostname())
        assert found is not None
        assert found.job_id == job.job_id and found.nodes == ("n1", "n2", "n3", "n4")
        assert found.ends_at is not None and found.time_limit_s == 600
        probed = probe_machine(found, MachineOptions(), job.env, run_command, python=sys.executable)
    assert [len(node.gpus) for node in probed.machine.nodes] == [2, 2, 2, 2]
    assert [node.switches for node in probed.machine.nodes] == [("spine", "leaf1")] * 2 + [
        ("spine", "leaf2")
    ] * 2
    assert probed.machine.nodes[0].address == f"10.77.{cluster.instance}.11"
    assert all(node.cores and node.memory_mb == 16000 for node in probed.machine.nodes)


@pytest.mark.slurm
def test_a_real_job_that_asked_for_one_gpu_a_node_exclusively_holds_them_all(cluster: Cluster) -> None:  # noqa: F811
    with cluster.allocation("-N2", "--exclusive", "--gpus-per-node=1") as job:
        found = read_allocation(job.env, run_command)
        assert found is not None
        probed = probe_machine(found, MachineOptions(), job.env, run_command, python=sys.executable)
    assert [len(node.gpus) for node in probed.machine.nodes] == [4, 4]
    assert found.ends_at is None and not any("end of job" in warning for warning in found.warnings)


@pytest.mark.slurm
def test_confined_steps_see_the_jobs_gpus_and_cores(confined_cluster: Cluster) -> None:  # noqa: F811
    with confined_cluster.allocation("-N2", "--gres=gpu:3", "-c1") as job:
        found = read_allocation(job.env, run_command)
        assert found is not None
        probed = probe_machine(found, MachineOptions(), job.env, run_command, python=sys.executable)
    assert [len(node.gpus) for node in probed.machine.nodes] == [3, 3]
    assert all(len(node.cores) == 1 for node in probed.machine.nodes)


@pytest.mark.slurm
def test_real_nodes_of_unequal_gpu_count_are_all_found() -> None:
    with slurmbox(GPUS="4 4 2 3") as box, box.allocation("-N4", "--gpus=11", "-c1") as job:
        found = read_allocation(job.env, run_command)
        assert found is not None
        granted = [grant.gpus.num for grant in found.grants if grant.gpus is not None]
        probed = probe_machine(found, MachineOptions(), job.env, run_command, python=sys.executable)
    assert sum(granted) == 11 and len(set(granted)) > 1
    assert [len(node.gpus) for node in probed.machine.nodes] == granted


def test_the_probe_tells_a_network_that_lets_only_one_step_talk() -> None:
    """As on HPE Slingshot; the probe's step is one over several nodes."""
    assert read_node({"PATH": "", "SLINGSHOT_VNIS": "1371,1402"}).slingshot
    assert not read_node({"PATH": ""}).slingshot
