"""Options that both ends set on their sockets, in one place, with the reasons."""

from __future__ import annotations

from typing import Any

import zmq

from hpcsched.wire import MAX_BYTES

HANDSHAKE_LIMIT_MS = 5_000
"""A connection that has not proved its key by then is dropped. Also the limit of connecting one endpoint."""
CLIENT_WINDOW = 128
"""Most unacknowledged messages that a `Client` has under way; the server bounds what it holds of a peer by it."""


def set_common(socket: zmq.Socket[Any]) -> None:
    """Limits."""
    socket.setsockopt(zmq.LINGER, 0)
    # The limit is on the frame as it comes in: CURVE adds 33 bytes; a longer one ends the connection.
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES + 1024)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_LIMIT_MS)
    socket.setsockopt(zmq.IPV6, 1)


def set_heartbeats(socket: zmq.Socket[Any], *, heartbeat_s: float, heartbeat_timeout_s: float) -> None:
    """Of the side that connects: ZeroMQ's own I/O thread asks, so a busy interpreter does not look dead.

    The other side answers, and drops a connection that has asked and then says nothing for `heartbeat_timeout_s` (the TTL of
    ZMTP's PING); it need not ask too, which with two thousand connections would be most of what its I/O thread does.
    """
    socket.setsockopt(zmq.HEARTBEAT_IVL, round(heartbeat_s * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(heartbeat_timeout_s * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TTL, round(heartbeat_timeout_s * 1000))
