"""Orders over the driver's endpoint: who may give them, and what becomes of all else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from hpcsched.channel.client import Client
from hpcsched.channel.exchange import Rate
from hpcsched.channel.keys import Keys, create_keys, load_pair, load_public
from hpcsched.channel.link import Link
from hpcsched.channel.ordering import RATE, OrderLine, OrderServer
from hpcsched.errors import ChannelError
from hpcsched.orders import MAX_BYTES, Answer, Order, StopAsked, encode_order, new_order_id
from hpcsched.wire import encode
from tests.support.channels import Desk, report, until

LIFE = 3


class Driver:
    """Answers each order with its number."""

    def __init__(self, folder: Path, rate: Rate = RATE) -> None:
        self.keys = create_keys(folder / "keys" / str(LIFE) / "orders")
        self.taken: list[tuple[str, Order]] = []
        self.server = OrderServer(self.keys, "tcp://127.0.0.1", life=LIFE, deliver=self._deliver, rate=rate)
        self.endpoint = f"tcp://127.0.0.1:{self.server.port}"
        self.public = load_public(self.keys.server_public_file).decode()

    def _deliver(self, peer: str, order: Order) -> None:
        self.taken.append((peer, order))
        self.server.answer(peer, Answer(order.order_id, True, f"order {len(self.taken)}"))

    def gives(self, order: Order, keys: Keys | None = None, wait_s: float = 10.0) -> Answer | None:
        line = OrderLine(
            ("tcp://127.0.0.1:1", self.endpoint), self.public, keys or self.keys, order, connect_limit_s=2.0
        )
        try:
            return line.receive(wait_s)
        finally:
            line.close(0.0)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.server.close(0.0)


def an_order(life: int = LIFE) -> Order:
    return Order(new_order_id(), life, StopAsked(1))


class Raw:
    """A peer that knows a key and the frames, and sends what it likes."""

    def __init__(self, driver: Driver, identity: bytes) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 100_000)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, driver.public.encode())
        public, secret = load_pair(driver.keys.client_secret_file)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self.socket.connect(driver.endpoint)
        self.link = Link(9, max_kept=1, leads=True)

    def send(self, body: bytes, seq: int = 1) -> None:
        self.socket.send_multipart([self.link.header(seq), body])

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def test_an_order_is_answered(driver: Driver) -> None:
    order = an_order()
    assert driver.gives(order) == Answer(order.order_id, True, "order 1")
    assert driver.taken == [(f"order.{order.order_id}", order)]


def test_the_key_of_trials_gives_no_orders_and_the_key_of_orders_speaks_for_no_trial(
    driver: Driver, tmp_path: Path
) -> None:
    desk = Desk(tmp_path / "trials", answers=True)
    assert driver.gives(an_order(), desk.keys, wait_s=0.5) is None
    until(lambda: driver.server.counts.refused >= 1, "the trial's key is refused")
    speaker = Client(
        (desk.endpoint,), desk.keys.server_public_file, driver.keys.client_secret_file, "3.1.rank0"
    )
    speaker.send(report(1))
    until(lambda: desk.server.counts.refused >= 1, "the key for orders is refused")
    assert not speaker.connected
    assert not desk.arrived
    assert not driver.taken
    speaker.close(0.0)
    desk.server.close(0.0)


def test_strangers_and_keys_of_an_earlier_life_are_refused(driver: Driver, tmp_path: Path) -> None:
    old = create_keys(tmp_path / "keys" / str(LIFE - 1) / "orders")
    assert driver.gives(an_order(), old, wait_s=0.5) is None
    until(lambda: driver.server.counts.refused >= 1)
    assert not driver.taken
    assert driver.gives(an_order()) is not None


def test_what_is_no_order_for_this_life_is_counted_and_dropped(driver: Driver) -> None:
    mine = an_order()
    bodies = [
        b"\xc1",
        b"{}",
        encode(report(1)),
        encode_order(an_order()),  # of somebody else: the peer is called after its own
        encode_order(Order(mine.order_id, LIFE - 1, StopAsked())),
        encode_order(mine) + b" " * MAX_BYTES,
    ]
    peer = Raw(driver, f"order.{mine.order_id}".encode())
    for number, body in enumerate(bodies, 1):
        peer.send(body, number)
        until(lambda number=number: driver.server.counts.malformed == number, f"body {number}")  # type: ignore[misc]
    named_as_a_trial = Raw(driver, b"3.1.rank0")
    named_as_a_trial.send(encode_order(an_order()))
    until(lambda: driver.server.counts.malformed == len(bodies) + 1, "the name is none of an order")
    peer.send(b"x" * (1 << 21), len(bodies) + 1)  # ends the connection before it is a message
    assert not driver.taken
    assert driver.gives(an_order()) is not None
    named_as_a_trial.close()
    peer.close()


def test_a_flood_of_orders_is_cut_off_and_others_are_served(tmp_path: Path) -> None:
    driver = Driver(tmp_path, Rate(per_s=5.0, burst=5, mute_s=600.0))
    mine = an_order()
    peer = Raw(driver, f"order.{mine.order_id}".encode())
    for seq in range(1, 2000):
        peer.send(encode_order(mine), seq)
    until(lambda: driver.server.counts.muted == 1)
    assert driver.gives(an_order()) is not None
    assert sum(order == mine for _, order in driver.taken) < 50
    peer.close()
    driver.server.close(0.0)


@pytest.mark.parametrize("server_key", ["", "short", "\N{SNOWMAN}" * 40, "~" * 40])
def test_a_server_key_that_is_none_is_a_channel_error(driver: Driver, server_key: str) -> None:
    with pytest.raises(ChannelError, match="public key"):
        OrderLine((driver.endpoint,), server_key, driver.keys, an_order(), connect_limit_s=1.0)
