"""Real ranks of real scripts, each its own process, over a real channel. Few, since each pays for importing torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hpcsched.runtime.checkpoint import read_manifest, verify_files
from hpcsched.wire import Leaving, RankHello, Report, SavedCheckpoint
from tests.support.ranks import LIMIT_S, Stage

SCRIPT = Path(__file__).parent / "small_trial.py"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "run")
    yield made
    made.close()


def lines(log: str, word: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith(word)]


def test_a_trial_leaves_at_one_boundary_and_goes_on_at_any_world_size(stage: Stage) -> None:
    config = {"learning_rate": 0.1, "do": ""}
    stage.answer = lambda report: "resize" if report.training_iteration == 2 else None
    first = stage.spec(SCRIPT, world_size=2, config=config, max_iterations=4, checkpoint_budget=1e9)
    assert stage.run(first) == [0, 0]
    both = [stage.log(first, rank) for rank in (0, 1)]
    assert [len(lines(log, "trained")) for log in both] == [2, 2]
    assert all("left early" in log for log in both)
    assert (stage.goodbye.how, stage.goodbye.training_iteration, stage.goodbye.why) == (
        "preempted",
        2,
        "resize",
    )
    assert stage.checkpoints() == ["checkpoint-1", "checkpoint-2"]
    # A checkpoint is announced after it is complete and before the goodbye; the first while training went on.
    heard = [type(message) for message in stage.heard]
    assert (heard[0], heard[-2:]) == (RankHello, [SavedCheckpoint, Leaving])
    aside, last = stage.of(SavedCheckpoint)
    assert (aside.training_iteration, last.training_iteration) == (1, 2)
    assert aside.blocked_s is not None
    assert last.blocked_s is None
    for iteration in (1, 2):
        folder = stage.folder.checkpoint(3, 1, iteration)
        manifest = read_manifest(folder)
        verify_files(folder, manifest)
        assert (manifest.world_size, manifest.training_iteration, manifest.config) == (2, iteration, config)
        assert {"__0_0.distcp", "__1_0.distcp", "model.pt"} <= manifest.files.keys(), "both ranks wrote"

    stage.answer = lambda report: None
    finals = []
    for incarnation, world_size, iteration in ((2, 3, 2), (3, 1, 1)):
        left_with = lines(both[0], f"trained {iteration}")[0].partition(": ")[2]
        spec = stage.spec(
            SCRIPT,
            world_size=world_size,
            incarnation=incarnation,
            config=config,
            max_iterations=4,
            restore=str(stage.folder.checkpoint(3, 1, iteration)),
            restore_iteration=iteration,
        )
        assert stage.run(spec) == [0] * world_size
        for rank in range(world_size):
            assert lines(stage.log(spec, rank), "restored") == [f"restored {iteration}: {left_with}"]
        assert [report.training_iteration for report in stage.of(Report)[-2:]] == [3, 4]
        assert (stage.goodbye.how, stage.goodbye.training_iteration) == ("completed", 4)
        assert stage.of(RankHello)[-1].restored_iteration == iteration
        finals.append(lines(stage.log(spec), "trained 4")[0])
    # The same data in the same order whatever the world size: only float sums may differ.
    numbers = [[float(number) for number in re.findall(r"-?\d+\.\d+", final)] for final in finals]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)


def test_a_rank_that_raises_ends_at_once_though_the_other_waits_for_it(stage: Stage) -> None:
    spec = stage.spec(SCRIPT, world_size=2, config={"do": "raise on 1", "learning_rate": 0.1})
    waiting, raising = stage.start(spec)
    assert raising.wait(LIMIT_S) == 1
    assert "RuntimeError: the loss is on fire" in stage.log(spec, 1)
    waiting.kill()


def test_an_exception_on_rank_0_is_told_to_the_driver(stage: Stage) -> None:
    spec = stage.spec(SCRIPT, config={"do": "raise on 0", "learning_rate": 0.1})
    assert stage.run(spec) == [1]
    assert stage.goodbye.how == "failed"
    assert "RuntimeError: the loss is on fire" in stage.goodbye.why
    assert stage.checkpoints() == []


def test_a_lost_driver_is_survived_for_a_while_then_the_trial_saves_and_leaves(stage: Stage) -> None:
    spec = stage.spec(
        SCRIPT,
        config={"do": "", "learning_rate": 0.1},
        max_iterations=10**6,
        driver_lost_s=1.0,
        verdict_wait_min_s=0.01,
    )
    (rank,) = stage.start(spec)
    stage.wait_for(Report, lambda report: report.training_iteration >= 3)
    stage.server.close()
    assert rank.wait(LIMIT_S) == 0
    last = int(lines(stage.log(spec), "trained")[-1].split()[1].rstrip(":"))
    assert stage.checkpoints()[-1:] == [f"checkpoint-{last}"] or f"checkpoint-{last}" in stage.checkpoints()
    assert "left early" in stage.log(spec)


def test_signals_do_not_end_a_rank_and_an_order_does_within_an_iteration(stage: Stage) -> None:
    spec = stage.spec(SCRIPT, config={"do": "boundary", "learning_rate": 0.1}, max_iterations=10**6)
    (rank,) = stage.start(spec)
    stage.wait_for(Report)
    rank.terminate()
    rank.send_signal(2)
    stage.wait_for(Report)
    stage.order_leave(spec, "stop")
    assert rank.wait(LIMIT_S) == 0
    assert stage.goodbye.how == "preempted"
    manifest = read_manifest(stage.folder.checkpoint(3, 1, stage.goodbye.training_iteration))
    assert manifest.training_iteration == stage.goodbye.training_iteration


def test_a_script_that_breaks_out_of_the_loop_has_completed(stage: Stage) -> None:
    spec = stage.spec(SCRIPT, config={"do": "break", "learning_rate": 0.1})
    assert stage.run(spec) == [0]
    assert (stage.goodbye.how, stage.goodbye.training_iteration) == ("completed", 2)
    assert stage.checkpoints() == ["checkpoint-2"]


def test_a_script_that_ends_its_process_after_the_loop_has_said_goodbye_before(stage: Stage) -> None:
    """Many scripts do that since their libraries hang at the end."""
    spec = stage.spec(SCRIPT, config={"do": "end at once", "learning_rate": 0.1}, max_iterations=1)
    assert stage.run(spec) == [0]
    assert [type(message) for message in stage.heard] == [RankHello, Report, SavedCheckpoint, Leaving]


def test_a_script_alone_trains_with_its_defaults(tmp_path: Path) -> None:
    environ = {
        name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
    }
    done = subprocess.run(  # noqa: PLW1510  (looked at below)
        [sys.executable, SCRIPT],
        cwd=tmp_path,
        env=environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(lines(done.stdout, "trained")) == 3
    assert re.search(r"^iteration 3  accuracy 3  \(\d+\.\d\d s\)$", done.stdout, re.MULTILINE)
    assert "to the end" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_launch_file_that_is_broken_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "launch.json"
    file.write_bytes(msgspec.json.encode({"trial_id": 1}))
    environ = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "HPCSCHED_LAUNCH": str(file)}
    done = subprocess.run([sys.executable, SCRIPT], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{file}: cannot read what this trial is to do" in done.stderr
