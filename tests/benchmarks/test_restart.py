"""The restart benchmark measures what it says: real ranks, every part of a restart, on both launchers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.benchmarks import restart
from tests.support.cluster import Cluster, cluster  # noqa: F401

PARTS = {"leave", "save", "end", "step", "imports", "group", "prepare", "restore", "other", "first_iteration"}


def check(row: dict[str, Any]) -> None:
    assert row.keys() == {"cold_s", "warm_s", "limit_s", "parts"}
    for start in ("cold", "warm"):
        parts = row["parts"][start]
        assert parts.keys() == PARTS
        assert all(value >= 0 for value in parts.values())
        assert parts["save"] > 0
        assert parts["restore"] > 0
        assert parts["first_iteration"] > 0
        up = sum(parts[name] for name in ("step", "imports", "group", "prepare", "restore", "other"))
        assert up == pytest.approx(row[f"{start}_s"], rel=0.05), "the parts are the whole"
    assert row["limit_s"] > 0


@pytest.mark.long
def test_each_part_of_a_restart_on_this_computer(capsys: pytest.CaptureFixture[str]) -> None:
    assert restart.main(["--json", "--ranks", "2"]) == 0
    (row,) = json.loads(capsys.readouterr().out).values()
    check(row)


@pytest.mark.slurm
@pytest.mark.long
def test_each_part_of_a_restart_between_two_hosts(cluster: Cluster) -> None:  # noqa: F811
    argv = [sys.executable, "-m", "tests.benchmarks.restart", "--json", "--launcher", "srun", "--ranks", "2"]
    with cluster.allocation("-N", "2", "--exclusive", "--gres=gpu:4") as job:
        done = cluster.run(argv, env=job.env, timeout_s=280.0)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout).values()
    check(row)
