"""A GPU on which somebody else is: set aside, looked at again, used again when it is free. NVML is a stand-in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from tests.support.cluster import Cluster
from tests.support.e2e import Run, light_job

FAKE = Path(__file__).parent.parent / "fakes" / "nvml"
NUM_GPUS = 2


class Gpus:
    """What NVML shows; `stranger`: a process of somebody else on the last one."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def show(self, *, stranger: bool) -> None:
        devices: list[dict[str, object]] = [{"uuid": f"GPU-{number}"} for number in range(NUM_GPUS)]
        if stranger:
            devices[-1]["processes"] = [[os.getpid(), 500]]
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps({"devices": devices}))
        fresh.rename(self.file)

    @property
    def environ(self) -> dict[str, str]:
        return {"PYTHONPATH": str(FAKE), "FAKE_NVML": str(self.file)}


def comes_back(run: Run, gpus: Gpus, node: str | None = None) -> None:
    """Trial 0 trains; trial 1 finds a stranger, and the GPU comes back when he has gone."""
    aside = run.waits_for(ev.MachineChanged)
    assert f"process {os.getpid()} (" in aside.why and len(aside.down) == 1
    first = run.waits_for(act.StartTrial, trial_id=1, incarnation=1)
    assert first.placement.atoms == aside.down
    (entry,) = run.status["aside"]
    assert entry["gpus"] == [str(NUM_GPUS - 1)] and entry["why"] == aside.why
    text = run.command("status", str(run.folder.root)).stdout
    assert f"GPU {NUM_GPUS - 1} since" in text and "holds 500 MiB" in text
    waits = run.explain(1)
    assert f"GPU {NUM_GPUS - 1} is set aside since" in waits, waits
    gpus.show(stranger=False)
    back = run.waits_for(ev.MachineChanged, 2)
    assert back.up == aside.down
    again = run.waits_for(act.StartTrial, trial_id=1, incarnation=2)
    assert again.placement.atoms == aside.down
    assert run.ends() == 0, run.told()
    run.check()
    assert run.outcomes() == {0: ["completed"], 1: ["launch_failed", "completed"]}
    assert run.status["aside"] == []
    story = run.explain(1)
    assert (
        "is set aside\n" in story and "is used again\n" in story and "looked at again and found free" in story
    )
    notes = [note.text for note in run.notes()]
    assert any(note.endswith("is set aside; it is looked at again in 5 s") for note in notes), notes
    assert any(note.endswith("it is used again") for note in notes), notes


def test_a_gpu_comes_back_when_the_stranger_has_gone(tmp_path: Path) -> None:
    gpus = Gpus(tmp_path / "nvml.json")
    gpus.show(stranger=True)
    job = light_job(
        tmp_path, [{"step_s": 1.0, "until": 0}, {"step_s": 0.1}], num_atoms=None, deadline="10m", max_iterations=18
    )  # fmt: skip
    run = job.start(environ=gpus.environ | {"CUDA_VISIBLE_DEVICES": "0,1"})
    comes_back(run, gpus)


@pytest.mark.slurm
def test_in_an_allocation_a_step_looks_again(tmp_path: Path, cluster: Cluster) -> None:
    gpus = Gpus(tmp_path / "nvml.json")
    gpus.show(stranger=True)
    job = light_job(
        tmp_path, [{"step_s": 1.0}, {"step_s": 0.1}], num_atoms=None, deadline="10m", max_iterations=18
    )  # fmt: skip
    with cluster.allocation("-N1", f"--gres=gpu:{NUM_GPUS}", "--no-kill") as allocation:
        run = job.start(inside=allocation, environ=gpus.environ)
        comes_back(run, gpus)
