"""The writer of the journal: one segment a driver life, one writing thread, group commit.

Theory. The loop decides, `append`s the decision and goes on; it performs actions only once they are durable, so
that whatever anybody outside has seen can be found again after a crash. The writer's thread takes what has
gathered, writes it in one piece at the end of the last durable byte and syncs; commits begin at least
2.5 ms apart (a lone record is written at once) and hold at most 1,000 records, so that a slow disk makes groups larger, not
the loop slower. A write or sync that fails is no exception but a value (`trouble`): the file is cut back to its last
durable byte and the same bytes are written again until it works (after a failed fsync the kernel may have dropped
dirty pages, so that syncing again would prove nothing: https://wiki.postgresql.org/wiki/Fsync_Errors). Until then
nothing becomes durable, and whoever waits for that waits.

A disk whose sync takes long (`SLOW_S`) would make a record wait for two of them: the one under way and its own. There the next
groups are written and synced while the last is, up to `NUM_SYNCS` at once, begun at even distances; each through a descriptor of
its own (see `syncers`). A group is durable when its sync and those of all groups before it have succeeded; when one fails, all that
are under way are waited for and everything from the failed group on is written again, one group at a time. A node that dies may have
a later group on disk and not the one before: the later one's lines then say that they were written before the earlier bytes
were durable (see `lines`), so that a reader can tell this hole, of which nobody was told, from damage.

A life that was stopped and wakes after another one has begun finds the newer segment before its next write and
writes nothing more. What it still had in flight lies behind the byte that the new life's header names
(`Header.earlier`), and no reader looks there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import msgspec

from hpcsched.errors import HpcschedError, RunFolderError, SupersededError
from hpcsched.eventlog.lines import encode_record, line_of
from hpcsched.eventlog.reader import segments_of
from hpcsched.eventlog.records import Header, Record
from hpcsched.eventlog.syncers import Flight, Syncers, write_all
from hpcsched.runfolder import RunFolder

GROUP_S = 0.0025
"""Commits begin at least this far apart; also the longest that a record waits for others."""
GROUP_RECORDS = 1000
SLOW_S = 0.005
"""A disk whose sync takes longer is slow: syncs overlap, until one takes less than half of it."""
NUM_SYNCS = 4
"""Most syncs under way at once. On a disk of 50 ms a record then waits at most 50 + 12.5 ms."""
LONGEST_DISTANCE_S = 0.25
"""Longest pause between the beginnings of two overlapping syncs."""
RETRY_S = 0.25
"""Pause between two tries while the disk is in trouble."""
LOOK_AROUND_S = 1.0
"""A newer segment is looked for before a write when the last look is older than this."""


class Trouble(msgspec.Struct, frozen=True):
    """Why nothing becomes durable at the moment. Over when `JournalWriter.trouble` is None again."""

    errno: int
    what: str
    """The system's words and the file."""
    since: float
    """Monotonic seconds of the first failure."""
    num_tries: int


_Queued: TypeAlias = tuple[bytes, Callable[[], None] | None, float]
"""A record's bytes, whom to tell, and since when it waits."""


