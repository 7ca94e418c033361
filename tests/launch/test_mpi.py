"""MPI trials: the step's command, and real ranks of a real MPI library, on this computer and between two hosts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hpcsched.errors import LaunchError
from hpcsched.launch.environment import mpi_environment, rank_environment
from hpcsched.launch.mpi_task import rank_of
from hpcsched.launch.steps import MOST_PARTS, trial_steps
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec
from tests.support.cluster import Cluster, cluster, slurmbox  # noqa: F401

JOBS = Path(__file__).parents[2] / "jobs"


def spec(*nodes: tuple[str, int], memory_mb: int | None = 100) -> LaunchSpec:
    made, rank = [], 0
    for name, num in nodes:
        gpus = tuple(map(str, range(num)))
        made.append(LaunchNode(name, gpus, (), None if memory_mb is None else num * memory_mb, rank, gpus))
        rank += num
    return LaunchSpec(
        trial_id=3,
        incarnation=2,
        config={},
        command=("python", "train.py"),
        cwd="/",
        env={},
        nodes=tuple(made),
        master_addr="n1",
        master_port=20000,
        channel=Channel((), "", ""),
        run_dir="/run",
        metric="error",
        mode="min",
        max_iterations=9,
        seed=0,
        restore=None,
        restore_iteration=0,
        mpi="pmix",
    )


def test_an_mpi_trial_is_one_step_with_a_task_a_rank_in_the_order_of_its_host_file() -> None:
    (step,) = trial_steps(
        spec(("n1", 1), ("n3", 3)),
        binding="overlap",
        job_gpus={"n1": 4, "n2": 4, "n3": 4},
        launch_file="/run/launch.json",
        python="python3",
        srun_args=("--network=x",),
    )
    assert step.hosts == ("n1", "n3", "n3", "n3")
    assert step.nodes == ("n1", "n3")
    assert " ".join(step.argv[:8]) == "srun --overlap -n 4 -m arbitrary --gres=gpu:4 --mem=300"
    assert "--mpi=pmix" in step.argv
    assert not {"-N", "-w", "-c", "--exact", "--mpi=none"} & set(step.argv)
    assert step.argv[-5:] == ("python3", "-P", "-m", "hpcsched.launch.mpi_task", "/run/launch.json")


def test_on_nodes_of_unequal_gpu_counts_the_step_has_a_part_a_node() -> None:
    (step,) = trial_steps(
        spec(("n2", 1), ("n1", 3)),
        binding="overlap",
        job_gpus={"n1": 4, "n2": 2},
        launch_file="/run/launch.json",
        python="python3",
    )
    assert step.hosts == (), "no host file: each part names its node"
    assert step.nodes == ("n2", "n1")
    words = " ".join(step.argv[1:]).split(" : ")
    assert [part.split(" --cpu-bind")[0] for part in words] == [
        "--overlap -N 1 -n 1 -w n2 --gres=gpu:2 --mem=100",
        "--overlap -N 1 -n 3 -w n1 --gpus=4 --mem=300",
    ]
    assert all(part.endswith("python3 -P -m hpcsched.launch.mpi_task /run/launch.json") for part in words)
    assert all("--mpi=pmix" in part and f"--job-name={step.name}" in part for part in words)


def test_a_trial_that_one_step_cannot_serve_is_refused_with_the_reason() -> None:
    many = {f"n{number}": 1 + number % 2 for number in range(MOST_PARTS + 1)}
    with pytest.raises(LaunchError, match="Slurm allows 128"):
        trial_steps(
            spec(*((name, 1) for name in many)),
            binding="overlap",
            job_gpus=many,
            launch_file="x",
            python="p",
        )
    with pytest.raises(LaunchError, match=r'launcher\.binding = "overlap"'):
        trial_steps(spec(("n1", 1)), binding="slurm", job_gpus={"n1": 4}, launch_file="x", python="p")


def test_a_rank_keeps_its_own_tasks_mpi_variables_and_no_other_trial_does() -> None:
    inherited = {"PMIX_RANK": "3", "SLURM_PROCID": "3", "OMPI_MCA_x": "1", "HOME": "/home"}
    trial = spec(("n1", 4))
    env = rank_environment(trial, trial.nodes[0], 3, inherited=inherited, devices=None, num_cores=1)
    assert not {"PMIX_RANK", "SLURM_PROCID", "OMPI_MCA_x"} & env.keys()
    assert mpi_environment(inherited) == {"PMIX_RANK": "3", "SLURM_PROCID": "3", "OMPI_MCA_x": "1"}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"SLURM_PROCID": "5", "PMI_RANK": "0"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({"PMI_RANK": "1"}, 1),
        ({"PMIX_RANK": ""}, None),
        ({}, None),
    ],
)
def test_a_task_knows_its_rank_by_its_launcher(environ: dict[str, str], rank: int | None) -> None:
    assert rank_of(environ) == rank


EXPERIMENT = """
[experiment]
name = "mpi"
metric = "error"
mode = "min"
deadline = "5m"
[trial]
command = ["python", "{script}"]
grace_period = 2
max_iterations = 4
[scheduler]
policy = "rasda"
reduction_factor = 2
initial_atoms = {atoms}
[launcher]
mpi = "pmix"
[atoms]
gpus_per_atom = 2
gpus_per_node = 2
[search]
num_trials = 1
first = [{{ learning_rate = 0.3, momentum = 0.9 }}]
[search.space]
learning_rate = {{ log_uniform = [1e-3, 1.0] }}
momentum = {{ choice = [0.0, 0.9] }}
[trial.env]
OMP_NUM_THREADS = "1"
"""


def check_run(run: Path, num_ranks: int, num_nodes: int) -> None:
    launch = msgspec.json.decode((run / "trials/0/1/launch.json").read_bytes(), type=LaunchSpec)
    assert (launch.world_size, len(launch.nodes)) == (num_ranks, num_nodes)
    best = json.loads((run / "best/best.json").read_text())
    assert best["training_iteration"] == 4
    assert best["metric"] < 0.5
    for node in launch.nodes:
        said = (run / f"trials/0/1/supervisor-{node.node}.log").read_text()
        ranks = range(node.first_rank, node.first_rank + len(node.gpus))
        assert f"gone: {dict.fromkeys(ranks, 0)}\n" in said, "every rank ended well, and the driver heard it"


needs_mpi = pytest.mark.skipif(shutil.which("mpiexec") is None, reason="no mpiexec on PATH")


@needs_mpi
def test_ranks_of_this_computer_start_by_mpiexec(tmp_path: Path, run_hpcsched: Callable[..., str]) -> None:
    pytest.importorskip("mpi4py")
    text = EXPERIMENT.format(script=JOBS / "mpi_trial/train.py", atoms=1)
    file = tmp_path / "experiment.toml"
    file.write_text(text.replace("gpus_per_node = 2", "num_atoms = 1"))
    run_hpcsched("run", str(file), "--run-dir", str(tmp_path / "run"))
    check_run(tmp_path / "run", num_ranks=2, num_nodes=1)


@pytest.fixture
def run_hpcsched(tmp_path: Path) -> Callable[..., str]:
    import subprocess

    def run(*arguments: str) -> str:
        argv = [sys.executable, "-m", "hpcsched", *arguments]
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@needs_mpi
@pytest.mark.slurm
def test_four_ranks_over_two_hosts(tmp_path: Path, cluster: Cluster) -> None:  # noqa: F811
    pytest.importorskip("mpi4py")
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT.format(script=JOBS / "mpi_trial/train.py", atoms=2))
    run = tmp_path / "run"
    with cluster.allocation("-N", "2", "--exclusive", "--gres=gpu:4") as job:
        argv = [sys.executable, "-m", "hpcsched", "run", str(file), "--run-dir", str(run)]
        done = cluster.run(argv, env=job.env, timeout_s=200.0)
        assert done.returncode == 0, done.stdout + done.stderr
        assert job.steps() == []
    check_run(run, num_ranks=4, num_nodes=2)


@needs_mpi
@pytest.mark.slurm
@pytest.mark.long
def test_four_ranks_over_two_hosts_of_unequal_gpu_counts(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    text = EXPERIMENT.format(script=JOBS / "mpi_trial/train.py", atoms=4)
    file = tmp_path / "experiment.toml"
    file.write_text(text.replace("gpus_per_atom = 2\ngpus_per_node = 2", "gpus_per_atom = 1"))
    run = tmp_path / "run"
    with (
        slurmbox(NODES="2", GPUS="3 1") as uneven,
        uneven.allocation("-N", "2", "--exclusive", "--gres=gpu:1") as job,
    ):
        argv = [sys.executable, "-m", "hpcsched", "run", str(file), "--run-dir", str(run)]
        done = uneven.run(argv, env=job.env, timeout_s=200.0)
        assert done.returncode == 0, done.stdout + done.stderr
        assert job.steps() == []
    check_run(run, num_ranks=4, num_nodes=2)


@needs_mpi
@pytest.mark.slurm
def test_a_rank_that_fails_ends_the_others_on_both_hosts_at_once(tmp_path: Path, cluster: Cluster) -> None:  # noqa: F811
    pytest.importorskip("mpi4py")
    script = tmp_path / "fails.py"
    script.write_text(
        "import hpcsched, os\n"
        "trial = hpcsched.mpi_trial()\n"
        "if trial.rank == 3:\n"
        "    print('rank 3 has had enough', flush=True)\n"
        "    os._exit(7)\n"
        "trial.comm.Barrier()\n"
    )
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT.format(script=script, atoms=2) + "[retries]\ncrashed = 0\nfail_fast = 1\n")
    run = tmp_path / "run"
    with cluster.allocation("-N", "2", "--exclusive", "--gres=gpu:4") as job:
        argv = [sys.executable, "-m", "hpcsched", "run", str(file), "--run-dir", str(run)]
        done = cluster.run(argv, env=job.env, timeout_s=200.0)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "rank 3" in done.stdout + done.stderr
        assert "ended with code 7" in done.stdout + done.stderr
        assert job.steps() == []
