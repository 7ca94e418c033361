"""Reading a journal: all of it, or what has been added since the last look.

What counts of a segment: all whole records up to the byte that a later life's header names for it, or, in the
newest segment, up to the last line feed. The rest is a *torn tail* and is dropped: the driver died in mid-write, so
nobody was told of it. A node that dies before a sync can leave a hole of NUL bytes: torn as well when it is in the last line, or when
all lines behind it say that they were written before the bytes of the hole were durable (`lines.durable_of`).
Any other line that is not what was written is damage: `JournalDamagedError` with file, line and byte. Nothing is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from hpcsched.errors import JournalDamagedError, LogError, RunFolderError
from hpcsched.eventlog.lines import LineError, durable_of, record_of
from hpcsched.eventlog.records import SCHEMA_VERSION, End, Header, Record, SegmentEnd, Step
from hpcsched.runfolder import RunFolder

_CHUNK = 1 << 20
_SEGMENT_NAME = re.compile(r"(\d{4,})\.jsonl")


class TornTail(msgspec.Struct, frozen=True):
    """Bytes after the last whole record of a segment. They were never acknowledged."""

    file: str
    byte_offset: int
    num_bytes: int


def segments_of(folder: RunFolder) -> list[int]:
    """The lives that have a segment, in order. Empty when there is no journal."""
    try:
        names = [path.name for path in folder.journal.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunFolderError(f"{folder.journal}: cannot be read: {error.strerror}") from error
    return sorted(int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name)))


def newest_life(folder: RunFolder) -> int:
    """0 when there is no journal. Raises RunFolderError as `segments_of`."""
    return max(segments_of(folder), default=0)


def read_journal(folder: RunFolder) -> Iterator[Record]:
    """All records of all lives, in order, read as a stream.

    Raises RunFolderError when there is no journal, JournalDamagedError (at the record concerned).
    """
    require_journal(folder)
    yield from JournalReader(folder).poll()


def require_journal(folder: RunFolder) -> None:
    """Raises RunFolderError when the folder has no journal."""
    if not segments_of(folder):
        raise RunFolderError(
            f"{folder.root}: no journal here ({folder.segment(1)} is missing). A run folder is what `hpcsched run` has "
            "made or was given by --run-dir."
        )


class JournalReader:
    """Follows a journal that may still be written. Call `poll` again and again; it yields what is new.

    A half-written last line stays for the next call. When a new life declares that less of an earlier segment
    counts than this reader has already handed out (the old driver had written on after it was taken over), `generation`
    goes up by one and everything comes again from the beginning: whoever folds the records starts anew.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.generation = 0
        self._rewind()

    def _rewind(self) -> None:
        self._read: dict[int, _SegmentReader] = {}
        self._last_n = 0

    @property
    def lives(self) -> list[int]:
        return segments_of(self.folder)

    @property
    def ends(self) -> tuple[SegmentEnd, ...]:
        """How far each segment has been read, for the header of the next life."""
        return tuple(
            SegmentEnd(life=life, num_bytes=reader.offset, num_records=reader.num_records)
            for life, reader in self._read.items()
        )

    @property
    def last_n(self) -> int:
        """Number of the last step handed out; 0 before the first."""
        return self._last_n

    @property
    def torn_tails(self) -> tuple[TornTail, ...]:
        """What lies behind the last whole record of each segment read so far."""
        return tuple(
            TornTail(file=str(reader.file), byte_offset=reader.offset, num_bytes=size - reader.offset)
            for reader in self._read.values()
            if (size := _size(reader.file)) > reader.offset
        )

    def poll(self) -> Iterator[Record]:
        """Records added since the last call (at first: all). Raises as `read_journal`."""
        lives = self.lives
        limits = self._limits(lives)
        if any(life in limits and limits[life] < reader.offset for life, reader in self._read.items()):
            self.generation += 1
            self._rewind()
        for life in lives:
            reader = self._read.setdefault(life, _SegmentReader(self.folder.segment(life), life))
            for record in reader.poll(limits.get(life)):
                if isinstance(record, Step):
                    if record.n != self._last_n + 1:
                        raise reader.damaged(f"step {record.n} follows step {self._last_n}")
                    self._last_n = record.n
                yield record

    def _limits(self, lives: list[int]) -> dict[int, int]:
        """Bytes that count of each segment that a later header speaks of; the earliest later header decides."""
        limits: dict[int, int] = {}
        for life in lives[1:]:
            header = read_header(self.folder, life)
            if header is None:
                continue
            for end in header.earlier:
                limits.setdefault(end.life, end.num_bytes)
        return limits


def read_header(folder: RunFolder, life: int) -> Header | None:
    """The header of one segment; None when its driver died before it was written. Raises JournalDamagedError."""
    for record in _SegmentReader(folder.segment(life), life).poll(None):
        assert isinstance(record, Header), "a segment's first record is checked to be its header"
        return record
    return None


class _SegmentReader:
    """One segment from its beginning; knows the offset after the last whole record."""

    def __init__(self, file: Path, life: int) -> None:
        self.file = file
        self.life = life
        self.offset = 0
        self.num_records = 0
        self._crc = 0
        self._line_offset = 0
        self._ended = False

    def poll(self, limit: int | None) -> Iterator[Record]:
        """`limit`: how many bytes of the file count; None: all whole lines."""
        try:
            stream = self.file.open("rb")
        except OSError as error:
            raise RunFolderError(f"{self.file}: cannot be read: {error.strerror}") from error
        with stream:
            for line in _whole_lines(stream, self.offset, limit):
                if limit is None and b"\0" in line and _never_durable(stream, self.offset):
                    return
                self._line_offset = self.offset
                record = self._take(line)
                self.offset += len(line)
                self.num_records += 1
                yield record
        if limit is not None and self.offset < limit:
            self._line_offset = self.offset
            raise self.damaged(
                f"a later life has read {limit} bytes of this segment, now there are only {self.offset} in whole records"
            )

    def _take(self, line: bytes) -> Record:
        try:
            record, crc = record_of(line, self._crc)
        except LineError as error:
            raise self.damaged(str(error)) from error
        if (self.num_records == 0) != isinstance(record, Header):
            raise self.damaged("a segment has exactly one header, at its beginning")
        if isinstance(record, Header):
            if record.schema_version > SCHEMA_VERSION:
                raise LogError(
                    f"{self.file}: written in schema {record.schema_version} by a newer hpcsched; this one reads up "
                    f"to {SCHEMA_VERSION}. Use the version that wrote it."
                )
            if record.life != self.life:
                raise self.damaged(f"its header is of life {record.life}: the file has been renamed")
        if self._ended:
            raise self.damaged("a record follows the end of this life")
        self._ended = isinstance(record, End)
        self._crc = crc
        return record

    def damaged(self, why: str) -> JournalDamagedError:
        return JournalDamagedError(
            self.file, self.num_records + (self._line_offset == self.offset), self._line_offset, why
        )


def _whole_lines(stream: BinaryIO, offset: int, limit: int | None) -> Iterator[bytes]:
    """Lines with their line feeds, from `offset`; what follows the last line feed is left."""
    stream.seek(offset)
    for line in stream:
        offset += len(line)
        if not line.endswith(b"\n") or (limit is not None and offset > limit):
            return
        yield line


def _never_durable(rest: BinaryIO, offset: int) -> bool:
    """Whether the lines that follow a hole in the line at `offset` prove that nothing from there on was acknowledged."""
    for line in rest:
        durable = durable_of(line)
        if line.endswith(b"\n") and b"\0" not in line and (durable is None or durable > offset):
            return False
    return True


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
