"""Ports, timers, limits of time, best/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcsched.core.actions import SetTimer
from hpcsched.core.enums import TimerKind
from hpcsched.core.ids import TrialId
from hpcsched.driver.best import publish_best
from hpcsched.driver.deadline import limits
from hpcsched.driver.folder import Start, make_run_folder, unmake_run_folder
from hpcsched.driver.ports import Ports
from hpcsched.driver.timers import Timers
from hpcsched.errors import LaunchError, RunFolderError
from hpcsched.runfolder import RunFolder


def test_ports_differ_on_one_node_and_stay_out_of_the_ephemeral_range() -> None:
    ports = Ports(salt="a", ephemeral=(20010, 60999))
    held = [ports.lease("n1") for _ in range(10)]
    assert sorted(held) == list(range(20000, 20010))
    with pytest.raises(LaunchError, match="all 10 ports of n1"):
        ports.lease("n1")
    ports.give_back("n1", 20004)
    assert ports.lease("n1") == 20004


def test_a_port_that_was_given_back_is_not_the_next_one() -> None:
    ports = Ports(salt="a")
    first = ports.lease("n1")
    ports.give_back("n1", first)
    assert ports.lease("n1") != first


def timer(at: float | None, trial: int | None = 1) -> SetTimer:
    return SetTimer("because", TimerKind.START_TIMEOUT, at, None if trial is None else TrialId(trial))


def test_a_timer_set_again_moves_and_one_set_to_none_is_dropped() -> None:
    timers = Timers()
    timers.set(timer(5.0))
    timers.set(timer(9.0))
    timers.set(timer(6.0, trial=2))
    timers.set(timer(None, trial=2))
    assert timers.next_at == 9.0
    assert timers.due(8.0) == []
    (fired,) = timers.due(9.5)
    assert (fired.time, fired.trial_id) == (9.5, 1)
    assert timers.next_at is None


def test_the_earlier_of_file_and_allocation_limits_the_time() -> None:
    def deadline(file: float | None, ends: float | None, *, chain: bool = False) -> float | None:
        return limits(file_deadline_s=file, allocation_ends_s=ends, reserve_s=10, chain=chain).deadline_s

    assert deadline(None, None) is None
    assert deadline(100, None) == 100
    assert deadline(100, 200) == 100
    assert deadline(195, 200) == 190
    assert deadline(None, 200) == 190
    assert deadline(500, 200, chain=True) == 500


def test_a_run_folder_is_refused_when_it_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty"):
        make_run_folder(tmp_path, "text", start=Start("/here"))
    with pytest.raises(RunFolderError, match="no run here to resume"):
        make_run_folder(tmp_path, "text", start=None)


@pytest.mark.parametrize("was_there", [True, False])
def test_a_run_folder_is_unmade_only_as_long_as_nothing_was_recorded(tmp_path: Path, was_there: bool) -> None:
    root = tmp_path / "run"
    if was_there:
        root.mkdir()
    folder = make_run_folder(root, "text", start=Start("/here"))
    segment = folder.segment(1)
    segment.write_text("one record\n")
    unmake_run_folder(folder, keep_root=was_there)
    assert folder.experiment.exists()
    assert segment.exists()
    segment.write_text("half a rec")
    unmake_run_folder(folder, keep_root=was_there)
    assert root.exists() is was_there
    assert make_run_folder(root, "another", start=Start("/here")).experiment.read_text() == "another"


def test_what_a_user_has_put_into_a_run_folder_is_not_unmade(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", "text", start=Start("/here"))
    (folder.root / "notes.txt").write_text("mine")
    unmake_run_folder(folder, keep_root=False)
    assert [path.name for path in folder.root.iterdir()] == ["notes.txt"]


def test_a_run_folder_is_the_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", "text", start=Start("/here"))
    for path in (folder.root, folder.journal, folder.keys, folder.trials, folder.control):
        assert path.stat().st_mode & 0o777 == 0o700


def make_checkpoint(root: Path, content: str) -> Path:
    (root / "shards").mkdir(parents=True)
    (root / "shards" / "0").write_text(content)
    (root / "model.pt").write_text(content)
    (root / "manifest.json").write_text("{}")
    return root


def test_a_new_best_replaces_the_old_one_in_one_rename(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    facts = {"trial_id": 1, "incarnation": 1, "training_iteration": 3}
    publish_best(folder, make_checkpoint(tmp_path / "a", "old"), facts)
    publish_best(folder, make_checkpoint(tmp_path / "b", "new"), {**facts, "training_iteration": 4})
    assert (folder.best / "model.pt").read_text() == "new"
    assert (folder.best / "checkpoint" / "shards" / "0").read_text() == "new"
    assert json.loads((folder.best / "best.json").read_text())["training_iteration"] == 4
    assert [path.name for path in tmp_path.glob(".best*")] == [".best-1-1-4"]


def test_best_outlives_the_checkpoint_it_came_from(tmp_path: Path) -> None:
    import shutil

    folder = RunFolder(tmp_path)
    source = make_checkpoint(tmp_path / "a", "kept")
    publish_best(folder, source, {"trial_id": 1, "incarnation": 1, "training_iteration": 3})
    shutil.rmtree(source)
    assert (folder.best / "model.pt").read_text() == "kept"


@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "not there"])
def test_a_checkpoint_that_is_not_there_leaves_the_old_best(tmp_path: Path, is_empty: bool) -> None:
    """A folder that somebody has deleted, or a file system that was away."""
    folder = RunFolder(tmp_path)
    facts = {"trial_id": 1, "incarnation": 1, "training_iteration": 3}
    publish_best(folder, make_checkpoint(tmp_path / "a", "old"), facts)
    if is_empty:
        (tmp_path / "b").mkdir()
    with pytest.raises(FileNotFoundError, match="the checkpoint is not there"):
        publish_best(folder, tmp_path / "b", {**facts, "trial_id": 2})
    assert (folder.best / "model.pt").read_text() == "old"
    assert [path.name for path in tmp_path.glob(".best*")] == [".best-1-1-3"]


def test_a_best_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    facts = {"trial_id": 1, "incarnation": 1, "training_iteration": 3}
    publish_best(folder, make_checkpoint(tmp_path / "a", "old"), facts)
    with pytest.raises(TypeError):
        publish_best(folder, make_checkpoint(tmp_path / "b", "new"), {**facts, "trial_id": 2, "x": object()})
    assert (folder.best / "model.pt").read_text() == "old"
