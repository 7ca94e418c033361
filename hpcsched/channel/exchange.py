"""The driver's end of the channel: a ROUTER socket that only one thread of its own ever touches.

That thread answers the authentication requests (ZAP, RFC 27) of its context itself: a peer whose public key is not on
the list never gets past the handshake. It stamps the arrival time, decodes, and delivers; whatever other
threads send goes through a queue. It drains in batches, and it does not die of anything a peer sends: what is no
message of ours is dropped and counted. What is a message, and who may be called how, say its users (`server`, `ordering`).

A peer above its rate is not cut off but held back: what comes too early waits in a bounded backlog, and since its
messages are acknowledged only when they are taken, a `Client` holds back too. Only a peer that overfills the backlog,
which no `Client` does, is disconnected, and ignored for a while should it come back.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from hpcsched.channel.keys import Keys, load_pair, load_public
from hpcsched.channel.link import Link
from hpcsched.channel.sockets import CLIENT_WINDOW, set_common
from hpcsched.channel.wakeup import Wakeup
from hpcsched.errors import ChannelError, MessageError

log = logging.getLogger(__name__)

BATCH = 256
"""Most frames taken before the thread looks at its other work."""
BACKLOG = 2 * CLIENT_WINDOW
"""Frames of one peer that may wait for its rate; beyond: muted."""
MAX_KEPT = 256
"""Messages kept for a peer that does not acknowledge."""
ACK_DELAY_S = 0.05
_SOURCE = 2
"""ZMQ_SRCFD of zmq.h; pyzmq has no name for it."""


class ChannelCounts(msgspec.Struct):
    """What a server has seen since it began."""

    taken: int = 0
    copies: int = 0
    """Sent again after a reconnect though they had arrived."""
    malformed: int = 0
    flooded: int = 0
    """Frames of muted peers, dropped."""
    muted: int = 0
    disconnected: int = 0
    """Connections of peers that flood, cut."""
    refused: int = 0
    """Handshakes with an unknown key."""
    undelivered: int = 0
    """Messages given up because a peer did not acknowledge for long."""


class Rate(msgspec.Struct, frozen=True):
    """A token bucket: frames per second, and how many may come at once."""

    per_s: float = 500.0
    burst: int = 1000
    mute_s: float = 10.0


class _Peer:
    __slots__ = (
        "backlog",
        "counted_lost",
        "heard_at",
        "identity",
        "link",
        "muted_until",
        "name",
        "num_ignored",
        "tokens",
        "tokens_at",
    )

    def __init__(self, identity: bytes, now: float, burst: int) -> None:
        self.identity = identity
        self.name = identity.decode("ascii")
        self.link = Link(secrets.randbits(63) | 1, max_kept=MAX_KEPT, leads=False)
        self.heard_at = now
        self.tokens = float(burst)
        self.tokens_at = now
        self.backlog: deque[tuple[list[bytes], float]] = deque()
        self.muted_until = 0.0
        self.counted_lost = 0
        self.num_ignored = 0


class Exchange(ABC):
    """Binds at once (raises ChannelError), then serves until `close()`. Its thread runs from here on: whatever `_read` needs is there before.

    `identities`: how peers may be called. `allowed_key_files`: certificates of the clients that may connect,
    `keys.client_public_file` by default. `max_peers`: identities remembered at once.
    """

    def __init__(
        self,
        keys: Keys,
        bind: str,
        *,
        identities: re.Pattern[bytes],
        port: int | None = None,
        allowed_key_files: Iterable[Path] = (),
        rate: Rate = Rate(),  # noqa: B008  (frozen)
        max_peers: int = 16_384,
        forget_after_s: float = 7200.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        public, secret = load_pair(keys.server_secret_file)
        files = tuple(allowed_key_files) or (keys.client_public_file,)
        self._allowed = {z85.decode(load_public(file)) for file in files}
        self._identities = identities
        self._rate = rate
        self._max_peers = max_peers
        self._forget_after_s = forget_after_s
        self._clock = clock
        self._counts = ChannelCounts()
        self._muted_until = 0.0
        """When nobody is muted any more."""
        self._peers: dict[bytes, _Peer] = {}
        self._waiting: dict[bytes, _Peer] = {}
        self._acks: dict[bytes, _Peer] = {}
        self._outbox: deque[tuple[str, bytes | None]] = deque()
        self._wakeup = Wakeup()
        self._stopping = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # Else libzmq allows 1,023 sockets; connections are not sockets, but file handles are counted with them.
        self._context.set(zmq.MAX_SOCKETS, min(65_535, self._context.get(zmq.SOCKET_LIMIT)))
        self._context.set(zmq.IPV6, 1)
        self._zap = self._context.socket(zmq.REP)
        self._zap.setsockopt(zmq.LINGER, 0)
        self._zap.bind("inproc://zeromq.zap.01")
        router = self._context.socket(zmq.ROUTER)
        self._router = router
        set_common(router)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(
            zmq.ROUTER_HANDOVER, 1
        )  # a peer that comes back takes over from its dead connection
        router.setsockopt(zmq.BACKLOG, 4096)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_PUBLICKEY, public)
        router.setsockopt(zmq.CURVE_SECRETKEY, secret)
        router.setsockopt(zmq.ZAP_DOMAIN, b"hpcsched")
        try:
            if port is None:
                self._port = router.bind_to_random_port(bind, min_port=30_000, max_port=60_000, max_tries=200)
            else:
                router.bind(f"{bind}:{port}")
                self._port = port
        except zmq.ZMQError as error:
            self._zap.close()
            router.close()
            self._context.term()
            self._wakeup.close()
            raise ChannelError(
                f"cannot listen on {bind}{'' if port is None else f':{port}'}: {error.strerror}"
            ) from error
        self._thread = threading.Thread(target=self._run, name="hpcsched-channel", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._port

    @property
    def counts(self) -> ChannelCounts:
        """A copy of the counters."""
        return msgspec.structs.replace(self._counts)

    @abstractmethod
    def _read(self, peer: str, body: bytes, at: float) -> Callable[[], None]:
        """In the server's thread: the delivery of one message of `peer` that came at `at`. Raises MessageError."""

    def _post(self, peer: str, body: bytes) -> None:
        """From any thread; returns at once. A peer that is away gets it when it comes (back)."""
        if self._stopping:
            raise ChannelError(f"message to {peer} after the channel was closed")
        self._outbox.append((peer, body))
        self._wakeup.set()

    def forget(self, peer: str) -> None:
        """The peer will not come back: drop what is kept for it."""
        self._outbox.append((peer, None))
        self._wakeup.set()

    def close(self, flush_s: float = 0.5) -> None:
        """Hand over what was sent (at most `flush_s`), then close. Idempotent."""
        if self._stopping:
            return
        until = self._clock() + flush_s
        self._stopping = True
        self._wakeup.set()
        self._thread.join(max(0.0, until - self._clock()) + 5.0)
        self._wakeup.close()

    # ---- everything below runs in the server's thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._wakeup.fileno(), zmq.POLLIN)
        next_sweep = self._clock() + 60.0
        ack_at: float | None = None
        while True:
            timeout_ms = 1000
            if self._waiting or ack_at is not None:
                timeout_ms = 10
            ready = dict(poller.poll(timeout_ms))
            try:
                if self._wakeup.fileno() in ready:
                    self._wakeup.clear()
                if self._zap in ready:
                    self._authenticate()
                if self._router in ready:
                    self._receive()
                now = self._clock()
                if self._waiting:
                    self._release(now)
                self._send_all(now)
                if self._acks:
                    if ack_at is None:
                        ack_at = now + ACK_DELAY_S
                    elif now >= ack_at:
                        self._send_acks()
                        ack_at = None
                else:
                    ack_at = None
                if now >= next_sweep:
                    self._sweep(now)
                    next_sweep = now + 60.0
            except Exception:
                # A defect of ours must not end the channel: the trials would lose their driver.
                log.exception("channel: this round failed; going on")
            if self._stopping and not self._outbox:
                break
        with contextlib.suppress(Exception):
            self._send_acks()
        # What was handed to the socket gets a moment to leave.
        self._router.close(linger=500)
        self._zap.close()
        self._context.term()

    def _authenticate(self) -> None:
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, request_id, *_ = [*request, b"", b""]
            good = (
                len(request) == 7
                and version == b"1.0"
                and request[5] == b"CURVE"
                and request[6] in self._allowed
            )
            if not good:
                self._counts.refused += 1
                address = request[3].decode("ascii", "replace") if len(request) > 3 else "?"
                log.warning("channel: refused a connection from %s: unknown key", address)
            code, text = (b"200", b"OK") if good else (b"400", b"unknown key")
            self._zap.send_multipart([b"1.0", request_id, code, text, b"", b""])

    def _receive(self) -> None:
        for _ in range(BATCH):
            uncopied: list[zmq.Frame] = []
            try:
                if self._muted_until <= self._clock():
                    frames = self._router.recv_multipart(zmq.NOBLOCK)
                else:  # only so does ZeroMQ tell the line on which a frame came
                    uncopied = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
                    frames = [frame.bytes for frame in uncopied]
            except zmq.Again:
                return
            now = self._clock()
            peer = self._peer(frames[0], now)
            if peer is None or len(frames) != 3:
                self._counts.malformed += 1
                continue
            peer.heard_at = now
            if peer.muted_until > now:
                self._counts.flooded += 1
                peer.num_ignored += 1
                if uncopied and peer.num_ignored % BACKLOG == 1:
                    self._disconnect(uncopied[0])
                continue
            if peer.backlog or not self._may_pass(peer, now):
                peer.backlog.append((frames, now))
                self._waiting[peer.identity] = peer
                if len(peer.backlog) > BACKLOG:
                    self._counts.muted += 1
                    self._counts.flooded += len(peer.backlog)
                    log.warning(
                        "channel: %s floods the channel: cut off, and ignored for %g s",
                        peer.name,
                        self._rate.mute_s,
                    )
                    peer.backlog.clear()
                    self._muted_until = peer.muted_until = now + self._rate.mute_s
                continue
            self._take(peer, frames, now)

    def _disconnect(self, frame: zmq.Frame) -> None:
        """Cut the line on which this came. ZeroMQ has no call for it, but tells the descriptor; should that be another line of ours by
        now, its client connects again and nothing is lost."""
        try:
            with socket.socket(fileno=os.dup(int(frame.get(_SOURCE)))) as line:
                if line.getsockname()[1] == self._port:
                    line.shutdown(socket.SHUT_RDWR)
                    self._counts.disconnected += 1
        except (OSError, IndexError, zmq.ZMQError):
            pass  # closed already, or no socket

    def _may_pass(self, peer: _Peer, now: float) -> bool:
        rate = self._rate
        peer.tokens = min(float(rate.burst), peer.tokens + (now - peer.tokens_at) * rate.per_s)
        peer.tokens_at = now
        if peer.tokens < 1.0:
            return False
        peer.tokens -= 1.0
        return True

    def _release(self, now: float) -> None:
        for identity, peer in tuple(self._waiting.items()):
            while peer.backlog and self._may_pass(peer, now):
                frames, at = peer.backlog.popleft()
                self._take(peer, frames, at)
            if not peer.backlog:
                del self._waiting[identity]

    def _take(self, peer: _Peer, frames: list[bytes], at: float) -> None:
        _, header, body = frames
        link = peer.link
        try:
            first, fresh = link.take(header)
        except MessageError as error:
            self._malformed(peer, error)
            return
        if first:
            link.connection_began()
            self._transmit(peer, [link.header(), b""])
        if link.num_kept:
            self._flush(peer)
        if link.ack_due:
            self._acks[peer.identity] = peer
        if not fresh:
            self._counts.copies += bool(body)
            return
        try:
            deliver = self._read(peer.name, body, at)
        except MessageError as error:
            self._malformed(peer, error)
            return
        self._counts.taken += 1
        try:
            deliver()
        except Exception:
            log.exception("channel: a message of %s could not be delivered", peer.name)

    def _malformed(self, peer: _Peer, error: MessageError) -> None:
        self._counts.malformed += 1
        log.warning("channel: dropped a frame of %s: %.200s", peer.name, error)

    def _peer(self, identity: bytes, now: float) -> _Peer | None:
        peer = self._peers.get(identity)
        if peer is None:
            if self._identities.fullmatch(identity) is None:
                return None
            if len(self._peers) >= self._max_peers:
                self._drop(min(self._peers.values(), key=lambda known: known.heard_at))
            peer = self._peers[identity] = _Peer(identity, now, self._rate.burst)
        return peer

    def _drop(self, peer: _Peer) -> None:
        for table in (self._peers, self._waiting, self._acks):
            table.pop(peer.identity, None)

    def _send_all(self, now: float) -> None:
        touched: dict[bytes, _Peer] = {}
        while self._outbox:
            name, body = self._outbox.popleft()
            identity = name.encode("ascii", "replace")
            if body is None:
                known = self._peers.get(identity)
                if known is not None:
                    touched.pop(identity, None)
                    if known.link.ack_due:  # its last word: it waits until it knows that we have it
                        self._transmit(known, [known.link.header(), b""])
                    self._drop(known)
                continue
            peer = self._peer(identity, now)
            if peer is None:
                log.error("channel: no such peer name: %r", name)
                continue
            peer.link.put(body)
            touched[identity] = peer
        for peer in touched.values():
            self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        link = peer.link
        for seq, body in link.unsent():
            if not self._transmit(peer, [link.header(seq), body]):
                break  # away or slow: goes on when it is heard again
            link.sent = seq
        if link.num_given_up > peer.counted_lost:
            self._counts.undelivered += link.num_given_up - peer.counted_lost
            peer.counted_lost = link.num_given_up

    def _transmit(self, peer: _Peer, frames: list[bytes]) -> bool:
        try:
            self._router.send_multipart([peer.identity, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH, errno.EHOSTUNREACH):
                raise
            return False
        return True

    def _send_acks(self) -> None:
        for peer in self._acks.values():
            if peer.link.ack_due:
                self._transmit(peer, [peer.link.header(), b""])
        self._acks.clear()

    def _sweep(self, now: float) -> None:
        for peer in tuple(self._peers.values()):
            if now - peer.heard_at > self._forget_after_s:
                self._drop(peer)
