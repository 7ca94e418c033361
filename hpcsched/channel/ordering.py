"""The channel for orders from a user's shell: a socket, a port and keys of its own.

It is the same exchange as that of trials, but not the same socket: with ROUTER_HANDOVER whoever is let in may take over any
name on that socket, so that one key would speak for the other's peers. Here a trial's key does not pass the handshake, and on the
trials' socket the key for orders does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from zmq.utils import z85

from hpcsched.channel.exchange import Exchange, Rate
from hpcsched.channel.keys import Keys, load_pair
from hpcsched.channel.line import Line
from hpcsched.errors import ChannelError, MessageError
from hpcsched.orders import Answer, Order, decode_answer, decode_order, encode_answer, encode_order

_IDENTITY = re.compile(rb"order\.[0-9a-f]{32}")
RATE = Rate(per_s=20.0, burst=40, mute_s=10.0)
"""Of one order's giver: frames, not orders."""
MAX_PEERS = 64
FORGET_AFTER_S = 600.0


class OrderServer(Exchange):
    """Takes orders meant for this driver life. `deliver` gets each with the name of who gave it, in the server's thread; see
    `Server`. Whoever gives an order is called after it. Raises ChannelError when it cannot listen."""

    def __init__(
        self,
        keys: Keys,
        bind: str,
        *,
        life: int,
        deliver: Callable[[str, Order], None],
        rate: Rate = RATE,
    ) -> None:
        self._life = life
        self._deliver = deliver
        super().__init__(
            keys,
            bind,
            identities=_IDENTITY,
            rate=rate,
            max_peers=MAX_PEERS,
            forget_after_s=FORGET_AFTER_S,
        )

    def answer(self, peer: str, answer: Answer) -> None:
        """From any thread; returns at once. Raises ChannelError after `close`."""
        self._post(peer, encode_answer(answer))

    def _read(self, peer: str, body: bytes, at: float) -> Callable[[], None]:  # noqa: ARG002 - orders are not timed
        order = decode_order(body)
        if order.order_id != peer.removeprefix("order."):
            raise MessageError(f"names order {order.order_id}")
        if order.life != self._life:
            raise MessageError(f"an order for driver life {order.life}, this is {self._life}")
        return lambda: self._deliver(peer, order)


class OrderLine(Line[Answer]):
    """A shell's line for one order. `server_key`: as `driver.json` names it. Raises ChannelError for keys that are none."""

    def __init__(
        self, endpoints: Sequence[str], server_key: str, keys: Keys, order: Order, *, connect_limit_s: float
    ) -> None:
        super().__init__(
            endpoints,
            _checked(server_key),
            load_pair(keys.client_secret_file),
            f"order.{order.order_id}",
            read=decode_answer,
            connect_limit_s=connect_limit_s,
        )
        self._post(encode_order(order))


def _checked(server_key: str) -> bytes:
    try:
        key = server_key.encode("ascii")
        if len(z85.decode(key)) == 32:
            return key
    except (ValueError, KeyError, UnicodeEncodeError, IndexError):
        pass
    raise ChannelError("the driver's public key in driver.json is none")
