"""FSDP2 (`fully_shard`) through save and restore at other world sizes, with real ranks on the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcsched.wire import SavedCheckpoint
from tests.support.ranks import Stage

SCRIPT = Path(__file__).parent / "sharded_trial.py"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "run")
    yield made
    made.close()


def line(log: str, word: str) -> str:
    return next(text for text in log.splitlines() if text.startswith(word)).partition(": ")[2]


def test_a_sharded_model_goes_on_at_any_world_size(stage: Stage) -> None:
    stage.answer = lambda report: "resize" if report.training_iteration == 2 else None
    first = stage.spec(SCRIPT, world_size=2, max_iterations=4, checkpoint_budget=1e9)
    assert stage.run(first) == [0, 0], stage.log(first)
    stage.answer = lambda report: None
    finals = []
    # The checkpoint of iteration 1 was written while the second was trained, that of iteration 2 on leaving.
    assert [saved.blocked_s is None for saved in stage.of(SavedCheckpoint)] == [False, True]
    for incarnation, world_size, iteration in ((2, 3, 2), (3, 1, 1)):
        left_with = line(stage.log(first), f"trained {iteration}")
        spec = stage.spec(
            SCRIPT,
            world_size=world_size,
            incarnation=incarnation,
            max_iterations=4,
            restore=str(stage.folder.checkpoint(3, 1, iteration)),
            restore_iteration=iteration,
        )
        assert stage.run(spec) == [0] * world_size, stage.log(spec)
        for rank in range(world_size):
            assert line(stage.log(spec, rank), f"restored {iteration}") == left_with
        finals.append(line(stage.log(spec), "trained 4"))
    numbers = [[float(number) for number in re.findall(r"-?\d+\.\d+", final)] for final in finals]
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-3), "the same global batches at any world size"
