"""The main job with the real torch runtime: handwritten digits, real process groups."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from tests.support.cluster import Cluster
from tests.support.e2e import PROJECT, Job, Run

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")


def digits(folder: Path) -> Job:
    return Job(folder, PROJECT / "jobs" / "digits" / "experiment.toml", folder / "run")


def check_model(run: Run) -> None:
    """best/ is loadable by plain torch, and is what status says."""
    model = torch.load(run.folder.best / "model.pt", weights_only=True)
    assert model
    assert all(isinstance(value, torch.Tensor) for value in model.values())
    assert (run.folder.best / "checkpoint" / "manifest.json").exists()
    facts = json.loads((run.folder.best / "best.json").read_text())
    status = run.status["best"]
    assert (facts["trial_id"], facts["training_iteration"]) == (
        status["trial_id"],
        status["training_iteration"],
    )
    manifest = json.loads((run.folder.best / "checkpoint" / "manifest.json").read_text())
    assert manifest["training_iteration"] == facts["training_iteration"]
    assert manifest["config"] == facts["config"]


def test_digits_on_this_machine(tmp_path: Path) -> None:
    run = digits(tmp_path).start("--deadline", "40s")
    assert run.ends(180.0) == 0, run.told()
    run.check(best=False)
    check_model(run)
    status = run.status
    assert status["best"]["saved_s"] <= status["deadline_s"]
    assert status["counts"]["failed"] == 0
    assert status["counts"]["paused"] >= 1


@pytest.mark.long  # the tutorial's search runs over hosts, too
@pytest.mark.slurm
def test_digits_over_hosts_with_one_gpu_each(tmp_path: Path, cluster: Cluster) -> None:
    with cluster.allocation("-N4", "--gres=gpu:1", "--no-kill") as allocation:
        run = digits(tmp_path).start("--deadline", "40s", inside=allocation)
        assert run.ends(180.0) == 0, run.told()
        run.check(best=False)
    check_model(run)
    assert run.status["counts"]["failed"] == 0


@pytest.mark.long
@pytest.mark.parametrize("moment", ["starting", "saved", "resizing"])
def test_digits_with_a_killed_driver(tmp_path: Path, moment: str) -> None:
    job = digits(tmp_path)
    run = job.start("--deadline", "100s")
    match moment:
        case "starting":
            run.waits_for(act.StartTrial, 4)
        case "saved":
            run.waits_for(ev.CheckpointSaved, 2)
        case "resizing":
            run.waits_for(act.PreemptTrial)
    run.kill()
    acknowledged = len(run.events(ev.ResultReported))
    again = job.start(resume=True)
    assert again.ends(180.0) == 0, again.told()
    again.check(best=False)
    check_model(again)
    assert len(again.events(ev.ResultReported)) >= acknowledged
    assert again.status["counts"]["failed"] == 0


@pytest.mark.long
def test_digits_leaves_on_ctrl_c_and_goes_on(tmp_path: Path) -> None:
    job = digits(tmp_path)
    run = job.start("--deadline", "10m")
    run.waits_for(act.PublishBest)
    run.signal(signal.SIGINT)
    assert run.ends() == 75, run.told()
    run.check(best=False)
    check_model(run)
    again = job.start(resume=True)
    restarted = again.waits_for(act.StartTrial, num=len(run.actions(act.StartTrial)) + 1)
    assert restarted.incarnation >= 1
    again.waits_for(ev.ResultReported, num=len(run.events(ev.ResultReported)) + 2)
    again.signal(signal.SIGTERM)
    assert again.ends() == 75, again.told()
    again.check(best=False)
