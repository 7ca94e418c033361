"""A site that refuses shared steps: `binding = "slurm"`, where Slurm picks GPUs and cores of each step itself. On the real cluster."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from tests.support.cluster import Cluster
from tests.support.e2e import Run, hpcsched, light_job

pytestmark = pytest.mark.slurm


def devices_of(run: Run, trial_id: int, incarnation: int) -> set[tuple[str, str]]:
    """(node, GPU) that the supervisors of an incarnation gave to its ranks, from their logs."""
    found = set()
    for file in run.folder.incarnation(trial_id, incarnation).glob("supervisor-*.log"):
        node = file.stem.removeprefix("supervisor-")
        for given in re.findall(r"rank \d+: pid \d+, cores .*, GPUs \[(.*)\]", file.read_text()):
            found.update((node, gpu.strip(" '")) for gpu in given.split(","))
    return found


def test_a_whole_search_where_slurm_picks(tmp_path: Path, cluster: Cluster) -> None:
    """Trials start, grow and end; no two have a GPU at the same time, each has as many as were asked for, nothing is left."""
    job = light_job(
        tmp_path, [{"height": 0.3 + 0.1 * number, "step_s": 0.2, "save": "leave"} for number in range(5)], num_atoms=None,
        policy="hypersched", deadline="25s", max_iterations=2187, launcher='binding = "slurm"\n',
        scheduler='entrance = "reversible"\nkeep_paused = true\ncool_down = 0\n', extra='[scaling]\nassume = "linear"\n',
    )  # fmt: skip
    with cluster.allocation("-N2", "--gres=gpu:2", "--exclusive", "--no-kill") as allocation:
        told = hpcsched("check", str(job.file), "--json", environ=allocation.env)
        assert told.returncode == 0, told.stderr
        run = job.start(inside=allocation)
        assert run.ends() == 0, run.told()
        run.check()
    argv = json.loads(told.stdout)["launches"][0]["commands"][0]
    assert "--exact" in argv and "--overlap" not in argv and argv[-1] == "--slurm-picks"
    starts = {(start.trial_id, start.incarnation): start for start in run.actions(act.StartTrial)}
    up = {(event.trial_id, event.incarnation): event.time for event in run.events(ev.TrialStarted)}
    gone = {(event.trial_id, event.incarnation): event.time for event in run.events(ev.TrialExited)}
    devices = {ids: devices_of(run, *ids) for ids in up}
    told_in_log = {ids: set() for ids in up}
    for note in run.notes():
        if note.topic == "devices":
            told_in_log[(note.trial_id, note.incarnation)] |= {
                (note.data["node"], gpu) for gpu in note.data["devices"]
            }
    assert told_in_log == devices, "the log has what Slurm gave"
    assert "Slurm gave GPU" in run.explain(0)
    assert {ids: len(devices[ids]) for ids in up} == {ids: len(starts[ids].placement.atoms) for ids in up}
    assert sum(len(devices[ids]) > 1 for ids in up) >= 1, "nobody grew"
    for one, other in combinations(up, 2):
        if up[one] < gone[other] and up[other] < gone[one]:
            assert not devices[one] & devices[other], (
                f"{one} and {other} share {devices[one] & devices[other]}"
            )
