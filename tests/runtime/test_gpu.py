"""What needs a GPU: NCCL groups with as many ranks as there are GPUs (at most two), state in GPU memory, and that memory's return."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hpcsched.wire import Report, SavedCheckpoint
from tests.support.ranks import Stage

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS == 0, reason="needs a GPU: NCCL, and state in its memory"),
]
HERE = Path(__file__).parent


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "run")
    yield made
    made.close()


def pids_on_gpus() -> set[int]:
    """Processes that hold memory of a GPU, as NVML tells."""
    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
        return {
            process.pid for handle in handles for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        }
    finally:
        nvml.nvmlShutdown()


def line(log: str, word: str) -> str:
    return next(text for text in log.splitlines() if text.startswith(word)).partition(": ")[2]


@pytest.mark.parametrize("script", ["small_trial.py", "sharded_trial.py"])
def test_a_trial_on_gpus_leaves_goes_on_and_gives_their_memory_back(stage: Stage, script: str) -> None:
    config = {"learning_rate": 0.1, "do": ""}
    first_size = min(2, NUM_GPUS)
    stage.answer = lambda report: "resize" if report.training_iteration == 2 else None
    first = stage.spec(
        HERE / script,
        world_size=first_size,
        config=config,
        max_iterations=4,
        invented_gpus=False,
        checkpoint_budget=1e9,
    )
    ranks = stage.start(first)
    assert [rank.wait(120.0) for rank in ranks] == [0] * first_size, stage.log(first)
    assert not pids_on_gpus() & {rank.pid for rank in ranks}, "their memory is free for the next incarnation"
    assert [saved.blocked_s is None for saved in stage.of(SavedCheckpoint)] == [False, True]

    stage.answer = lambda report: None
    # On another number of ranks where there are two GPUs, from the checkpoint that was written while training went on.
    for incarnation, world_size, iteration in ((2, first_size, 2), (3, 1, 1)):
        spec = stage.spec(
            HERE / script,
            world_size=world_size,
            incarnation=incarnation,
            config=config,
            max_iterations=4,
            invented_gpus=False,
            restore=str(stage.folder.checkpoint(3, 1, iteration)),
            restore_iteration=iteration,
        )
        assert stage.run(spec) == [0] * world_size, stage.log(spec)
        before = numbers(line(stage.log(first), f"trained {iteration}"))
        assert numbers(line(stage.log(spec), f"restored {iteration}")) == pytest.approx(before, abs=1e-4)
    assert stage.of(Report)[-1].training_iteration == 4


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def test_the_plain_model_of_a_trial_on_a_gpu_loads_where_there_is_none(stage: Stage) -> None:
    spec = stage.spec(
        HERE / "small_trial.py",
        config={"learning_rate": 0.1, "do": ""},
        max_iterations=1,
        invented_gpus=False,
    )
    assert stage.run(spec) == [0], stage.log(spec)
    state = torch.load(stage.folder.checkpoint(3, 1, 1) / "model.pt", weights_only=True)
    assert {value.device.type for value in state.values()} == {"cpu"}
