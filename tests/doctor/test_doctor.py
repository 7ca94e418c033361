"""`hpcsched doctor`: what it finds here, on the test cluster, and behind its firewall."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hpcsched.doctor.allreduce import NUM_BYTES, in_words
from hpcsched.doctor.finding import Finding, Verdict, fail, line_of
from hpcsched.doctor.here import (
    look_at_folder,
    look_at_gpus,
    look_at_group,
    look_at_limits,
    look_at_ports,
)
from hpcsched.doctor.on_node import NodeSays
from hpcsched.doctor.peers import Peers, finding_of
from hpcsched.doctor.slurm import look_at_commands, look_at_cores
from hpcsched.errors import CommandError
from tests.support.cluster import Cluster, slurmbox
from tests.support.e2e import clean_environ

pytestmark = pytest.mark.timeout(300)


def doctor(folder: Path, environ: Mapping[str, str], *args: str) -> tuple[int, dict[str, Finding]]:
    done = subprocess.run(
        [sys.executable, "-m", "hpcsched", "doctor", "--json", "--run-dir", str(folder / "runs"), *args], env=dict(environ),
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd=folder,
    )  # fmt: skip
    assert done.stdout, done.stderr
    found = [
        Finding(one["what"], Verdict(one["verdict"]), one["said"], one.get("cure", ""))
        for one in json.loads(done.stdout)
    ]
    return done.returncode, {
        one.what.partition(" of ")[0] if one.what.startswith("file") else one.what: one for one in found
    }


def test_on_a_plain_machine_it_says_what_works_and_leaves_nothing(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, clean_environ())
    assert code == 0, found
    assert found["job"].verdict is Verdict.SKIP
    assert found["fsync"].verdict in (Verdict.OK, Verdict.WARN)
    assert "all-reduce" in found["group of 2 processes here"].said
    assert not list(tmp_path.iterdir())
    for one in found.values():
        assert one.cure or one.verdict is Verdict.OK, "whatever is not well comes with a cure"
        assert one.said


PRETENDS = """
import torch
from hpcsched.doctor import allreduce
allreduce.NUM_BYTES, allreduce.GPU_BACKEND = 1 << 10, "gloo"
allreduce.gpu_of = lambda local_rank: torch.device("cpu") if local_rank in {gpus} else None
allreduce.main()
"""
"""A rank whose GPU is played by the CPU, and NCCL by gloo."""


def test_two_ranks_of_which_one_has_a_gpu_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    python = tmp_path / "python"
    script = PRETENDS.format(gpus={1})
    python.write_text(f"#!/bin/sh\n[ $1 = -c ] && exit 0\nexec {sys.executable} -P -c '{script}'\n")
    python.chmod(0o755)
    (found,) = look_at_group(clean_environ(), str(python))
    assert found.verdict is Verdict.OK, found
    everybody, _, with_gpu = found.said.partition("; ")
    assert everybody.startswith("2 ranks by gloo formed in")
    assert with_gpu.startswith("1 rank by gloo formed in"), "by NCCL, that is"


def test_one_rank_has_no_bandwidth_and_several_that_of_the_bus() -> None:
    assert in_words("nccl", 1, 1.25, 0.0) == "1 rank by nccl formed in 1.2 s"
    assert (
        in_words("nccl", 4, 1.25, NUM_BYTES / 1e9) == "4 ranks by nccl formed in 1.2 s, all-reduce 1.50 GB/s"
    )


def test_gpus_that_do_not_reach_each_other_are_a_warning_with_the_pairs() -> None:
    assert finding_of(Peers(1)).verdict is Verdict.SKIP
    good = finding_of(Peers(2, (), {"0-1": 45.0, "1-0": 44.0}))
    assert good.verdict is Verdict.OK
    assert "all 2 pairs" in good.said
    assert "44.0 GB/s (1-0) to 45.0 GB/s (0-1)" in good.said
    bad = finding_of(Peers(4, ((0, 2), (2, 0)), {}))
    assert bad.verdict is Verdict.WARN
    assert "2 of 12 pairs" in bad.said
    assert "0-2, 2-0" in bad.said


def test_peers_are_looked_at_where_there_are_two_gpus(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A'; echo 'GPU 1: A'\n")
    tool.chmod(0o755)
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\necho '{"num_gpus":2,"without":[[0,1],[1,0]]}'\n""")
    python.chmod(0o755)
    _, found = look_at_gpus({"PATH": f"{tmp_path}:/bin:/usr/bin"}, str(python))
    assert (found.what, found.verdict) == ("P2P between GPUs", Verdict.WARN)
    python.write_text("#!/bin/sh\necho 'no CUDA' >&2\n")
    _, found = look_at_gpus({"PATH": f"{tmp_path}:/bin:/usr/bin"}, str(python))
    assert "no CUDA" in found.said


