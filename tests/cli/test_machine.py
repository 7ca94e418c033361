"""`hpcsched machine`, as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hpcsched.launch.probe import Probed, write_machine
from hpcsched.topology.assemble import MachineOptions, assemble
from hpcsched.topology.facts import GpuFact, NodeFacts, NumaFact
from hpcsched.topology.slurmtext import GpuGrant, NodeGrant


def machine(*args: str, path: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "CUDA_"))} | {
        "PATH": path
    }
    command = [sys.executable, "-c", "from hpcsched.cli.main import main; main()", "machine", *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_json_names_nodes_gpus_cores_and_atoms() -> None:
    done = machine("--json", "--gpus-per-atom", "2")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["num_atoms"], shown["num_gpus"], shown["gpus_per_atom"], shown["invented"]) == (
        4,
        8,
        2,
        True,
    )
    (node,) = shown["nodes"]
    assert [gpu["gpu"] for gpu in node["gpus"]] == [str(i) for i in range(8)]
    assert [atom["gpus"] for atom in node["atoms"]] == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]
    assert set(node["cores"]) == os.sched_getaffinity(0)


def test_text_says_which_rule_gave_the_gpus() -> None:
    done = machine()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "1 node, 4 GPUs (invented), 4 atoms of 1; GPUs from invented: this computer shows no GPU"
    )


def test_a_folder_without_a_machine_is_wrong_input(tmp_path: Path) -> None:
    done = machine("--run-dir", str(tmp_path))
    assert done.returncode == 2
    assert "machine.json: missing" in done.stderr


def test_gpus_that_fill_no_atom_are_named() -> None:
    done = machine("--gpus-per-node", "3", "--gpus-per-atom", "2")
    assert done.returncode == 0, done.stderr
    assert "1 of 3 GPUs is not used: an atom has 2" in done.stdout


def test_what_a_run_read_is_shown_with_the_numa_nodes_that_ranks_take_their_memory_from(
    tmp_path: Path,
) -> None:
    """Two sockets with a GPU, four cores and 8000 MB each; the job's 12000 MB fit into both halves."""
    fact = NodeFacts(
        node="n1",
        gpus=(GpuFact("0", "0"), GpuFact("1", "1")),
        gpu_rule="CUDA_VISIBLE_DEVICES",
        cores=tuple(range(8)),
        num_cores_online=8,
        numa=(NumaFact(0, (0, 1, 2, 3), 8000), NumaFact(1, (4, 5, 6, 7), 8000)),
    )
    grants = {"n1": NodeGrant("n1", GpuGrant(2), 8, 12000)}
    made = assemble([fact], MachineOptions(), grants=grants)
    write_machine(tmp_path / "machine.json", Probed(made.machine, (fact,), False), "7")
    done = machine("--run-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "  atom +1: GPU 1; cores 4-7, 6000 MiB of NUMA 1\n" in done.stdout
    (node,) = json.loads(machine("--run-dir", str(tmp_path), "--json").stdout)["nodes"]
    assert [atom["memory_nodes"] for atom in node["atoms"]] == [[0], [1]]
