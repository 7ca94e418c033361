"""A trial's life on one rank, in this process: what the script sees and what the driver hears."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcsched.errors import CheckpointError, TrialError
from hpcsched.launchspec import LaunchSpec, RestorePoint
from hpcsched.runfolder import RunFolder
from hpcsched.runtime.checkpoint import read_manifest
from hpcsched.runtime.metrics import read_metrics
from hpcsched.wire import CheckpointTrouble, Leaving, RankHello, Report, SavedCheckpoint
from tests.support.groups import HeardLine, Objects, file_size_limit, launch, make_trial


def checkpoints(spec: LaunchSpec) -> list[str]:
    folder = RunFolder(Path(spec.run_dir)).incarnation(spec.trial_id, spec.incarnation)
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def run(spec: LaunchSpec, line: HeardLine, **objects: Any) -> list[int]:
    """Train with `accuracy` = the iteration; returns the iterations that were done."""
    trial = make_trial(spec, line)
    trial.track(**(objects or Objects().named))
    done = []
    for iteration in trial:
        trial.report(accuracy=iteration)
        done.append(iteration)
    return done


def test_a_trial_runs_to_r_saves_and_says_goodbye(tmp_path: Path) -> None:
    line = HeardLine()
    spec = launch(tmp_path)
    assert run(spec, line) == [1, 2, 3, 4]
    assert [type(message) for message in line.said] == [RankHello] + [Report] * 4 + [SavedCheckpoint, Leaving]
    (hello,) = line.of(RankHello)
    (saved,) = line.of(SavedCheckpoint)
    assert 0 < hello.state_bytes <= saved.num_bytes, "a checkpoint holds text besides"
    assert (line.goodbye.how, line.goodbye.training_iteration) == ("completed", 4)
    assert [report.seq for report in line.of(Report)] == [1, 2, 3, 4]
    assert checkpoints(spec) == ["checkpoint-4"]
    assert line.num_flushed == len(line.said), "the script may end its process next"


def test_a_trial_that_is_asked_to_leave_saves_first_and_goes_on_later(tmp_path: Path) -> None:
    line = HeardLine(leave_after=2)
    spec = launch(tmp_path)
    objects = Objects()
    assert run(spec, line, **objects.named) == [1, 2]
    assert [type(message) for message in line.said[-2:]] == [SavedCheckpoint, Leaving]
    assert (line.goodbye.how, line.goodbye.training_iteration, line.goodbye.why) == ("preempted", 2, "pause")

    folder = RunFolder(tmp_path).checkpoint(3, 1, 2)
    again = launch(tmp_path, incarnation=2, restore=str(folder), restore_iteration=2)
    fresh = Objects(seed=1, steps=0)
    second = HeardLine()
    assert run(again, second, **fresh.named) == [3, 4]
    assert fresh.numbers() == objects.numbers()
    (hello,) = second.of(RankHello)
    assert hello.restored_iteration == 2
    assert {"restore", "prepare"} <= hello.setup_s.keys()


def test_a_trial_asked_before_its_first_iteration_leaves_without_a_new_checkpoint(tmp_path: Path) -> None:
    line = HeardLine(leave_after=0)
    spec = launch(tmp_path)
    assert run(spec, line) == []
    assert (line.goodbye.how, line.goodbye.training_iteration) == ("preempted", 0)
    assert checkpoints(spec) == []


def test_a_trial_asked_to_leave_at_its_last_iteration_has_completed(tmp_path: Path) -> None:
    line = HeardLine(leave_after=4)
    assert run(launch(tmp_path), line) == [1, 2, 3, 4]
    assert line.goodbye.how == "completed"


def test_a_boundary_within_an_iteration_saves_and_ends_the_process(tmp_path: Path) -> None:
    line = HeardLine()
    spec = launch(tmp_path)
    trial = make_trial(spec, line)
    trial.track(**Objects().named)
    done = []
    with pytest.raises(SystemExit) as end:
        for iteration in trial:
            if iteration == 3:
                line.leave_after = 0
            trial.boundary()
            done.append(iteration)
            trial.report(accuracy=1)
    assert end.value.code == 0
    assert done == [1, 2]
    assert (line.goodbye.how, line.goodbye.training_iteration) == ("preempted", 2)
    manifest = read_manifest(RunFolder(tmp_path).checkpoint(3, 1, 2))
    assert (manifest.training_iteration, manifest.within_iteration) == (2, True)


def test_saves_keep_to_their_budget(tmp_path: Path) -> None:
    """With a share of 1e9 every report is followed by a save; with 0 only the end is."""
    for share, saves in ((1e9, [1, 2, 3, 4]), (0.0, [4])):
        line = HeardLine()
        run(launch(tmp_path / str(share), checkpoint_budget=share, checkpoint_background=False), line)
        assert [saved.training_iteration for saved in line.of(SavedCheckpoint)] == saves


def test_a_save_that_fails_is_told_and_training_goes_on(tmp_path: Path) -> None:
    line = HeardLine()
    spec = launch(tmp_path, checkpoint_budget=1e9, checkpoint_background=False)
    trial = make_trial(spec, line)
    trial.track(**Objects(features=500).named)
    done = []
    for iteration in trial:
        done.append(iteration)
        trial.report(accuracy=iteration)
        if iteration == 2:
            limit = file_size_limit(1000)
            limit.__enter__()
        if iteration == 3:
            limit.__exit__(None, None, None)
    assert done == [1, 2, 3, 4]
    (trouble,) = line.of(CheckpointTrouble)
    assert trouble.training_iteration == 2
    assert "File too large" in trouble.why
    assert [saved.training_iteration for saved in line.of(SavedCheckpoint)] == [1, 3, 4]
    assert checkpoints(spec) == ["checkpoint-1", "checkpoint-3", "checkpoint-4"]


def test_metrics_may_be_numbers_tensors_and_arrays(tmp_path: Path) -> None:
    line = HeardLine()
    trial = make_trial(launch(tmp_path, max_iterations=1), line)
    trial.track(**Objects().named)
    for _ in trial:
        trial.report(
            accuracy=torch.tensor(0.5, requires_grad=True),
            a=np.float32(0.25),
            b=np.array([1.5]),
            c=True,
            d=torch.tensor([[2.0]]),
            e=float("nan"),
            f=torch.tensor(float("inf")),
            g=-(10**400),
        )
    (report,) = line.of(Report)
    assert report.metrics == {
        "accuracy": 0.5, "a": 0.25, "b": 1.5, "c": 1.0, "d": 2.0, "e": None, "f": None, "g": None,
    }  # fmt: skip
    assert report.problems == {"e": "nan", "f": "inf", "g": "-inf"}


@pytest.mark.parametrize("value", ["0.5", None, torch.ones(2), [1.0], np.ones(3), "x" * 100_000])
def test_a_metric_that_is_no_number_is_named(tmp_path: Path, value: Any) -> None:
    trial = make_trial(launch(tmp_path), HeardLine())
    trial.track(**Objects().named)
    with pytest.raises(TrialError, match=r"report\(accuracy") as raised:
        for _ in trial:
            trial.report(accuracy=value)
    assert len(str(raised.value)) < 300


GpuError = getattr(torch, "AcceleratorError", RuntimeError)  # before torch 2.8 it had no name


class Failed:
    """A tensor of one element on a GPU where an earlier kernel has failed."""

    def numel(self) -> int:
        return 1

    def item(self) -> float:
        raise GpuError("CUDA error: device-side assert triggered")


def test_an_error_of_the_gpu_that_shows_when_a_metric_is_read_is_told_as_what_it_is() -> None:
    with pytest.raises(GpuError) as raised:
        read_metrics({"loss": 1.0, "accuracy": Failed()})
    assert str(raised.value) == "CUDA error: device-side assert triggered"
    assert raised.value.__notes__ == ["(raised while trial.report() read the metric 'accuracy')"]


def test_metrics_in_a_dict_are_asked_for_by_name(tmp_path: Path) -> None:
    trial = make_trial(launch(tmp_path), HeardLine())
    trial.track(**Objects().named)
    with pytest.raises(TrialError, match=r"trial\.report\(\*\*metrics\)"):
        for _ in trial:
            trial.report({"accuracy": 1.0})


def test_a_first_report_without_the_experiments_metric_is_found_out_at_once(tmp_path: Path) -> None:
    trial = make_trial(launch(tmp_path), HeardLine())
    trial.track(**Objects().named)
    with pytest.raises(TrialError, match="gave loss, but the experiment decides on 'accuracy'"):
        for _ in trial:
            trial.report(loss=1.0)


def test_a_trial_that_never_reports_fails_at_its_end(tmp_path: Path) -> None:
    trial = make_trial(launch(tmp_path), HeardLine())
    trial.track(**Objects().named)
    with pytest.raises(TrialError, match=r"never called trial\.report"):
        for _ in trial:
            pass


def test_an_iteration_without_a_report_is_allowed(tmp_path: Path) -> None:
    line = HeardLine()
    trial = make_trial(launch(tmp_path), line)
    trial.track(**Objects().named)
    for iteration in trial:
        if iteration % 2 == 0:
            trial.report(accuracy=iteration)
    assert [report.training_iteration for report in line.of(Report)] == [2, 4]


def test_a_second_report_in_an_iteration_is_an_error(tmp_path: Path) -> None:
    trial = make_trial(launch(tmp_path), HeardLine())
    trial.track(**Objects().named)
    with pytest.raises(TrialError, match="called twice in iteration 1"):
        for _ in trial:
            trial.report(accuracy=1)
            trial.report(accuracy=2)


def test_what_must_be_in_the_loop_is_an_error_outside(tmp_path: Path) -> None:
    trial = make_trial(launch(tmp_path), HeardLine())
    with pytest.raises(TrialError, match="outside of the loop"):
        trial.report(accuracy=1)
    with pytest.raises(TrialError, match="outside of the loop"):
        trial.boundary()
    with pytest.raises(TrialError, match="was not called before the loop"):
        next(iter(trial))


def test_the_loop_is_one(tmp_path: Path) -> None:
    trial = make_trial(None, HeardLine())
    assert next(iter(trial)) == 1
    with pytest.raises(TrialError, match="second time"):
        next(iter(trial))


def test_a_missing_hyperparameter_says_which_there_are(tmp_path: Path) -> None:
    trial = make_trial(launch(tmp_path), HeardLine(), momentum=0.9)
    assert trial.config == {"learning_rate": 0.1, "momentum": 0.9}
    with pytest.raises(TrialError, match=r"no 'width' \(it has learning_rate, momentum\)"):
        trial.config["width"]


def test_an_object_without_state_cannot_be_tracked(tmp_path: Path) -> None:
    trial = make_trial(launch(tmp_path), HeardLine())
    with pytest.raises(TrialError, match="thing is a object without state_dict"):
        trial.track(thing=object())


def test_a_checkpoint_of_another_iteration_than_promised_is_refused(tmp_path: Path) -> None:
    run(launch(tmp_path), HeardLine(leave_after=2))
    folder = RunFolder(tmp_path).checkpoint(3, 1, 2)
    trial = make_trial(launch(tmp_path, incarnation=2, restore=str(folder), restore_iteration=3), HeardLine())
    with pytest.raises(CheckpointError, match="of iteration 2, expected 3"):
        trial.track(**Objects().named)


@pytest.mark.parametrize("harm", ["delete", "alter", "cut off the manifest"])
def test_a_checkpoint_that_is_gone_or_damaged_is_passed_over_and_said(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    objects = Objects()
    trial = make_trial(launch(tmp_path, checkpoint_budget=1e9, checkpoint_background=False), HeardLine())
    trial.track(**objects.named)
    numbers = {}
    for iteration in trial:
        objects.train()
        numbers[iteration] = objects.numbers()
        trial.report(accuracy=iteration)
    newest, older = (RunFolder(tmp_path).checkpoint(3, 1, iteration) for iteration in (3, 2))
    match harm:
        case "delete":
            shutil.rmtree(newest)
        case "alter":
            (newest / "__0_0.distcp").write_bytes(b"something else")
        case _:
            (newest / "manifest.json").write_bytes(b'{"format": 1')
    line = HeardLine()
    spec = launch(
        tmp_path,
        incarnation=2,
        restore=str(newest),
        restore_iteration=3,
        fallbacks=(RestorePoint(str(older), 2, 1),),
    )
    fresh = Objects(seed=1, steps=0)
    again = make_trial(spec, line)
    again.track(model=fresh.net, optimizer=fresh.adam)
    again.track(schedule=fresh.schedule)
    assert fresh.numbers() == numbers[2]
    done = []
    for iteration in again:
        again.report(accuracy=iteration)
        done.append(iteration)
    assert done == [3, 4]
    (hello,) = line.of(RankHello)
    assert hello.restored_iteration == 2
    ((path, why),) = hello.lost
    assert path == str(newest)
    assert str(newest) in why
    assert "cannot go on from iteration 3" in caplog.text
    assert f"goes on from iteration 2 ({older})" in caplog.text


def test_without_any_usable_checkpoint_a_trial_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = HeardLine()
    spec = launch(tmp_path, incarnation=2, restore=str(tmp_path / "gone"), restore_iteration=3)
    assert run(spec, line) == [1, 2, 3, 4]
    (hello,) = line.of(RankHello)
    assert (hello.restored_iteration, len(hello.lost)) == (0, 1)
    assert "goes on from scratch" in caplog.text
    assert checkpoints(spec) == ["checkpoint-4"]


def test_a_disk_that_does_not_answer_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(launch(tmp_path), HeardLine(leave_after=2))
    folder = RunFolder(tmp_path).checkpoint(3, 1, 2)

    def stale(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("hpcsched.runtime.checkpoint.hashlib.file_digest", stale)
    spec = launch(tmp_path, incarnation=2, restore=str(folder), restore_iteration=2)
    trial = make_trial(spec, HeardLine())
    with pytest.raises(CheckpointError, match="Stale file handle"):
        trial.track(**Objects().named)


def test_the_wait_for_a_verdict_follows_the_iteration_within_limits(tmp_path: Path) -> None:
    line = HeardLine()
    run(launch(tmp_path, verdict_wait_min_s=0.3, verdict_wait_max_s=5.0), line)
    assert line.waits == [0.3] * 4
