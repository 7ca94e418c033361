"""What a rank trains on, and what it says when it was given a GPU that it cannot use. Torch's answers are made up here."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcsched.errors import TrialError
from hpcsched.launch.tails import tail_of
from hpcsched.launchspec import LaunchNode
from hpcsched.runtime.device import find_device
from hpcsched.runtime.place import Place
from tests.support.groups import launch

CPU = torch.device("cpu")
REAL = LaunchNode("n2", ("2", "3"), (0,), None, 4, ("0", "1", "2", "3"), uuids=("GPU-aa", "GPU-bb"))
COUNTED = LaunchNode("n2", ("2", "3"), (0,), None, 4, ("0", "1", "2", "3"))
OTHERS = LaunchNode("n1", ("0", "1", "2", "3"), (0,), None, 0, ("0", "1", "2", "3"))


def place(tmp_path: Path, node: LaunchNode | None = REAL, **changes: Any) -> Place:
    spec = None if node is None else launch(tmp_path, nodes=(OTHERS, node), **changes)
    return Place(rank=5, world_size=6, local_rank=1, launch=spec, rendezvous=True)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A torch built for CUDA that can use no GPU."""
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return monkeypatch


def fails(cuda: pytest.MonkeyPatch, words: str) -> None:
    def init() -> None:
        raise RuntimeError(words)

    cuda.setattr(torch.cuda, "init", init)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("Found no NVIDIA driver on your system. Please check that ...", "apptainer exec --nv"),
        ("The NVIDIA driver on your system is too old (found version 11040).", "a newer driver"),
        ("Cannot re-initialize CUDA in forked subprocess.", "[launcher] warm = false"),
        ("No CUDA GPUs are available", "--exclude=n2"),
    ],
)
def test_a_rank_that_cannot_use_its_gpu_ends_with_torchs_words_and_a_cure(
    tmp_path: Path, cuda: pytest.MonkeyPatch, words: str, cure: str
) -> None:
    fails(cuda, words)
    with pytest.raises(TrialError) as error:
        find_device(place(tmp_path), {"CUDA_VISIBLE_DEVICES": "2,3"}, root=tmp_path)
    told = str(error.value)
    assert told.startswith(f"rank 5 was given GPU 3 (GPU-bb) of n2 and cannot use it: {words}\n")
    assert "CUDA_VISIBLE_DEVICES is '2,3'" in told
    assert cure in told
    log = tmp_path / "rank-5.log"
    log.write_text(f"Traceback ...\nhpcsched.errors.TrialError: {told}\n")
    assert told in tail_of(log), "the end of its log, as the driver shows it, holds all of it"


def test_a_torch_for_cpus_on_a_real_gpu_says_what_to_install(
    tmp_path: Path, cuda: pytest.MonkeyPatch
) -> None:
    cuda.setattr(torch.version, "cuda", None)
    cuda.setattr(torch.version, "hip", None)
    with pytest.raises(TrialError, match=r"built for CPUs alone(?s:.)*pytorch\.org/get-started"):
        find_device(place(tmp_path), {}, root=tmp_path)


def test_a_driver_on_the_node_makes_a_gpu_real_that_the_probe_could_not_name(
    tmp_path: Path, cuda: pytest.MonkeyPatch
) -> None:
    fails(cuda, "No CUDA GPUs are available")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    with pytest.raises(TrialError, match="rank 5 was given GPU 3 of n2"):
        find_device(place(tmp_path, COUNTED), {}, root=tmp_path)


def test_gpus_that_only_slurm_counts_are_played_by_the_cpu_and_the_log_says_so(
    tmp_path: Path, cuda: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails(cuda, "No CUDA GPUs are available")
    with caplog.at_level(logging.WARNING):
        assert find_device(place(tmp_path, COUNTED), {}, root=tmp_path) == CPU
    assert "rank 5 trains on the CPU: it was given GPU 3" in caplog.text


@pytest.mark.parametrize("is_available", [True, False])
def test_invented_gpus_and_those_who_ask_for_the_cpu_get_the_cpu(
    tmp_path: Path, cuda: pytest.MonkeyPatch, is_available: bool
) -> None:
    fails(cuda, "nobody asks")
    cuda.setattr(torch.cuda, "is_available", lambda: is_available)
    assert find_device(place(tmp_path, invented_gpus=True), {}, root=tmp_path) == CPU
    assert find_device(place(tmp_path), {"HPCSCHED_DEVICE": "cpu"}, root=tmp_path) == CPU
    with pytest.raises(TrialError, match="HPCSCHED_DEVICE=gpu"):
        find_device(place(tmp_path), {"HPCSCHED_DEVICE": "gpu"}, root=tmp_path)


def test_outside_of_a_trial_the_cpu_will_do(tmp_path: Path, cuda: pytest.MonkeyPatch) -> None:
    """Alone, or under torchrun."""
    fails(cuda, "No CUDA GPUs are available")
    assert find_device(place(tmp_path, None), {}, root=tmp_path) == CPU


def test_a_rank_takes_the_gpu_of_its_place_on_the_node(tmp_path: Path, cuda: pytest.MonkeyPatch) -> None:
    cuda.setattr(torch.cuda, "is_available", lambda: True)
    cuda.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device(place(tmp_path), {}, root=tmp_path) == torch.device("cuda", 1)
    cuda.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(TrialError, match="local rank 1 has no GPU of its own"):
        find_device(place(tmp_path), {}, root=tmp_path)


def test_a_gpu_that_comes_up_at_the_second_look_is_used(tmp_path: Path, cuda: pytest.MonkeyPatch) -> None:
    cuda.setattr(torch.cuda, "init", lambda: None)
    cuda.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device(place(tmp_path), {}, root=tmp_path) == torch.device("cuda", 1)