class JournalWriter:
    """Writes one segment. All methods may be called from any thread; `append` never waits for the disk.

    Raises RunFolderError when the segment cannot be created or its header not be written (disk full, read-only,
    another driver has begun the same life): nothing has been started then.
    """

    def __init__(
        self,
        folder: RunFolder,
        header: Header,
        *,
        durable: Callable[[int], None] | None = None,
        sync: Callable[[int], None] = os.fdatasync,
        group_s: float = GROUP_S,
        group_records: int = GROUP_RECORDS,
        retry_s: float = RETRY_S,
    ) -> None:
        """`durable(n)` is called in the writer's thread after each commit: records 1 .. n of this segment (the
        header is number 1) are on disk. It must return at once. `sync` takes a file descriptor."""
        self.life = header.life
        self.file = folder.segment(header.life)
        self._folder = folder
        self._durable = durable
        self._sync = sync
        self._group_s = group_s
        self._group_records = group_records
        self._retry_s = retry_s

        self._condition = threading.Condition()
        self._queue: deque[_Queued] = deque()
        self._num_appended = 1
        self._num_durable = 0
        self._closing_at: float | None = None
        self._superseded = False
        self._failure: BaseException | None = None
        self._trouble: Trouble | None = None
        self._looked_at = float("-inf")
        self._num_flying = 0
        """Records at the front of the queue whose syncs are under way."""
        self._last_sync_s = 0.0

        self._crc = 0
        self._end = 0  # the last durable byte
        self._fd = self._create(header)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    # ---- for the loop

    def append(self, record: Record, on_durable: Callable[[], None] | None = None) -> int:
        """Queue one record and return its number in this segment (the header is 1).

        `on_durable` is called in the writer's thread once the record is on disk, in the order of the records; it
        must return at once. Raises SupersededError when a newer life has begun, TypeError for a value that JSON
        cannot hold.
        """
        payload = encode_record(record)
        with self._condition:
            self._raise_if_over()
            self._num_appended += 1
            self._queue.append((payload, on_durable, _clock()))
            if len(self._queue) - self._num_flying in (
                1,
                self._group_records,
            ):  # else the thread has no reason to wake
                self._condition.notify_all()
            return self._num_appended

    @property
    def trouble(self) -> Trouble | None:
        """Why the disk does not take records just now, or None."""
        return self._trouble

    @property
    def superseded(self) -> bool:
        """A newer life's segment exists: nothing more is written here."""
        return self._superseded

    @property
    def num_durable(self) -> int:
        return self._num_durable

    @property
    def num_pending(self) -> int:
        return self._num_appended - self._num_durable

    @property
    def waiting_s(self) -> float:
        """How long the oldest record that is not durable has been waiting; 0.0 when there is none."""
        with self._condition:
            return max(0.0, _clock() - self._queue[0][2]) if self._queue else 0.0

    def wait_durable(self, n: int, timeout_s: float) -> bool:
        """Wait until records 1 .. n are on disk. For the beginning and the end of a life, not for the loop."""
        with self._condition:
            return self._condition.wait_for(
                lambda: self._num_durable >= n or self._superseded or self._failure is not None, timeout_s
            ) and (self._num_durable >= n)

    def close(self, timeout_s: float = 30.0) -> bool:
        """Write what is queued and end; True when everything became durable within the limit."""
        with self._condition:
            self._closing_at = _clock() + timeout_s
            self._condition.notify_all()
        self._thread.join(timeout_s + 1.0)
        if not self._thread.is_alive() and self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
        return self.num_pending == 0

    def _raise_if_over(self) -> None:
        if self._superseded:
            raise SupersededError(
                f"{self._folder.journal} holds a newer segment: another driver has taken over this run folder; this one "
                f"(life {self.life}) writes nothing more. Its trials are the other driver's to end; stop here."
            )
        if self._failure is not None:
            raise HpcschedError(f"the journal's writer has ended: {self._failure!r}") from self._failure
        if self._closing_at is not None:
            raise HpcschedError(f"{self.file}: the journal is closed")

    # ---- the segment

    def _create(self, header: Header) -> int:
        line, crc = line_of(encode_record(header), 0)
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise RunFolderError(
                f"{self.file} exists: another driver has begun life {header.life} of this run folder at the same "
                f"time. Leave it to that one (`hpcsched status {self.file.parent.parent}` shows it)."
            ) from error
        except OSError as error:
            raise RunFolderError(f"{self.file}: the journal cannot be created: {error.strerror}") from error
        try:
            write_all(fd, line, 0)
            self._sync(fd)
            _sync_folder(self.file.parent)
        except OSError as error:
            os.close(fd)
            with contextlib.suppress(OSError):
                self.file.unlink()  # nobody has seen it: there was no header
            raise RunFolderError(
                f"{self.file}: the journal's first record cannot be written: {error.strerror}. Free space or choose "
                "another run folder (--run-dir)."
            ) from error
        self._crc, self._end, self._num_durable = crc, len(line), 1
        return fd

    # ---- the thread

    def _run(self) -> None:
        try:
            last_commit = float("-inf")
            while True:
                group = self._gather(last_commit)
                if not group:
                    return
                last_commit = _clock()
                if not self._commit([payload for payload, _, _ in group]):
                    return
                self._became_durable(group)
                if self._last_sync_s >= SLOW_S and not self._overlap():
                    return
        except BaseException as error:  # kept for the loop, which raises it at its next append
            with self._condition:
                self._failure = error
                self._condition.notify_all()

    def _became_durable(self, group: list[_Queued]) -> None:
        with self._condition:
            for _ in group:
                self._queue.popleft()
            self._num_flying = max(0, self._num_flying - len(group))
            self._num_durable += len(group)
            num_durable = self._num_durable
            self._condition.notify_all()
        for _, on_durable, _ in group:
            if on_durable is not None:
                on_durable()
        if self._durable is not None:
            self._durable(num_durable)

    def _gather(self, last_commit: float) -> list[_Queued]:
        """The next group, still in the queue; empty when there is nothing more to do."""
        with self._condition:
            while not self._queue and self._closing_at is None:
                self._condition.wait()
            while self._queue and len(self._queue) < self._group_records and self._closing_at is None:
                wait = last_commit + self._group_s - _clock()
                if wait <= 0:
                    break
                self._condition.wait(wait)
            return list(islice(self._queue, self._group_records))

    def _commit(self, payloads: list[bytes]) -> bool:
        """Write and sync one group; False when it never will be (superseded, or closed before the disk recovered)."""
        data, crc = _lines(payloads, self._crc, None)
        while True:
            try:
                if self._is_superseded():
                    return False
                write_all(self._fd, data, self._end)
                began = _clock()
                self._sync(self._fd)
                self._last_sync_s = _clock() - began
            except (OSError, RunFolderError) as caught:
                error = _system_error(caught)
                self._note_trouble(error)
                self._repair(error)
                with self._condition:
                    if self._closing_at is not None and _clock() + self._retry_s > self._closing_at:
                        return False
                    self._condition.wait_for(lambda: self._closing_at is not None, self._retry_s)
                    closing = self._closing_at is not None
                if closing:
                    time.sleep(self._retry_s)  # the condition holds at once now: keep the pause between tries
                continue
            self._trouble = None
            self._crc = crc
            self._end += len(data)
            return True

    def _overlap(self) -> bool:
        """Write and sync groups at even distances while the disk is slow. True: go on with one at a time (it is fast again, it
        is in trouble, or there is nothing more to do); False: superseded.

        Whatever happens, the queue's front is what follows the last durable byte.
        """
        flights: deque[tuple[Flight, list[_Queued]]] = deque()  # as they were begun
        syncers = Syncers(self.file, most=NUM_SYNCS, sync=self._sync, landed=lambda _: self._wake())
        written, crc = self._end, self._crc
        began_at = float("-inf")
        error: OSError | None = None
        is_slow = True
        try:
            while True:
                while flights and flights[0][0].is_over and flights[0][0].error is None:
                    landed, group = flights.popleft()
                    self._end, self._crc, self._last_sync_s = landed.end, landed.crc, landed.took_s
                    is_slow = is_slow and landed.took_s >= SLOW_S / 2
                    self._became_durable(group)
                distance_s = max(self._group_s, min(LONGEST_DISTANCE_S, self._last_sync_s / NUM_SYNCS))
                with self._condition:
                    known = [flight for flight, _ in flights]
                    if known and known[0].is_over and known[0].error is None:
                        continue
                    error = error or next(
                        (flight.error for flight in known if flight.error is not None), None
                    )
                    num_waiting = len(self._queue) - self._num_flying
                    is_closing = self._closing_at is not None
                    is_over = error is not None or not is_slow or (is_closing and not num_waiting)
                    if is_over and all(flight.is_over for flight in known):
                        break
                    if is_over or not num_waiting or len(flights) == NUM_SYNCS:
                        self._condition.wait()
                        continue
                    wait_s = began_at + distance_s - _clock()
                    if wait_s > 0 and num_waiting < self._group_records and not is_closing:
                        self._condition.wait(wait_s)
                        continue
                    group = list(
                        islice(self._queue, self._num_flying, self._num_flying + self._group_records)
                    )
                try:
                    if self._is_superseded():
                        return False
                    began_at = _clock()
                    data, next_crc = _lines(
                        [payload for payload, _, _ in group], crc, self._end if flights else None
                    )
                    flight = Flight(written + len(data), next_crc)
                    syncers.begin(flight, data, written)
                except (OSError, RunFolderError) as caught:
                    error = _system_error(caught)
                    continue
                written, crc = flight.end, flight.crc
                flights.append((flight, group))
                with self._condition:
                    self._num_flying += len(group)
        finally:
            syncers.close()
            with self._condition:
                self._num_flying = 0
        self._last_sync_s = 0.0
        if error is not None:
            self._note_trouble(error)
            self._repair(error)
        return True

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _is_superseded(self) -> bool:
        """Whether a newer life has begun; whoever waits for the writer is then told."""
        if not self._newer_life():
            return False
        with self._condition:
            self._superseded = True
            self._condition.notify_all()
        return True

    def _newer_life(self) -> bool:
        """Raises OSError when our own segment is gone: bytes would still go into a file that nobody can find."""
        now = _clock()
        if now - self._looked_at < LOOK_AROUND_S:
            return False
        # By opening the folder: NFS asks the server then, while it may answer from memory that a file is not there.
        lives = segments_of(self._folder)
        if self.life not in lives:
            raise FileNotFoundError(
                errno.ENOENT, "it was deleted or moved away; nothing is recorded until it is back"
            )
        self._looked_at = now
        return max(lives) > self.life

    def _note_trouble(self, error: OSError) -> None:
        before = self._trouble
        self._trouble = Trouble(
            errno=error.errno or 0,
            what=f"{self.file}: {error.strerror or error}",
            since=before.since if before else _clock(),
            num_tries=before.num_tries + 1 if before else 1,
        )

    def _repair(self, error: OSError) -> None:
        """Cut our own segment back to its last durable byte, through a new descriptor where the old one is stale."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._end)
        if error.errno in (errno.ESTALE, errno.EBADF, errno.EIO):
            with contextlib.suppress(OSError):
                fd = os.open(self.file, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(fd, self._fd, inheritable=False)
                os.close(fd)


def _lines(payloads: list[bytes], crc: int, durable: int | None) -> tuple[bytes, int]:
    """The lines in one piece, and the checksum to go on from."""
    lines: list[bytes] = []
    for payload in payloads:
        line, crc = line_of(payload, crc, durable)
        lines.append(line)
    return b"".join(lines), crc


def _system_error(caught: OSError | RunFolderError) -> OSError:
    error = caught if isinstance(caught, OSError) else caught.__cause__
    assert isinstance(error, OSError), "the folder's error says which of the system's it was"
    return error


def _clock() -> float:
    """Counts on while the machine sleeps, unlike time.monotonic."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _sync_folder(folder: Path) -> None:
    """So that the new name survives a crash; some file systems refuse to sync a folder, and need not."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)