@pytest.fixture(scope="module")
def walled() -> Iterator[Cluster]:
    if shutil.which("nft") is None:
        pytest.skip("no nft: the firewall of the test cluster needs nftables")
    with slurmbox(FIREWALL="1", NODES="2", GPUS="2") as made:
        yield made


@pytest.mark.long  # it waits for connections that never come; that the driver moves is tested in tests/driver/test_where.py
@pytest.mark.slurm
def test_behind_a_firewall_it_says_that_the_driver_will_move(walled: Cluster, tmp_path: Path) -> None:
    with walled.allocation("--nodes", "2", "--gres=gpu:2", "--exclusive", "--time=10") as allocation:
        code, found = doctor(tmp_path, allocation.env)
        assert not allocation.steps()
    assert code == 0, found
    assert found["connect back"].verdict is Verdict.WARN
    assert "moves to the first node" in found["connect back"].cure
    assert found["step creation"].verdict is Verdict.OK
    assert found["overlap"].verdict is Verdict.OK
    assert found["GPU visibility"].said == "steps are shown 0,1 on all 2 node(s)"
    assert found["P2P between GPUs"].verdict is Verdict.SKIP, "the GPUs of the test cluster are invented"
    assert found["run folder on nodes"].verdict is Verdict.OK
    assert found["clocks"].verdict is Verdict.OK
    assert "2 ranks by gloo" in found["group between 2 nodes"].said
    assert "2 ranks by gloo" in found["group of 2 ranks on one node"].said
    assert "Slurm" in found and "slurm" in found["Slurm"].said


@pytest.mark.slurm
def test_a_dead_node_and_a_folder_that_nodes_do_not_see_are_named(walled: Cluster, tmp_path: Path) -> None:
    with walled.allocation(
        "--nodes", "2", "--gres=gpu:2", "--exclusive", "--no-kill", "--time=10"
    ) as allocation:
        walled.kill_slurmd("n2")
        try:
            code, found = doctor(tmp_path, allocation.env)
        finally:
            walled.restore_node("n2")
    assert code == 1
    assert "n2" in found["nodes"].said


def test_a_folder_that_cannot_be_written_is_a_failure() -> None:
    (finding,) = look_at_folder(Path("/proc/runs"))
    assert finding.verdict is Verdict.FAIL
    assert "--run-dir" in finding.cure


def test_a_folder_that_is_not_there_yet_is_tried_where_it_would_be(tmp_path: Path) -> None:
    found = list(look_at_folder(tmp_path / "not" / "yet"))
    assert str(tmp_path) in found[0].what
    assert all(one.verdict in (Verdict.OK, Verdict.WARN) for one in found)
    assert not list(tmp_path.iterdir())


def test_limits_and_ports_are_read() -> None:
    assert {one.what for one in look_at_limits()} == {"open files", "processes", "locked memory"}
    assert [one.what for one in look_at_ports()] == ["ports"]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("slurm 24.05.1", Verdict.OK), ("slurm 21.08.8", Verdict.WARN), ("slurm 19.05", Verdict.FAIL)],
)
def test_old_versions_of_slurm_are_told_apart(version: str, verdict: Verdict) -> None:
    found = list(
        look_at_commands({}, lambda argv, *, timeout_s, env: version if argv[0] == "srun" else "4 idle")
    )
    assert found[0].verdict is verdict


def test_a_controller_that_is_away_is_a_failure() -> None:
    def answer(argv: tuple[str, ...], *, timeout_s: float, env: Mapping[str, str]) -> str:
        if argv[0] == "sinfo":
            raise CommandError(
                argv, 1, "", "slurm_load_partitions: Unable to contact slurm controller (connect failure)"
            )
        return "slurm 22.05.8"

    assert [one.verdict for one in look_at_commands({}, answer)] == [Verdict.OK, Verdict.FAIL]  # type: ignore[arg-type]


def test_fewer_cores_than_gpus_are_a_warning_with_both_numbers_and_a_cure() -> None:
    def node(name: str, num_cores: int) -> NodeSays:
        return NodeSays(name, 0.0, "3.11", 0.1, True, "0,1", num_cores, 1024, "10.0.0.1", "")

    held = {"n1": 4, "n2": 4, "n3": None}
    bad = look_at_cores([node("n1", 64), node("n2", 1), node("n3", 1)], held)
    assert bad.verdict is Verdict.WARN
    assert "on n2 the job has 1 core for 4 GPUs" in bad.said
    assert "--exclusive" in bad.cure
    good = look_at_cores([node("n1", 64), node("n2", 32), node("n3", 1)], held)
    assert (good.verdict, good.said) == (Verdict.OK, "at least 8 a GPU")


def test_a_line_has_its_cure_below() -> None:
    assert line_of(fail("ports", "none", "look")) == "FAIL  ports: none\n      cure: look"
