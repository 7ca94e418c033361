"""What `check` says of a Slurm job: the very srun commands, the earlier deadline, the reserve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcsched.cli.check import plan_of, text_of
from hpcsched.launch.allocation import Allocation
from hpcsched.topology.machine import Machine, Node, atoms_of_nodes
from tests.support.experiments import NOW, changed, load, write_experiment


def machine(*num_gpus: int, gpus_per_atom: int = 1) -> Machine:
    nodes = tuple(
        Node(f"n{number}", tuple(map(str, range(num))), tuple(range(4 * num)), memory_mb=1000 * num)
        for number, num in enumerate(num_gpus)
    )
    return atoms_of_nodes(nodes, gpus_per_atom, source="what the job asked for")


def allocation(*nodes: str, ends_at: float | None = None, version: tuple[int, int] = (24, 11)) -> Allocation:
    return Allocation(job_id="7", nodes=nodes, version=version, ends_at=ends_at)


def plan(folder: Path, *changes: tuple[str, str], of: Machine, job: Allocation | None) -> dict[str, Any]:
    return plan_of(load(write_experiment(folder, changed(*changes)), inside_job=True), job, of, now=NOW)


def test_the_srun_commands_are_those_of_the_launcher(tmp_path: Path) -> None:
    found = plan(tmp_path, of=machine(4, 4), job=allocation("n0", "n1"))
    one, all_atoms = found["launches"]
    assert one["commands"] == [
        [
            "srun", "--overlap", "-N", "1", "-n", "1", "--ntasks-per-node=1", "-w", "n0", "--gres=gpu:4", "--mem=1000",
            "--cpu-bind=none", "--mpi=none", "--wait=0", "--kill-on-bad-exit=1", "--export=ALL", "--unbuffered",
            one["commands"][0][17],
            sys.executable, "-P", "-m", "hpcsched.launch.supervisor", "RUN/trials/0/1/launch.json",
        ]
    ]  # fmt: skip
    assert one["commands"][0][17].startswith("--job-name=hpcsched-")
    assert all_atoms["world_size"] == 8
    assert all_atoms["nodes"] == {"n0": ["0", "1", "2", "3"], "n1": ["0", "1", "2", "3"]}
    assert all_atoms["commands"][0][:9] == [
        "srun",
        "--overlap",
        "-N",
        "2",
        "-n",
        "2",
        "--ntasks-per-node=1",
        "-w",
        "n0,n1",
    ]
    assert "srun --overlap -N 2 -n 2" in text_of(found)


def test_no_more_gpus_are_asked_for_than_the_probe_was_shown(tmp_path: Path) -> None:
    """Slurm says 3 on n1, a step there is shown 1 (22.05.8, a job whose first node holds 1): so ask the launcher and check."""
    spec = load(write_experiment(tmp_path, changed()), inside_job=True)
    found = plan_of(spec, allocation("n0", "n1"), machine(1, 3), now=NOW, step_gpus={"n0": 1, "n1": 1})
    assert "--gres=gpu:1" in found["launches"][0]["commands"][0]
    assert not any("gpu:3" in word or "gpus=3" in word for word in found["launches"][1]["commands"][0])


def test_an_old_slurm_or_the_slurm_binding_asks_for_exact_steps(tmp_path: Path) -> None:
    old = plan(tmp_path, of=machine(4), job=allocation("n0", version=(21, 8)))
    assert old["launches"][0]["commands"][0][1] == "--exact"
    asked = ("[scheduler]", '[launcher]\nbinding = "slurm"\n[scheduler]')
    new = plan(tmp_path, asked, of=machine(4), job=allocation("n0"))
    assert new["launches"][0]["commands"][0][-1] == "--slurm-picks"


@pytest.mark.parametrize(
    ("changes", "ends_in_s", "in_s", "whose"),
    [
        ([], None, 120.0, "file"),
        ([], 3600.0, 120.0, "file"),
        ([], 100.0, 90.0, "allocation"),
        ([('deadline = "2m"\n', "")], 3600.0, 3590.0, "allocation"),
        ([('deadline = "2m"\n', ""), ("[scheduler]", "[timeouts]\nreserve = 60\n[scheduler]")], 3600.0, 3540.0, "allocation"),
        ([('deadline = "2m"', 'deadline = "2h"\nspan = "chain"')], 3600.0, 7200.0, "file"),
        ([('deadline = "2m"\n', "")], None, None, "none"),
    ],
)  # fmt: skip
def test_the_deadline_is_the_earlier_of_the_files_and_the_jobs_end_less_the_reserve(
    changes: list[tuple[str, str]], ends_in_s: float | None, in_s: float | None, whose: str, tmp_path: Path
) -> None:
    job = allocation("n0", ends_at=None if ends_in_s is None else NOW + ends_in_s)
    found = plan(tmp_path, *changes, of=machine(4), job=job)
    assert (found["deadline"]["in_s"], found["deadline"]["whose"]) == (in_s, whose)
    assert "deadline" in text_of(found)


def test_sizes_and_ranks_follow_atoms_and_multiple_of(tmp_path: Path) -> None:
    wide = ("[scheduler]", "[atoms]\ngpus_per_atom = 2\nmultiple_of = 4\nmax_trial_atoms = 9\n[scheduler]")
    found = plan(tmp_path, wide, of=machine(8, 8, 8, gpus_per_atom=2), job=allocation("n0", "n1", "n2"))
    assert (found["sizes"], found["world_sizes"]) == ([1, 4, 8], [2, 8, 16])
    assert [launch["num_atoms"] for launch in found["launches"]] == [1, 8]


def test_on_a_machine_of_single_devices_trials_have_one_atom(tmp_path: Path) -> None:
    single = msgspec.structs.replace(machine(8), max_trial_atoms=1)
    found = plan(tmp_path, of=single, job=allocation("n0"))
    assert (found["sizes"], found["world_sizes"]) == ([1], [1])
    assert [launch["num_atoms"] for launch in found["launches"]] == [1]


def test_a_policy_that_compares_nobody_has_no_rungs(tmp_path: Path) -> None:
    found = plan(tmp_path, ('"hypersched"', '"fifo"'), of=machine(4), job=None)
    assert found["rungs"] == []
    assert "none; complete at 81 iterations" in text_of(found)


@pytest.mark.parametrize(
    ("policy", "num_trials", "warned"),
    [
        ('"asha"', 2, True),
        ('"asha"', 3, False),
        ('"asha"\nstopping = true', 2, False),
        ('"rasda"', 2, True),
        ('"hypersched"', 2, False),
    ],
)
def test_fewer_trials_than_a_promotion_takes_are_warned_of(
    tmp_path: Path, policy: str, num_trials: int, warned: bool
) -> None:
    few = ("[search.space]", f"[search]\nnum_trials = {num_trials}\n[search.space]")
    found = plan(tmp_path, ('"hypersched"', policy), few, of=machine(4), job=None)
    assert ("nobody is trained beyond iteration 1" in text_of(found)) is warned
