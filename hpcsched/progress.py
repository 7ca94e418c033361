"""What each rank of a node does just now: some numbers in shared memory that ranks write and their supervisor reads.

A rank that sleeps, waits for its disk, or is stopped, and one that waits for it inside a collective, look the same from outside: neither
comes further. What tells them apart is how many collectives each has *entered*: who waits for a rank has entered one more than
that rank. So each rank writes down this number, where it is, and what it does; that costs some microseconds a batch and
nobody ever waits for it.

The memory is anonymous (memfd_create(2)) and found by the supervisor's file descriptor in /proc: nothing is left behind, and
where a container hides it there are simply no marks.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import struct

import msgspec

VARIABLE = "HPCSCHED_PROGRESS"
"""Names the memory; set for ranks by their supervisor."""

_SLOT_BYTES = 64
_NUMBER = struct.Struct("<q")
_ALL = struct.Struct("<qqqq")
_ITERATION, _STEPS, _COLLECTIVES, _PHASE = 0, 8, 16, 24


class Phase(enum.IntEnum):
    ABSENT = 0
    """It has not written yet."""
    SETUP = 1
    """Before its loop."""
    COMPUTE = 2
    DATA = 3
    """Waits for its next batch."""
    BOUNDARY = 4
    """Between iterations: the verdict, and a save."""
    LEFT = 5


class Mark(msgspec.Struct, frozen=True):
    """Of one rank. `iteration`: the one it is in, from 1; 0 before the loop. `num_collectives`: entered so far."""

    iteration: int
    num_steps: int
    num_collectives: int
    phase: Phase


class Board:
    """The supervisor's end: one slot a rank of this node."""

    def __init__(self, num_ranks: int) -> None:
        """Raises OSError."""
        self._fd = os.memfd_create("hpcsched-progress")
        os.ftruncate(self._fd, num_ranks * _SLOT_BYTES)
        self._memory = mmap.mmap(self._fd, num_ranks * _SLOT_BYTES)

    @property
    def path(self) -> str:
        """For ranks, on this host and as long as this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def mark(self, local_rank: int) -> Mark | None:
        """None: that rank has written nothing."""
        iteration, steps, collectives, phase = _ALL.unpack_from(self._memory, local_rank * _SLOT_BYTES)
        if not Phase.ABSENT < phase <= Phase.LEFT:
            return None  # nothing yet, or the script has written over it
        return Mark(iteration, steps, collectives, Phase(phase))

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)


class Slot:
    """A rank's end. Without memory (`path` is None, or cannot be opened) it does nothing."""

    def __init__(self, path: str | None, local_rank: int) -> None:
        self._memory: mmap.mmap | None = None
        self._at = local_rank * _SLOT_BYTES
        self._num_steps = 0
        if path is None:
            return
        with contextlib.suppress(OSError, ValueError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                if size >= self._at + _SLOT_BYTES:
                    self._memory = mmap.mmap(fd, size)
            finally:
                os.close(fd)

    @property
    def is_read(self) -> bool:
        """Somebody may be reading."""
        return self._memory is not None

    def iteration(self, number: int) -> None:
        self._write(_ITERATION, number)

    def phase(self, phase: Phase) -> None:
        self._write(_PHASE, phase)

    def step(self) -> None:
        """A batch has been handed out."""
        self._num_steps += 1
        self._write(_STEPS, self._num_steps)

    def collectives(self, number: int) -> None:
        self._write(_COLLECTIVES, number)

    def _write(self, offset: int, number: int) -> None:
        if self._memory is not None:
            _NUMBER.pack_into(self._memory, self._at + offset, number)
