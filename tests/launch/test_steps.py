"""Golden srun command lines: what a trial asks of Slurm, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from hpcsched.launch.steps import Binding, helper_step, run_mark, trial_steps
from hpcsched.launch.versions import abilities_of
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec

TAIL = (
    "--cpu-bind=none --mpi=none --wait=0 --kill-on-bad-exit=1 --export=ALL --unbuffered --job-name=hpcsched-{mark}.7.2.{number}"
    " python -P -m hpcsched.launch.supervisor /run/launch.json"
)


def spec_of(*nodes: tuple[str, int, int, int | None]) -> LaunchSpec:
    """(name, GPUs, cores, memory) each."""
    made, rank = [], 0
    for name, num_gpus, num_cores, memory_mb in nodes:
        gpus = tuple(map(str, range(num_gpus)))
        made.append(LaunchNode(name, gpus, tuple(range(num_cores)), memory_mb, rank, gpus))
        rank += num_gpus
    rest: dict[str, Any] = {
        "config": {}, "command": ("true",), "cwd": "/", "env": {}, "master_addr": "a", "master_port": 1, "channel": Channel((), "", ""),
        "run_dir": "/run", "metric": "m", "mode": "max", "max_iterations": 1, "seed": 0, "restore": None, "restore_iteration": 0,
    }  # fmt: skip
    return LaunchSpec(trial_id=7, incarnation=2, nodes=tuple(made), **rest)


def lines(spec: LaunchSpec, binding: Binding, job_gpus: dict[str, int], *srun_args: str) -> list[str]:
    steps = trial_steps(
        spec,
        binding=binding,
        job_gpus=job_gpus,
        launch_file="/run/launch.json",
        python="python",
        srun_args=srun_args,
    )
    return [" ".join(step.argv) for step in steps]


def tail(number: int = 0) -> str:
    mark = run_mark("/run").removeprefix("hpcsched-").removesuffix(".")
    return TAIL.format(mark=mark, number=number)


EQUAL = {"n1": 4, "n2": 4, "n3": 4}


def test_overlap_asks_for_all_gpus_of_the_job_and_for_the_trials_share_of_memory() -> None:
    spec = spec_of(("n1", 1, 4, 4000), ("n2", 1, 4, 4000))
    assert lines(spec, "overlap", EQUAL) == [
        f"srun --overlap -N 2 -n 2 --ntasks-per-node=1 -w n1,n2 --gres=gpu:4 --mem=4000 {tail()}"
    ]


def test_overlap_never_says_cores_exact_or_a_distribution() -> None:
    """-c implies --exact, and an exact overlap step is confined to the first core."""
    for line in lines(spec_of(("n1", 3, 12, 4000), ("n2", 1, 4, 1000)), "overlap", EQUAL):
        assert not {"-c", "--exact", "-m"} & set(line.partition(" python ")[0].split())


def test_unequal_shares_of_memory_are_two_steps() -> None:
    assert lines(spec_of(("n1", 1, 4, 4000), ("n2", 3, 12, 12000)), "overlap", EQUAL) == [
        f"srun --overlap -N 1 -n 1 --ntasks-per-node=1 -w n1 --gres=gpu:4 --mem=4000 {tail(0)}",
        f"srun --overlap -N 1 -n 1 --ntasks-per-node=1 -w n2 --gres=gpu:4 --mem=12000 {tail(1)}",
    ]


def test_uncounted_memory_is_all_of_the_jobs() -> None:
    assert "--mem=0" in lines(spec_of(("n1", 1, 4, None)), "overlap", EQUAL)[0].split()


def test_nodes_of_unequal_gpu_count_are_a_step_for_each_count() -> None:
    spec = spec_of(("n1", 2, 4, None), ("n2", 2, 4, None), ("n3", 3, 4, None))
    found = lines(spec, "overlap", {"n1": 2, "n2": 2, "n3": 3})
    assert found == [
        f"srun --overlap -N 2 -n 2 --ntasks-per-node=1 -w n1,n2 --gres=gpu:2 --mem=0 {tail(0)}",
        f"srun --overlap -N 1 -n 1 --ntasks-per-node=1 -w n3 --gpus=3 --mem=0 {tail(1)}",
    ]


def test_binding_slurm_asks_for_what_the_trial_holds_and_lets_slurm_pick() -> None:
    spec = spec_of(("n1", 1, 4, 4000), ("n2", 3, 12, 12000), ("n3", 1, 4, 4000))
    assert lines(spec, "slurm", EQUAL) == [
        f"srun --exact -N 2 -n 2 --ntasks-per-node=1 -w n1,n3 --gres=gpu:1 --mem=4000 -c 4 {tail(0)} --slurm-picks",
        f"srun --exact -N 1 -n 1 --ntasks-per-node=1 -w n2 --gres=gpu:3 --mem=12000 -c 12 {tail(1)} --slurm-picks",
    ]


def test_the_sites_own_arguments_come_last_so_that_they_win() -> None:
    words = lines(spec_of(("n1", 1, 4, None)), "overlap", EQUAL, "--mpi=pmi2", "--network=x")[0].split()
    assert words.index("--mpi=none") < words.index("--mpi=pmi2") < words.index("python")


def test_a_helper_step_takes_no_gpu() -> None:
    assert {"--overlap", "--gres=none"} <= set(helper_step("n1", ["true"], name="x").argv)


def test_names_tell_run_folders_apart() -> None:
    assert run_mark("/a") != run_mark("/b")


@pytest.mark.parametrize(("version", "overlap"), [((20, 11), False), ((21, 8), False), ((22, 5), True), ((24, 11), True), ((25, 11), True), (None, True)])  # fmt: skip
def test_only_slurm_from_22_05_on_shares_gpus_between_steps(
    version: tuple[int, int] | None, overlap: bool
) -> None:
    assert abilities_of(version).overlap is overlap
