"""What a resize must not cost: a sample, a loss, a bit. Real ranks, real resizes at fixed points."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch

from hpcsched.wire import Report
from tests.runtime.many_seeds import NUM_SAMPLES, NUM_SEEDS
from tests.support.ranks import Stage

HERE = Path(__file__).parent
JOBS = HERE.parents[1] / "jobs"
SCRIPT = HERE / "many_seeds.py"
SIZES = (1, 2, 4, 2)
"""Ranks of iterations 1, 2, 3 and 4."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "run")
    yield made
    made.close()


def losses(report: Report) -> list[float]:
    found = [report.metrics[f"loss{seed}"] for seed in range(NUM_SEEDS)]
    assert all(loss is not None for loss in found)
    return [float(loss or 0.0) for loss in found]


@pytest.mark.timeout(900)
@pytest.mark.long  # many seeds, and ten ranks that start cold
def test_a_run_resized_1_2_4_2_sees_every_sample_once_an_epoch_and_ends_with_the_same_loss(
    stage: Stage,
) -> None:
    stage.answer = lambda report: "resize"
    seen: list[int] = []
    restore = None
    for iteration, world_size in enumerate(SIZES, start=1):
        spec = stage.spec(
            SCRIPT,
            world_size=world_size,
            incarnation=iteration,
            max_iterations=len(SIZES),
            restore=restore,
            restore_iteration=iteration - 1,
        )
        assert stage.run(spec) == [0] * world_size, stage.log(spec)
        restore = str(stage.folder.checkpoint(3, iteration, iteration))
        steps = [
            [
                line.partition(": ")[2].split()
                for line in stage.log(spec, rank).splitlines()
                if line.startswith("saw ")
            ]
            for rank in range(world_size)
        ]
        # Step by step, rank after rank: the order in which the stream was dealt out.
        seen += [int(place) for step in zip(*steps, strict=True) for batch in step for place in batch]
    resized = losses(stage.of(Report)[-1])

    num_epochs = len(seen) // NUM_SAMPLES
    assert num_epochs >= 3
    for epoch in range(num_epochs):
        counts = Counter(seen[epoch * NUM_SAMPLES : (epoch + 1) * NUM_SAMPLES])
        assert counts == Counter(range(NUM_SAMPLES)), f"epoch {epoch}: each sample exactly once"

    stage.answer = lambda report: None
    alone = stage.spec(SCRIPT, incarnation=9, max_iterations=len(SIZES))
    assert stage.run(alone) == [0]
    unresized = losses(stage.of(Report)[-1])
    differences = [one - other for one, other in zip(resized, unresized, strict=True)]
    # 95 % interval of the mean difference, by Student's t with 11 degrees of freedom.
    half = 2.201 * stdev(differences) / NUM_SEEDS**0.5
    noise = stdev(unresized)
    assert abs(mean(differences)) + half < 0.05 * noise, (
        f"resized less unresized: {mean(differences):.2e} +- {half:.2e}; seeds differ by {noise:.2e}"
    )
    assert noise > 1e-3, "seeds do differ, or the interval would say nothing"


def test_a_pause_at_the_same_number_of_ranks_changes_no_bit(stage: Stage) -> None:
    """The CIFAR job: batch norm, momentum, augmentation by chance, a ramp of the rate."""
    script = JOBS / "cifar10/train.py"
    command = (sys.executable, str(script), "--synthetic", "64", "--width", "8", "--batch", "16")
    config = {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 5e-4}

    def run(incarnation: int, restore: str | None, done: int) -> Path:
        spec = stage.spec(
            script,
            world_size=2,
            incarnation=incarnation,
            command=command,
            config=config,
            max_iterations=4,
            restore=restore,
            restore_iteration=done,
        )
        assert stage.run(spec) == [0, 0], stage.log(spec)
        return stage.folder.checkpoint(3, incarnation, stage.goodbye.training_iteration)

    straight = run(1, None, 0)
    stage.answer = lambda report: "pause" if report.training_iteration == 2 else None
    paused = run(2, None, 0)
    stage.answer = lambda report: None
    resumed = run(3, str(paused), 2)
    assert (straight.name, paused.name, resumed.name) == ("checkpoint-4", "checkpoint-2", "checkpoint-4")
    models = [torch.load(folder / "model.pt", weights_only=True) for folder in (straight, resumed, paused)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert not all(torch.equal(models[0][name], models[2][name]) for name in models[0])
    reports = [report.metrics for report in stage.of(Report)]
    assert reports[:4] == reports[4:]
