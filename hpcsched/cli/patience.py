"""A word to whoever waits while a long journal is read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from hpcsched.eventlog.picture import journal_bytes
from hpcsched.eventlog.reader import JournalReader
from hpcsched.eventlog.records import Record

FIRST_S, AGAIN_S = 1.5, 1.0
SLICE = 2000
"""Records between two looks at the clock."""


def said(
    reader: JournalReader, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Record]:
    """The reader's records. When that lasts, how far it is goes to `stream` (stderr): in a terminal one line that changes and is
    gone at the end, else one line."""
    stream = sys.stderr if stream is None else stream
    is_terminal = stream.isatty()
    next_at: float | None = clock() + FIRST_S
    has_spoken = False
    for number, record in enumerate(reader.poll()):
        yield record
        if number % SLICE == 0 and next_at is not None and clock() > next_at:
            share = sum(end.num_bytes for end in reader.ends) / max(1, journal_bytes(reader.folder))
            text = f"hpcsched: reading the journal, {number:,} records so far ({100 * share:.0f} %)"
            stream.write(f"\r{text}" if is_terminal else f"{text} ...\n")
            stream.flush()
            has_spoken = True
            next_at = clock() + AGAIN_S if is_terminal else None
    if has_spoken and is_terminal:
        stream.write("\r\x1b[K")
        stream.flush()
