"""The test cluster itself: several at once, each of its own hosts."""

from __future__ import annotations

import pytest

from tests.support.cluster import Cluster, cluster, slurmbox  # noqa: F401

pytestmark = pytest.mark.slurm


def test_two_clusters_run_side_by_side_and_know_nothing_of_each_other(cluster: Cluster) -> None:  # noqa: F811
    with slurmbox(NODES="2", GPUS="1 3") as other:
        assert other.instance != cluster.instance
        for box, count in ((cluster, 4), (other, 2)):
            said = box.srun(f"-N{count}", f"-n{count}", "hostname")
            assert sorted(said.stdout.split()) == box.nodes, said.stderr
        with other.allocation("-N2", "--exclusive", "--gpus=4") as mine, cluster.allocation() as theirs:
            assert mine.job_id in other.jobs()
            assert mine.job_id not in cluster.jobs()
            assert theirs.job_id not in other.jobs()
            seen = other.run(
                [
                    "srun",
                    "--overlap",
                    "-N2",
                    "-n2",
                    "--ntasks-per-node=1",
                    "--gpus=4",
                    "sh",
                    "-c",
                    "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES",
                ],
                env=other.env | {"SLURM_JOB_ID": mine.job_id},
            )
            assert sorted(seen.stdout.splitlines()) == ["n1 0", "n2 0,1,2"], seen.stderr
    assert not other.root.exists()


def test_a_killed_node_goes_down_and_comes_back(cluster: Cluster) -> None:  # noqa: F811
    cluster.kill_node("n4")
    cluster.restore_node("n4")
    said = cluster.srun("-N1", "-n1", "-w", "n4", "hostname")
    assert said.stdout.strip() == "n4", said.stderr
