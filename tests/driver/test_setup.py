"""`[setup] per_node`: once a node before its first trial; a node on which it fails is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.driver.setup import set_up_nodes
from hpcsched.errors import AllocationError
from hpcsched.runfolder import RunFolder
from tests.support.cluster import Cluster, cluster  # noqa: F401
from tests.support.e2e import light_job

pytestmark = pytest.mark.timeout(300)


def here(
    folder: Path,
    command: str,
    said: list[str],
    *,
    job_id: str = "",
    num_restarts: int = 0,
    limit_s: float = 60.0,
) -> tuple[str, ...]:
    return set_up_nodes(
        command, RunFolder(folder), (), job_id=job_id, num_restarts=num_restarts, cwd=folder, environ={"PATH": "/usr/bin:/bin"},
        say=said.append, limit_s=limit_s,
    )  # fmt: skip


def test_it_runs_once_here_and_not_again_in_the_same_job(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        assert here(tmp_path, "echo x >>marks", said)
    assert (tmp_path / "marks").read_text() == "x\n"
    here(tmp_path, "echo x >>marks", said, job_id="8")
    assert (tmp_path / "marks").read_text() == "x\nx\n"
    here(tmp_path, "echo y >>marks", said, job_id="8")
    assert (tmp_path / "marks").read_text() == "x\nx\ny\n"
    assert not said


def test_a_requeued_job_which_keeps_its_id_sets_its_nodes_up_again(tmp_path: Path) -> None:
    for num_restarts in (0, 0, 1, 1, 2):
        here(tmp_path, "echo x >>marks", [], job_id="8", num_restarts=num_restarts)
    assert (tmp_path / "marks").read_text() == "x\n" * 3


def test_a_failure_says_what_the_command_said_and_is_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(AllocationError, match=r"exit code 3: no space here"):
        here(tmp_path, "echo no space here; exit 3", said)
    with pytest.raises(AllocationError, match=r"exit code 3"):
        here(tmp_path, "echo no space here; exit 3", said)
    assert "no space here" in (tmp_path / "setup-this-machine.log").read_text()


def test_a_command_that_hangs_has_a_limit(tmp_path: Path) -> None:
    with pytest.raises(AllocationError, match="did not end within"):
        here(tmp_path, "exec sleep 1000", [], limit_s=0.2)


def test_a_run_here_sets_up_first(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{}], extra='[setup]\nper_node = "echo $HPCSCHED_RUN_DIR >>marks"')
    run = job.start()
    assert run.ends() == 0, run.told()
    assert (job.folder / "marks").read_text() == f"{job.run_dir}\n"


@pytest.mark.slurm
def test_a_node_on_which_it_fails_is_left_out(cluster: Cluster, tmp_path: Path) -> None:  # noqa: F811
    command = f'hostname >>{tmp_path}/marks; if [ "$(hostname)" = n2 ]; then echo disk is full; exit 4; fi'
    job = light_job(
        tmp_path / "job", [{}, {}], num_atoms=None, deadline="60s", extra=f"[setup]\nper_node = '''{command}'''"
    )  # fmt: skip
    with cluster.allocation("--nodes", "3", "--gres=gpu:1", "--exclusive", "--no-kill") as allocation:
        run = job.start(inside=allocation)
        assert run.ends() == 0, run.told()
        run.check()
    assert sorted((tmp_path / "marks").read_text().split()) == ["n1", "n2", "n3"]
    assert "failed on n2, which is left out: exit code 4: " in run.err
    assert "disk is full" in run.err
    assert '"n2"' not in run.folder.machine.read_text()
