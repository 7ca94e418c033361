"""What makes a connection that may break a line on which nothing is lost, doubled or reordered.

TCP (and so ZeroMQ) loses what was under way when a connection breaks. Each side therefore numbers its messages,
keeps them until the other side has acknowledged them, and after a new connection sends the kept ones again; the
receiver drops numbers it has seen. Every frame carries a header::

    flags (1: first frame of a connection) | connection | session | seq | other session | ack

`connection` counts the connections that the leading side (the client) has made; the other side repeats the number of
the last first frame it has seen. What it sends into a new connection before it knows that it is a new one carries
the old number and is ignored: it will be sent again, after what was lost with the old connection.
`session` is a random number drawn by whoever counts: a restarted process counts anew under another session.
`seq` is 0 in a frame without a message. `ack` is the last number taken from the other side's session (cumulative).

Inside one connection frames arrive in order, and a connection always begins with the oldest kept message; so a
number at or below the last one taken is a copy, and a gap means that the sender has given those messages up (it
keeps at most `max_kept`). This module computes; it touches no socket.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

from hpcsched.errors import MessageError

_HEADER = struct.Struct("!BIQQQQ")
HEADER_BYTES = _HEADER.size
FIRST = 1


class Link:
    """One side of the line. `sent` is the last number that was handed to the present connection. `leads`: it makes
    the connections."""

    __slots__ = (
        "_kept",
        "_leads",
        "_max_kept",
        "_next",
        "ack_due",
        "connection",
        "num_given_up",
        "other_session",
        "received",
        "sent",
        "session",
    )

    def __init__(self, session: int, *, max_kept: int, leads: bool) -> None:
        self.session = session
        self.connection = 0
        self.other_session = 0
        self.received = 0
        self.sent = 0
        self.ack_due = 0
        """Messages taken since the last frame out, which told the other side."""
        self.num_given_up = 0
        self._leads = leads
        self._next = 1
        self._max_kept = max_kept
        self._kept: deque[tuple[int, bytes]] = deque()

    @property
    def num_kept(self) -> int:
        """Messages that the other side has not acknowledged."""
        return len(self._kept)

    @property
    def num_under_way(self) -> int:
        """Of these, how many the present connection has been given."""
        return max(0, self.sent - self._kept[0][0] + 1) if self._kept else 0

    def put(self, body: bytes) -> None:
        """Number a message and keep it."""
        self._kept.append((self._next, body))
        self._next += 1
        if len(self._kept) > self._max_kept:
            self._kept.popleft()
            self.num_given_up += 1

    def header(self, seq: int = 0, *, first: bool = False) -> bytes:
        """For a frame that goes out now: it also acknowledges."""
        self.ack_due = 0
        flags = FIRST if first else 0
        return _HEADER.pack(flags, self.connection, self.session, seq, self.other_session, self.received)

    def unsent(self) -> Iterator[tuple[int, bytes]]:
        """Kept messages that the present connection has not been given, oldest first."""
        if self._kept and self._kept[-1][0] > self.sent:
            for seq, body in tuple(self._kept):
                if seq > self.sent:
                    yield seq, body

    def connection_began(self) -> None:
        """Whatever was handed to the last connection may be lost."""
        self.sent = 0
        if self._leads:
            self.connection += 1

    def take(self, header: bytes) -> tuple[bool, bool]:
        """Read a header: (it is the first frame of a connection, its message is new). Raises MessageError."""
        if len(header) != HEADER_BYTES:
            raise MessageError(f"header of {len(header)} bytes, not {HEADER_BYTES}")
        flags, connection, session, seq, acked_session, ack = _HEADER.unpack(header)
        if self._leads:
            if connection != self.connection:
                return False, False
        elif flags & FIRST or self.connection == 0:
            self.connection = connection
        if session != self.other_session:
            self.other_session = session
            self.received = 0
        if acked_session == self.session:  # else it speaks of an earlier life of ours
            while self._kept and self._kept[0][0] <= ack:
                self._kept.popleft()
        if seq <= self.received:
            return bool(flags & FIRST), False
        self.received = seq
        self.ack_due += 1
        return bool(flags & FIRST), True
