"""`best/` and deletions, beside the loop. The disk is played by a function that waits until it is let go."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcsched.driver.best import publish_best
from hpcsched.driver.filing import Filing
from hpcsched.errors import RunFolderError
from hpcsched.runfolder import RunFolder

LIMIT_S = 20.0


class Disk:
    """Publishing begins, is held until `go` is set, and fails `num_failures` times."""

    def __init__(self, num_failures: int = 0) -> None:
        self.began = threading.Semaphore(0)
        self.go = threading.Event()
        self.made: list[int] = []
        self.num_failures = num_failures
        self.error: Exception = OSError(errno.ENOSPC, "No space left on device")

    def publish(
        self, folder: RunFolder, source: Path, facts: dict[str, Any], still_ours: Callable[[], bool]
    ) -> None:
        self.began.release()
        assert self.go.wait(LIMIT_S)
        if self.num_failures:
            self.num_failures -= 1
            raise self.error
        assert source.exists(), "deleted while best/ is made of it"
        self.made.append(facts["number"])


class Case:
    def __init__(self, folder: Path, disk: Disk, retry_s: float = 0.01) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.disk = disk
        self.filing = Filing(
            RunFolder(folder),
            self.said.append,
            still_ours=lambda: True,
            publish=disk.publish,
            retry_s=retry_s,
        )

    def publish(self, number: int) -> Path:
        source = self.folder / f"checkpoint-{number}"
        source.mkdir()
        self.filing.publish(source, {"number": number})
        return source


def gone(path: Path) -> bool:
    """Within the limit."""
    wait = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if not path.exists():
            return True
        wait.wait(0.01)
    return False


def test_of_the_bests_that_wait_only_the_newest_is_made(tmp_path: Path) -> None:
    case = Case(tmp_path, disk := Disk())
    case.publish(1)
    assert disk.began.acquire(timeout=LIMIT_S)
    for number in (2, 3, 4):
        case.publish(number)
    disk.go.set()
    assert case.filing.close(LIMIT_S)
    assert disk.made == [1, 4]
    assert case.said == []


def test_a_checkpoint_is_not_deleted_while_best_is_made_of_it_and_others_are(tmp_path: Path) -> None:
    case = Case(tmp_path, disk := Disk())
    other = tmp_path / "other"
    other.mkdir()
    source = case.publish(1)
    assert disk.began.acquire(timeout=LIMIT_S)
    case.filing.delete(other)
    assert gone(other)
    case.filing.delete(source)
    case.publish(2)
    disk.go.set()
    assert case.filing.close(LIMIT_S)
    assert disk.made == [1, 2]
    assert not source.exists()


def test_a_best_that_cannot_be_made_is_tried_again_and_said_once(tmp_path: Path) -> None:
    case = Case(tmp_path, disk := Disk(num_failures=3))
    disk.go.set()
    case.publish(1)
    for _ in range(4):
        assert disk.began.acquire(timeout=LIMIT_S)
    assert case.filing.close(LIMIT_S)
    assert disk.made == [1]
    assert [text.split(":")[0] for text in case.said] == [
        "best/ could not be updated, the old one stands",
        "best/ has been updated now",
    ]


def test_a_journal_that_cannot_be_read_when_it_counts_is_a_failure_as_any_other(tmp_path: Path) -> None:
    """Whose folder it is cannot be told then. Without this the thread would be gone, and with it every later best."""
    case = Case(tmp_path, disk := Disk(num_failures=1))
    disk.error = RunFolderError("journal: cannot be read: Stale file handle")
    disk.go.set()
    case.publish(1)
    assert disk.began.acquire(timeout=LIMIT_S)
    assert case.filing.close(LIMIT_S)
    assert disk.made == [1]


def test_the_end_tries_once_more_and_says_what_is_left(tmp_path: Path) -> None:
    case = Case(tmp_path, disk := Disk(num_failures=10), retry_s=1000.0)
    disk.go.set()
    case.publish(1)
    assert disk.began.acquire(timeout=LIMIT_S)
    assert not case.filing.close(LIMIT_S)
    assert disk.began.acquire(timeout=0)
    assert not disk.began.acquire(timeout=0), "twice is all"


def test_the_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    case = Case(tmp_path, disk := Disk())
    case.publish(1)
    assert not case.filing.close(0.05)
    disk.go.set()
    assert case.filing.close(LIMIT_S)


def test_a_try_that_fails_while_the_end_waits_is_not_the_last(tmp_path: Path) -> None:
    case = Case(tmp_path, disk := Disk(num_failures=1), retry_s=1000.0)
    case.publish(1)
    assert disk.began.acquire(timeout=LIMIT_S)
    assert not case.filing.close(0.05)
    disk.go.set()
    assert case.filing.close(LIMIT_S)
    assert disk.made == [1]


def test_nothing_more_is_begun_for_a_folder_that_is_another_drivers(tmp_path: Path) -> None:
    case = Case(tmp_path, disk := Disk())
    case.publish(1)
    assert disk.began.acquire(timeout=LIMIT_S)
    doomed = case.publish(2)
    case.filing.drop()
    case.filing.delete(doomed)
    disk.go.set()
    assert case.filing.close(LIMIT_S)
    assert disk.made == [1]
    assert doomed.exists()


def test_a_driver_that_was_superseded_while_it_copied_leaves_best_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    facts = {"trial_id": 1, "incarnation": 1, "training_iteration": 3}
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").write_text(name)
        (tmp_path / name / "manifest.json").write_text("{}")
    publish_best(folder, tmp_path / "new", {**facts, "trial_id": 2})
    publish_best(folder, tmp_path / "old", facts, lambda: False)
    assert (folder.best / "model.pt").read_text() == "new"
    assert sorted(path.name for path in tmp_path.glob(".best*")) == [".best-2-1-3"]


@pytest.mark.parametrize("num", [0, 3])
def test_closing_twice_is_closing_once(tmp_path: Path, num: int) -> None:
    case = Case(tmp_path, disk := Disk())
    disk.go.set()
    for number in range(num):
        case.publish(number)
        case.filing.delete(tmp_path / f"{number}")
    assert case.filing.close(LIMIT_S)
    assert case.filing.close(LIMIT_S)


def test_a_folder_that_cannot_be_looked_into_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    """In the loop's thread a stale handle ended the run."""
    case = Case(tmp_path, Disk())
    unreadable = tmp_path / ("x" * 300)  # ENAMETOOLONG, for ESTALE cannot be had
    whole = tmp_path / "whole"
    left, kept = whole / "checkpoint-3.tmp-1", whole / "checkpoint-2"
    for path in (left, kept):
        path.mkdir(parents=True)
    for path in (unreadable, tmp_path / "not there", unreadable, whole):
        case.filing.tidy(path)
    case.filing.delete(unreadable)
    assert case.filing.close(LIMIT_S)
    assert [text.split(":")[0] for text in case.said] == ["unfinished checkpoints may stay behind"]
    assert list(whole.iterdir()) == [kept]
