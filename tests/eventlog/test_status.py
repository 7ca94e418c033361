from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from hpcsched.core.actions import KillTrial, StartTrial
from hpcsched.core.enums import ExperimentState
from hpcsched.errors import RunFolderError
from hpcsched.eventlog.lease import acquire
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Step
from hpcsched.eventlog.state import RunFollower
from hpcsched.eventlog.status import read_status
from hpcsched.runfolder import RunFolder
from tests.support.journals import rewrite
from tests.support.runs import Script, a_run, go_on

ROUGH = Script(crash=(1,), hang=(2,), nan=(3,))


def test_the_status_of_a_finished_run_has_the_promised_form(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=ROUGH)
    status = json.loads(msgspec.json.encode(read_status(folder).status))
    best = status["best"]
    counts = status["counts"]
    seconds = status["atom_seconds"]
    assert list(status) == [
        "state", "policy", "deadline_s", "finished_s", "num_atoms", "trials", "best", "counts", "atom_seconds", "aside",
        "checkpoint_bytes", "stalls", "why", "num_crashes",
    ]  # fmt: skip
    assert (status["state"], status["policy"], status["deadline_s"], status["num_atoms"]) == (
        "finished", "hypersched", 30.0, 4,
    )  # fmt: skip
    assert list(best) == ["trial_id", "metric", "training_iteration", "config", "checkpoint", "saved_s"]
    assert best["checkpoint"] == str(tmp_path / "best" / "checkpoint")
    assert best["config"]["momentum"] == 0.9
    assert best["metric"] == pytest.approx(
        best["config"]["learning_rate"] * (1 - 0.7 ** best["training_iteration"]), abs=1e-6
    )
    assert 0 < best["saved_s"] <= status["finished_s"] <= 30.0
    assert status["num_crashes"] == 2, "one crashed, one hung"
    assert status["why"] == "the search is exhausted and nobody waits"
    assert set(status["trials"]) == {
        "pending", "starting", "running", "preempting", "paused", "stopped", "completed", "failed",
    }  # fmt: skip
    assert sum(status["trials"].values()) == 12
    assert set(counts) == {"started", "paused", "promoted", "resized_up", "resized_down", "failed", "killed"}
    assert {"training", "restart", "idle", "quarantined"} <= set(seconds)
    assert sum(seconds.values()) == pytest.approx(4 * status["finished_s"])
    assert seconds["quarantined"] == pytest.approx(
        3.0
    )  # from 2 s after the kill until its node speaks, 5 s after


def test_the_counts_are_those_of_the_logged_actions(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=ROUGH)
    actions = [
        action for record in read_journal(folder) if isinstance(record, Step) for action in record.actions
    ]
    counts = read_status(folder).status.counts
    assert counts["started"] == len({action.trial_id for action in actions if isinstance(action, StartTrial)})
    assert counts["killed"] == sum(isinstance(action, KillTrial) for action in actions) == 1


def test_a_run_is_running_while_its_driver_holds_the_lease(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    lease = acquire(folder)
    assert read_status(folder).status.state is ExperimentState.RUNNING
    assert read_status(folder).status.finished_s is None
    lease.release()
    assert read_status(folder).status.state is ExperimentState.SUSPENDED


def test_a_run_whose_driver_died_without_a_word_is_suspended_and_goes_on(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    assert read_status(folder).status.state is ExperimentState.SUSPENDED
    go_on(folder, at=8.0)
    assert read_status(folder).status.state is ExperimentState.FINISHED


def test_a_driver_that_dies_after_the_core_has_finished_leaves_a_finished_run(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    num_records = sum(1 for _ in read_journal(folder))
    rewrite(folder, 1, {num_records - 1: None})
    assert read_status(folder).status.state is ExperimentState.FINISHED


def test_the_checkpoint_is_the_trials_own_while_best_holds_another(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    (folder.best / "best.json").write_text('{"trial_id": 0, "incarnation": 1, "training_iteration": 1}')
    best = read_status(folder).status.best
    assert best is not None
    assert best.checkpoint.startswith(str(folder.trials / str(best.trial_id)))
    assert Path(best.checkpoint).is_dir()


def test_a_follower_ends_where_a_reader_of_the_whole_ends(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a", script=ROUGH)
    whole = folder.segment(1).read_bytes()
    part = RunFolder(tmp_path / "b")
    part.journal.mkdir(parents=True)
    follower = RunFollower(part)
    for cut in (*range(0, len(whole), 997), len(whole)):
        part.segment(1).write_bytes(whole[:cut])
        state = follower.look()
    assert state.num_events == read_status(folder).run.num_events
    assert state.best == read_status(folder).run.best
    assert state.scheduler.counts == read_status(folder).run.scheduler.counts


def test_a_log_that_this_core_answers_otherwise_is_still_shown(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    at, step = next(
        (k, record)
        for k, record in enumerate(read_journal(folder))
        if isinstance(record, Step) and record.actions
    )
    rewrite(folder, 1, {at: msgspec.structs.replace(step, actions=step.actions[:-1])})
    standing = read_status(folder)
    assert standing.run.difference is not None
    assert standing.status.state is ExperimentState.FINISHED


def test_no_run_folder_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no journal here"):
        read_status(RunFolder(tmp_path))
