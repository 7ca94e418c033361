"""The driver's end of the channel to trials: who speaks as which trial, and what they say."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from hpcsched.channel.exchange import Exchange, Rate
from hpcsched.channel.keys import Keys
from hpcsched.errors import MessageError
from hpcsched.wire import FromDriver, ToDriver, decode_to_driver, encode

_IDENTITY = re.compile(rb"(\d{1,9})\.(\d{1,9})\.(rank0|sup\.[A-Za-z0-9_.\-]{1,128})")


class Arrived(msgspec.Struct, frozen=True):
    """One message and when it came. `peer`: "TRIAL.INCARNATION.rank0" or "TRIAL.INCARNATION.sup.NODE"."""

    peer: str
    message: ToDriver
    at: float
    """`time.monotonic()` s, in the socket's thread."""


class Server(Exchange):
    """Binds at once (raises ChannelError), then serves until `close()`.

    `deliver` is called in the server's thread, for each message in the order of arrival; it must be quick and must
    not raise (what it raises is logged, and the message is lost). `allowed_key_files`: certificates of the clients
    that may connect, `keys.client_public_file` by default. `max_peers`: identities remembered at once.
    """

    def __init__(
        self,
        keys: Keys,
        bind: str = "tcp://0.0.0.0",
        *,
        deliver: Callable[[Arrived], None],
        port: int | None = None,
        allowed_key_files: Iterable[Path] = (),
        rate: Rate = Rate(),  # noqa: B008  (frozen)
        max_peers: int = 16_384,
        forget_after_s: float = 7200.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deliver = deliver
        super().__init__(
            keys,
            bind,
            identities=_IDENTITY,
            port=port,
            allowed_key_files=allowed_key_files,
            rate=rate,
            max_peers=max_peers,
            forget_after_s=forget_after_s,
            clock=clock,
        )

    def send(self, peer: str, message: FromDriver) -> None:
        """From any thread; returns at once. A peer that is away gets it when it comes (back)."""
        self._post(peer, encode(message))

    def _read(self, peer: str, body: bytes, at: float) -> Callable[[], None]:
        message = decode_to_driver(body)
        trial_id, incarnation = peer.split(".", 2)[:2]
        if message.trial_id != int(trial_id) or message.incarnation != int(incarnation):
            raise MessageError(f"names trial {message.trial_id}, incarnation {message.incarnation}")
        return lambda: self._deliver(Arrived(peer, message, at))
