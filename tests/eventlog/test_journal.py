from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcsched.errors import HpcschedError, RunFolderError, SupersededError
from hpcsched.eventlog import journal as journal_module
from hpcsched.eventlog.journal import JournalWriter
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Note
from tests.support.journals import a_header, a_step, run_folder, write_segment

LIMIT_S = 20.0


def wait(condition: Callable[[], bool], writer: JournalWriter) -> None:
    """Wait for the writer's thread with its own condition, at most LIMIT_S."""
    done = threading.Event()
    deadline = threading.Timer(LIMIT_S, done.set)
    deadline.start()
    try:
        while not condition():
            assert not done.is_set(), f"waited {LIMIT_S} s; trouble: {writer.trouble}"
            done.wait(0.005)
    finally:
        deadline.cancel()


def test_what_is_appended_is_read_back_in_order_and_announced_in_order(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    announced: list[int] = []
    counts: list[int] = []
    writer = JournalWriter(folder, a_header(), durable=counts.append)
    numbers = [writer.append(a_step(n), lambda n=n: announced.append(n)) for n in range(1, 3001)]
    assert writer.close()
    assert numbers == list(range(2, 3002))
    assert announced == list(range(1, 3001))
    assert counts == sorted(counts)
    assert counts[-1] == 3001
    assert list(read_journal(folder)) == [a_header(), *(a_step(n) for n in range(1, 3001))]


def test_the_segment_and_its_folder_are_readable_by_the_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        writer = JournalWriter(run_folder(tmp_path), a_header())
    finally:
        os.umask(before)
    writer.close()
    assert writer.file.stat().st_mode & 0o777 == 0o600
    assert writer.file.parent.stat().st_mode & 0o777 == 0o700


def test_nothing_is_announced_before_its_sync_and_a_stall_loses_nothing(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    may_sync = threading.Event()
    may_sync.set()
    syncs: list[int] = []

    def sync(fd: int) -> None:
        assert may_sync.wait(LIMIT_S)
        syncs.append(os.fstat(fd).st_size)

    announced: list[int] = []
    writer = JournalWriter(folder, a_header(), sync=sync, group_records=1000)
    may_sync.clear()
    for n in range(1, 4001):
        writer.append(a_step(n), lambda n=n: announced.append(n))
    assert announced == []
    assert writer.num_durable == 1
    assert writer.num_pending == 4000
    assert writer.waiting_s > 0
    may_sync.set()
    assert writer.wait_durable(4001, LIMIT_S)
    assert writer.close()
    assert announced == list(range(1, 4001))
    assert 1 + 4 <= len(syncs) <= 1 + 6  # the header, then groups of at most 1,000
    assert sum(1 for _ in read_journal(folder)) == 4001


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[Callable[[], None]]:
    """The kernel refuses to let a file grow beyond this (EFBIG): what a full disk does, partial writes included."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield lift
    finally:
        lift()
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_is_a_value_the_file_stays_whole_and_writing_goes_on_when_there_is_space(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    announced: list[int] = []
    writer = JournalWriter(folder, a_header(), retry_s=0.01)
    writer.append(a_step(1), lambda: announced.append(1))
    assert writer.wait_durable(2, LIMIT_S)
    whole = writer.file.stat().st_size
    with file_size_limit(whole + 100) as lift:
        writer.append(a_step(2), lambda: announced.append(2))
        wait(lambda: writer.trouble is not None and writer.trouble.num_tries > 2, writer)
        trouble = writer.trouble
        assert trouble is not None
        assert trouble.errno == errno.EFBIG
        assert str(writer.file) in trouble.what
        assert announced == [1]
        writer.append(a_step(3), lambda: announced.append(3))  # the loop goes on deciding
        wait(lambda: writer.file.stat().st_size == whole, writer)
        assert list(read_journal(folder)) == [a_header(), a_step(1)]
        lift()
        assert writer.wait_durable(4, LIMIT_S)
    assert writer.trouble is None
    assert writer.close()
    assert announced == [1, 2, 3]
    assert list(read_journal(folder)) == [a_header(), a_step(1), a_step(2), a_step(3)]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.ESTALE])
def test_after_a_failed_sync_the_same_bytes_are_written_again(tmp_path: Path, number: int) -> None:
    folder = run_folder(tmp_path)
    failures = [OSError(number, os.strerror(number))] * 3

    def sync(fd: int) -> None:
        if writer_is_up and failures:
            raise failures.pop()
        os.fdatasync(fd)

    writer_is_up = False
    writer = JournalWriter(folder, a_header(), sync=sync, retry_s=0.01)
    writer_is_up = True
    writer.append(a_step(1))
    assert writer.wait_durable(2, LIMIT_S)
    assert not failures
    assert writer.close()
    assert list(read_journal(folder)) == [a_header(), a_step(1)]


def test_closing_while_the_disk_is_in_trouble_ends_in_time_and_says_no(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)

    def sync(fd: int) -> None:
        if writer_is_up:
            raise OSError(errno.EIO, "no")

    writer_is_up = False
    writer = JournalWriter(folder, a_header(), sync=sync, retry_s=0.01)
    writer_is_up = True
    writer.append(a_step(1))
    assert not writer.close(timeout_s=0.2)
    assert list(read_journal(folder)) == [a_header()]


def test_two_drivers_never_begin_the_same_life(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    JournalWriter(folder, a_header()).close()
    with pytest.raises(RunFolderError, match="another driver"):
        JournalWriter(folder, a_header())
    assert list(read_journal(folder)) == [a_header()]


def test_a_journal_that_cannot_be_begun_is_an_input_error_and_leaves_nothing(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    with file_size_limit(100), pytest.raises(RunFolderError, match="first record cannot be written"):
        JournalWriter(folder, a_header())
    assert list(folder.journal.iterdir()) == []
    JournalWriter(folder, a_header()).close()


def test_a_driver_that_wakes_after_another_has_begun_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path)
    writer = JournalWriter(folder, a_header())
    writer.append(a_step(1))
    assert writer.wait_durable(2, LIMIT_S)
    write_segment(folder, 2, b"")
    now = journal_module._clock()
    monkeypatch.setattr(journal_module, "_clock", lambda: now + 60.0)  # it was stopped for a minute
    before = writer.file.read_bytes()
    writer.append(a_step(2))
    wait(lambda: writer.superseded, writer)
    assert writer.file.read_bytes() == before
    with pytest.raises(SupersededError, match="writes nothing more"):
        writer.append(a_step(3))
    assert not writer.close()


def test_a_folder_that_cannot_be_looked_at_for_a_while_is_trouble_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path)
    writer = JournalWriter(folder, a_header(), retry_s=0.01)

    def stale(_: object) -> list[int]:
        raise RunFolderError("the folder") from OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(journal_module, "LOOK_AROUND_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "segments_of", stale)
        writer.append(a_step(1))
        wait(lambda: writer.trouble is not None, writer)
    assert writer.close()
    assert list(read_journal(folder)) == [a_header(), a_step(1)]


@pytest.mark.parametrize("what", ["the folder", "the file"])
def test_a_journal_that_is_gone_takes_no_records_until_it_is_back(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "LOOK_AROUND_S", 0.0)
    folder = run_folder(tmp_path / "run")
    writer = JournalWriter(folder, a_header(), retry_s=0.01)
    gone = folder.root if what == "the folder" else writer.file
    gone.rename(tmp_path / "elsewhere")
    writer.append(a_step(1))
    wait(lambda: writer.trouble is not None and writer.trouble.num_tries > 2, writer)
    assert writer.trouble is not None
    assert "deleted or moved away" in writer.trouble.what
    assert writer.num_durable == 1
    (tmp_path / "elsewhere").rename(gone)
    assert writer.wait_durable(2, LIMIT_S)
    assert writer.close()
    assert list(read_journal(folder)) == [a_header(), a_step(1)]


def test_a_value_that_json_cannot_hold_is_refused_where_it_was_appended(tmp_path: Path) -> None:
    writer = JournalWriter(run_folder(tmp_path), a_header())
    with pytest.raises(TypeError):
        writer.append(Note(time=1.0, topic="setup", data={"thing": object()}))
    writer.append(a_step(1))
    assert writer.close()


def test_a_failing_callback_is_shown_to_the_loop(tmp_path: Path) -> None:
    writer = JournalWriter(run_folder(tmp_path), a_header())

    def broken() -> None:
        raise ZeroDivisionError("in the callback")

    writer.append(a_step(1), broken)
    wait(lambda: writer._failure is not None, writer)
    with pytest.raises(HpcschedError, match="in the callback"):
        writer.append(a_step(2))


_KILLED = """
import sys
from pathlib import Path
from hpcsched.eventlog.journal import JournalWriter
from tests.support.journals import a_header, a_step, run_folder
writer = JournalWriter(run_folder(Path(sys.argv[1])), a_header())
n = 0
while True:
    n += 1
    writer.append(a_step(n), lambda n=n: sys.stdout.write(f"{n}\\n") and sys.stdout.flush())
    if writer.num_pending > 2000:
        writer.wait_durable(n - 1000, 10)
"""


def test_whatever_was_announced_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    for run in range(5):
        root = tmp_path / str(run)
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(root)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(50 + 777 * run):
            process.stdout.readline()
        process.kill()
        announced = [int(line) for line in process.stdout.read().splitlines() if line.isdigit()]
        process.wait()
        num_steps = sum(1 for _ in read_journal(run_folder(root))) - 1
        assert num_steps >= 50 + 777 * run
        # The last number may itself be cut in the pipe; all others were announced.
        assert num_steps >= max(announced[:-1], default=0)


class SlowDisk:
    """Each sync takes `takes_s`. Counts them, and how many are under way at once. One that fails loses what it was to sync and
    whatever lies behind it, as a kernel may that drops dirty pages."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.num = 0
        self.fails: list[int] = []
        """Numbers of the syncs that fail, from 1."""
        self.under_way = self.most = 0
        self._lock = threading.Lock()
        self._end = 0

    def __call__(self, fd: int) -> None:
        with self._lock:
            self.num += 1
            number = self.num
            begin, self._end = self._end, os.fstat(fd).st_size
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        threading.Event().wait(self.takes_s)
        with self._lock:
            self.under_way -= 1
        if number in self.fails:
            os.ftruncate(fd, begin)
            raise OSError(errno.EIO, "no")
        os.fdatasync(fd)


def feed(writer: JournalWriter, num: int, announced: list[int], disk: SlowDisk) -> None:
    """Some records at once, again and again while the sync of the ones before has begun."""
    for n in range(1, num + 1):
        syncs = disk.num
        writer.append(a_step(n), lambda n=n: announced.append(n))  # type: ignore[misc]  # bound now
        if n % 20 == 0:
            wait(lambda syncs=syncs: disk.num > syncs, writer)  # type: ignore[misc]  # bound now


def test_a_slow_disk_syncs_groups_and_several_at_once(tmp_path: Path) -> None:
    """A sync that takes 30 ms: a handful of records a sync, next ones begun while the last are under way, all in order."""
    disk = SlowDisk(0.03)
    announced: list[int] = []
    writer = JournalWriter(run_folder(tmp_path), a_header(), sync=disk)
    feed(writer, 600, announced, disk)
    assert writer.close()
    assert announced == list(range(1, 601))
    assert 1 < disk.most <= journal_module.NUM_SYNCS
    assert disk.num < 600 / 4, "syncs are shared"
    assert list(read_journal(run_folder(tmp_path))) == [a_header(), *(a_step(n) for n in range(1, 601))]


def test_a_disk_that_is_fast_again_gets_one_sync_at_a_time(tmp_path: Path) -> None:
    disk = SlowDisk(0.03)
    announced: list[int] = []
    writer = JournalWriter(run_folder(tmp_path), a_header(), sync=disk)
    feed(writer, 100, announced, disk)
    assert disk.most > 1
    disk.takes_s = 0.0
    wait(lambda: writer.num_pending == 0, writer)
    disk.most = 0
    for n in range(101, 201):
        number = writer.append(a_step(n), lambda n=n: announced.append(n))  # type: ignore[misc]  # bound now
        assert writer.wait_durable(number, LIMIT_S)
        if n == 110:
            disk.most = 0  # it has noticed by now
    assert writer.close()
    assert disk.most == 1
    assert announced == list(range(1, 201))
    assert sum(1 for _ in read_journal(run_folder(tmp_path))) == 201


@pytest.mark.parametrize("failing", [range(6, 7), range(9, 12), range(5, 40, 3)])
def test_when_one_of_several_syncs_fails_nothing_behind_it_counts_until_it_is_written_again(
    tmp_path: Path, failing: range
) -> None:
    disk = SlowDisk(0.02)
    disk.fails = list(failing)
    announced: list[int] = []
    writer = JournalWriter(run_folder(tmp_path), a_header(), sync=disk, retry_s=0.01)
    feed(writer, 600, announced, disk)
    assert writer.close()
    assert writer.trouble is None
    assert announced == list(range(1, 601))
    assert disk.num > failing[0]
    assert list(read_journal(run_folder(tmp_path))) == [a_header(), *(a_step(n) for n in range(1, 601))]


def test_nothing_is_announced_before_the_syncs_of_all_that_stands_before_it(tmp_path: Path) -> None:
    """The second of two overlapping syncs ends first: its records wait for the first."""
    begun: list[threading.Event] = []
    slow = False

    def sync(fd: int) -> None:
        if slow:
            begun.append(mine := threading.Event())
            assert mine.wait(LIMIT_S)

    announced: list[int] = []
    writer = JournalWriter(run_folder(tmp_path), a_header(), sync=sync)
    slow = True
    writer.append(a_step(1))
    wait(lambda: len(begun) == 1, writer)
    threading.Event().wait(4 * journal_module.SLOW_S)  # that one was slow
    begun[0].set()
    wait(lambda: writer.num_pending == 0, writer)
    for n in (2, 3):
        writer.append(a_step(n), lambda n=n: announced.append(n))  # type: ignore[misc]  # bound now
        wait(lambda n=n: len(begun) == n, writer)  # type: ignore[misc]  # bound now
    begun[2].set()
    assert not writer.wait_durable(4, 0.1)
    assert announced == []
    begun[1].set()
    assert writer.wait_durable(4, LIMIT_S)
    slow = False
    assert writer.close()
    assert announced == [2, 3]
