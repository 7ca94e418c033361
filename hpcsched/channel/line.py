"""The other end of the channel: a line to the driver, usable from any thread. What it carries say its users (`client`, `ordering`).

A thread of its own holds the DEALER socket. One socket is one connection: when it breaks, a new socket is made for
the next endpoint in turn, and what the driver has not acknowledged is sent again (see `link`). `send` therefore never
blocks and never fails because the driver is away for a while.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from hpcsched.channel.link import Link
from hpcsched.channel.sockets import CLIENT_WINDOW, HANDSHAKE_LIMIT_MS, set_common, set_heartbeats
from hpcsched.channel.wakeup import Wakeup
from hpcsched.errors import ChannelError, MessageError

log = logging.getLogger(__name__)

MAX_KEPT = 10_000
"""Messages kept while the driver is away; beyond, the oldest are given up."""
ACK_DELAY_S = 0.25
BACKOFF_S = (0.05, 2.0)
"""Shortest and longest pause between two rounds over the endpoints."""

_UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DOWN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


Heard = TypeVar("Heard")


class Line(Generic[Heard]):
    """Connects in the background at once. `server_key`: the driver's public key; `keys`: our public and secret one; `read` raises
    MessageError; `connect_limit_s`: longest wait for one endpoint before the next one is tried."""

    def __init__(
        self,
        endpoints: Sequence[str],
        server_key: bytes,
        keys: tuple[bytes, bytes],
        identity: str,
        *,
        read: Callable[[bytes], Heard],
        connect_limit_s: float = HANDSHAKE_LIMIT_MS / 1000,
        heartbeat_s: float = 1.0,
        heartbeat_timeout_s: float = 5.0,
        context: zmq.Context[Any] | None = None,
    ) -> None:
        if not endpoints:
            raise ChannelError(f"{identity}: no endpoint of the driver is given")
        self._endpoints = tuple(endpoints)
        self._server_key = server_key
        self._keys = keys
        self._read = read
        self._connect_limit_s = connect_limit_s
        self._identity = identity
        self._heartbeats = (heartbeat_s, heartbeat_timeout_s)
        self._own_context = context is None
        self._context: zmq.Context[Any] = context or zmq.Context()
        self._link = Link(secrets.randbits(63) | 1, max_kept=MAX_KEPT, leads=True)
        self._outbox: deque[bytes] = deque()
        self._inbox: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._wakeup = Wakeup()
        self._all_acknowledged = threading.Condition()
        self._connected = threading.Event()
        self._lost_at: float | None = time.monotonic()
        self._stopping = False
        self.num_failed = 0
        """Endpoints tried in a row that did not come to stand."""
        self._thread = threading.Thread(target=self._run, name="hpcsched-channel", daemon=True)
        self._thread.start()

    @property
    def connected(self) -> bool:
        """The driver has proved its key and answers heartbeats."""
        return self._connected.is_set()

    def wait_connected(self, timeout_s: float) -> bool:
        return self._connected.wait(timeout_s)

    @property
    def lost_for_s(self) -> float:
        """Seconds without a connection; 0 while there is one."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else time.monotonic() - lost_at

    def _post(self, body: bytes) -> None:
        """From any thread; returns at once. Arrives once and in order, as soon as the driver is there."""
        if self._stopping:
            raise ChannelError(f"{self._identity}: message after the channel was closed")
        self._outbox.append(body)
        self._wakeup.set()

    def receive(self, timeout_s: float = 0.0) -> Heard | None:
        """The next message of the driver; None when there is none in time."""
        try:
            return self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None

    def flush(self, timeout_s: float) -> bool:
        """Wait at most so long until the driver has everything that was sent. True when it has."""
        if not self._stopping:
            with self._all_acknowledged:
                self._wakeup.set()
                self._all_acknowledged.wait_for(self._delivered, timeout_s)
        return self._delivered()

    def close(self, linger_s: float = 2.0) -> bool:
        """Wait at most `linger_s` until the driver has everything, then close. True when it has. Idempotent."""
        if not self._stopping:
            self.flush(linger_s)
            self._stopping = True
            self._wakeup.set()
            self._thread.join(5.0)
            self._wakeup.close()
        return self._delivered()

    def _delivered(self) -> bool:
        return not self._outbox and self._link.num_kept == 0

    # ---- everything below runs in the client's thread

    def _run(self) -> None:
        turn = 0
        pause_s = BACKOFF_S[0]
        while not self._stopping:
            socket = self._context.socket(zmq.DEALER)
            try:
                if self._connection(socket, self._endpoints[turn % len(self._endpoints)]):
                    pause_s = BACKOFF_S[0]
                    self.num_failed = 0
                else:
                    self.num_failed += 1
            except Exception:
                log.exception("channel: %s: the connection failed; trying again", self._identity)
            finally:
                with contextlib.suppress(zmq.ZMQError):
                    socket.disable_monitor()
                socket.close(linger=500 if self._stopping else 0)
                self._connected.clear()
                if self._lost_at is None:
                    self._lost_at = time.monotonic()
            turn += 1
            if turn % len(self._endpoints) == 0 and not self._stopping:
                # A thousand clients that lost one driver must not come back in the same instant.
                self._idle(pause_s * (0.5 + secrets.randbelow(1000) / 1000))
                pause_s = min(2 * pause_s, BACKOFF_S[1])
        if self._own_context:
            self._context.term()

    def _idle(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            zmq.select([self._wakeup.fileno()], [], [], min(left, 0.2))
            self._wakeup.clear()

    def _connection(self, socket: zmq.Socket[Any], endpoint: str) -> bool:
        """One connection from its beginning to its end. True when it came to stand."""
        set_common(socket)
        set_heartbeats(socket, heartbeat_s=self._heartbeats[0], heartbeat_timeout_s=self._heartbeats[1])
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, max(1, round(self._connect_limit_s * 1000)))
        socket.setsockopt(zmq.IDENTITY, self._identity.encode("ascii"))
        socket.setsockopt(zmq.CURVE_SERVERKEY, self._server_key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys[0])
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys[1])
        monitor = socket.get_monitor_socket(_UP | _DOWN)
        socket.connect(endpoint)
        poller = zmq.Poller()
        poller.register(monitor, zmq.POLLIN)
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wakeup.fileno(), zmq.POLLIN)
        stands = False
        give_up_at = time.monotonic() + self._connect_limit_s
        ack_at: float | None = None
        while not self._stopping or (stands and self._outbox):
            ready = dict(poller.poll(200 if ack_at is None else 50))
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
            if monitor in ready:
                event = recv_monitor_message(monitor, zmq.NOBLOCK)["event"]
                if event & _DOWN:
                    if socket in ready:
                        self._receive(socket)
                    return stands
                stands = True
                self._link.connection_began()
                socket.send_multipart([self._link.header(first=True), b""], zmq.NOBLOCK)
                self._lost_at = None
                self._connected.set()
            now = time.monotonic()
            if not stands:
                if now > give_up_at:
                    return False
                continue
            if socket in ready:
                self._receive(socket)
            self._send_all(socket)
            if not self._link.ack_due:
                ack_at = None
            elif ack_at is None:
                ack_at = now + ACK_DELAY_S
            elif now >= ack_at:
                socket.send_multipart([self._link.header(), b""], zmq.NOBLOCK)
                ack_at = None
        return stands

    def _receive(self, socket: zmq.Socket[Any]) -> None:
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if len(frames) != 2:
                    raise MessageError(f"{len(frames)} frames, not 2")
                _, fresh = self._link.take(frames[0])
                if fresh:
                    self._inbox.put(self._read(frames[1]))
            except MessageError as error:
                log.warning("channel: %s: dropped a frame of the driver: %.200s", self._identity, error)
            if self._delivered():
                with self._all_acknowledged:
                    self._all_acknowledged.notify_all()

    def _send_all(self, socket: zmq.Socket[Any]) -> None:
        while self._outbox:
            # Kept before it leaves the outbox, so that `_delivered` never sees it in neither.
            self._link.put(self._outbox[0])
            self._outbox.popleft()
        under_way = self._link.num_under_way
        for seq, body in self._link.unsent():
            if under_way >= CLIENT_WINDOW:
                return
            try:
                socket.send_multipart([self._link.header(seq), body], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._link.sent = seq
            under_way += 1
