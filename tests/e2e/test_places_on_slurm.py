"""Where trials run, on the real cluster: four hosts under two leaf switches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from analysis.placements import launches_of, shares_of
from hpcsched.core import events as ev
from hpcsched.eventlog.reader import read_journal
from tests.support.cluster import Cluster
from tests.support.e2e import environs_of_ranks, light_job, wait_until

pytestmark = pytest.mark.slurm

NUM_CORES = len(os.sched_getaffinity(0))


@pytest.fixture(params=["cluster", "confined_cluster"])
def any_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Steps unconfined, and confined to their devices and cores by cgroups."""
    yield request.getfixturevalue(request.param)


def test_over_a_whole_search_no_trial_reaches_farther_than_it_has_to(
    tmp_path: Path, cluster: Cluster
) -> None:
    """First fit in node order, on the same events, would have placed some of them over more nodes or switches than needed."""
    job = light_job(
        tmp_path, [{"height": 0.3 + 0.05 * number, "step_s": 0.3, "save": "leave"} for number in range(9)], num_atoms=None,
        policy="hypersched", deadline="45s", max_iterations=2187,
        scheduler='entrance = "reversible"\nkeep_paused = true\ncool_down = 1\n', extra='[scaling]\nassume = "linear"\n',
    )  # fmt: skip
    with cluster.allocation("-N4", "--gres=gpu:4", "--exclusive", "--no-kill") as allocation:
        run = job.start(inside=allocation)
        assert run.ends() == 0, run.told()
        run.check()
    machine = run.events(ev.ExperimentBegan)[0].machine
    assert len({node.switches for node in machine.nodes}) == 2
    launches = launches_of(read_journal(run.folder))
    shares = shares_of(launches)
    assert sum(launch.num_atoms > 1 for launch in launches) >= 5, launches
    assert shares.too_many_nodes_or_switches == 0
    assert shares.first_fit_would > 0, launches
    assert shares.too_many_nodes_or_switches <= 0.1 * shares.first_fit_would


@pytest.mark.skipif(NUM_CORES < 2, reason="one core: trials on one host have to share it")
def test_trials_on_one_host_share_no_core(tmp_path: Path, any_cluster: Cluster) -> None:
    """As many GPUs a host as there are real cores for (slurmbox invents cores for Slurm, not for the kernel): each
    trial has cores of its own, and every thread of its ranks is bound to them."""
    num_gpus = min(4, NUM_CORES)
    job = light_job(
        tmp_path, [{"step_s": 0.2}] * (2 * num_gpus), num_atoms=None, deadline="5m", max_iterations=100_000
    )
    with any_cluster.allocation("-N2", "--gres=gpu:4", "--exclusive", "--no-kill") as allocation:
        run = job.start("--set", f"atoms.gpus_per_node={num_gpus}", inside=allocation)
        wait_until(
            lambda: {event.trial_id for event in run.events(ev.ResultReported)} == set(range(2 * num_gpus)),
            lambda: f"all trials train\n{run.told()}",
        )
        cores = cores_of_ranks(run.folder.root)
        machine = run.events(ev.ExperimentBegan)[0].machine
        run.process.send_signal(2)
        assert run.ends() == 75, run.told()
        run.check()
    assert sorted(len(trials) for trials in cores.values()) == [num_gpus, num_gpus]
    for host, trials in cores.items():
        promised = {atom.cores for atom in machine.atoms if atom.node == host}
        assert {tuple(sorted(mine)) for mine in trials.values()} == promised
        for (one, mine), (other, theirs) in combinations(trials.items(), 2):
            assert not mine & theirs, f"trials {one} and {other} share cores {mine & theirs} on {host}"


def cores_of_ranks(run_dir: Path) -> dict[str, dict[int, set[int]]]:
    """Host -> trial -> cores that any thread of its ranks may run on, as /proc has it."""
    cores: dict[str, dict[int, set[int]]] = {}
    for pid, names in environs_of_ranks(run_dir):
        folder = Path(f"/proc/{pid}")
        mine = cores.setdefault(names["HPCSCHED_NODE"], {}).setdefault(int(names["HPCSCHED_TRIAL_ID"]), set())
        for status in folder.glob("task/*/status"):
            (line,) = (
                line for line in status.read_text().splitlines() if line.startswith("Cpus_allowed_list:")
            )
            for piece in line.split()[1].split(","):
                first, _, last = piece.partition("-")
                mine.update(range(int(first), int(last or first) + 1))
    return cores
