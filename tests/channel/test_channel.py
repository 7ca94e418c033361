from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from hpcsched.channel.client import Client
from hpcsched.channel.exchange import Rate
from hpcsched.channel.keys import create_keys
from hpcsched.channel.link import Link
from hpcsched.channel.server import Server
from hpcsched.errors import ChannelError
from hpcsched.wire import (
    MAX_BYTES,
    Heartbeat,
    KillRanks,
    LeaveOrder,
    RankExited,
    Reply,
    SupervisorWelcome,
    encode,
)
from tests.support.channels import Desk, RawPeer, Wire, report, until

PEER = "3.1.rank0"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, answers=True)
    yield made
    made.server.close(0.0)


def speaks(desk: Desk) -> None:
    """The server still serves an honest client."""
    client = desk.client("77.1.rank0")
    client.send(report(1, trial_id=77))
    assert client.receive(10) == Reply(trial_id=77, incarnation=1, seq=1)
    assert client.close()


def test_a_report_is_answered(desk: Desk) -> None:
    client = desk.client()
    client.send(report(1))
    assert client.receive(10) == Reply(trial_id=3, incarnation=1, seq=1)
    assert desk.arrived[0].peer == PEER
    assert client.close()


def test_messages_arrive_once_and_in_order(desk: Desk) -> None:
    client = desk.client()
    for seq in range(1, 400):
        client.send(report(seq))
    assert [client.receive(10).seq for _ in range(1, 400)] == list(range(1, 400))  # type: ignore[union-attr]
    assert [message.seq for message in desk.messages] == list(range(1, 400))  # type: ignore[union-attr]
    client.close()


def test_the_arrival_is_stamped_before_it_is_delivered(tmp_path: Path) -> None:
    ticks = iter(range(10**9))
    desk = Desk(tmp_path, clock=lambda: float(next(ticks)))
    client = desk.client()
    client.send(report(1))
    client.send(report(2))
    until(lambda: len(desk.arrived) == 2)
    assert 0 < desk.arrived[0].at < desk.arrived[1].at
    client.close()
    desk.server.close()


def test_a_message_for_a_peer_that_is_not_there_yet_waits_for_it(desk: Desk) -> None:
    desk.server.send(PEER, LeaveOrder(trial_id=3, incarnation=1, reason="pause"))
    client = desk.client()
    assert client.receive(10) == LeaveOrder(trial_id=3, incarnation=1, reason="pause")
    client.close()


def test_the_first_endpoint_that_answers_is_used(desk: Desk) -> None:
    client = Client(
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", desk.endpoint),
        desk.keys.server_public_file,
        desk.keys.client_secret_file,
        PEER,
    )
    client.send(report(1))
    assert client.receive(20) is not None
    client.close()


def test_a_client_outlives_its_server_and_loses_nothing(tmp_path: Path) -> None:
    first = Desk(tmp_path, answers=True)
    port = first.server.port
    client = first.client()
    client.send(report(1))
    assert client.receive(10) is not None
    first.server.close()
    until(lambda: not client.connected, "the client notices")
    assert client.lost_for_s >= 0.0
    for seq in range(2, 30):
        client.send(report(seq))
    second = Desk(tmp_path, keys=first.keys, answers=True, port=port)
    assert [client.receive(10).seq for _ in range(2, 30)] == list(range(2, 30))  # type: ignore[union-attr]
    assert client.lost_for_s == 0.0
    assert client.close()
    second.server.close()


def test_a_line_that_is_cut_without_a_word_is_noticed_and_nothing_is_lost(tmp_path: Path) -> None:
    """A machine that is gone sends no FIN: only missing heartbeats tell."""
    desk = Desk(tmp_path, answers=True)
    wire = Wire(desk.server.port)
    client = Client(
        (wire.endpoint,),
        desk.keys.server_public_file,
        desk.keys.client_secret_file,
        PEER,
        heartbeat_s=0.1,
        heartbeat_timeout_s=0.3,
    )
    client.send(report(1))
    assert client.receive(10) == Reply(trial_id=3, incarnation=1, seq=1)
    wire.cut()
    for seq in range(2, 20):
        client.send(report(seq))  # into the cut line
    desk.server.send(PEER, LeaveOrder(trial_id=3, incarnation=1, reason="pause"))
    until(lambda: not client.connected, "the client notices")
    wire.mend()
    heard = [client.receive(10) for _ in range(19)]
    assert LeaveOrder(trial_id=3, incarnation=1, reason="pause") in heard
    assert [message.seq for message in desk.messages] == list(range(1, 20))  # type: ignore[union-attr]
    assert client.close()
    wire.close()
    desk.server.close()


def test_an_unknown_key_gets_nothing(desk: Desk, tmp_path: Path) -> None:
    stranger = create_keys(tmp_path / "other")
    client = Client((desk.endpoint,), desk.keys.server_public_file, stranger.client_secret_file, PEER)
    client.send(report(1))
    until(lambda: desk.server.counts.refused >= 1, "the refusal is counted")
    desk.server.send(PEER, LeaveOrder(trial_id=3, incarnation=1, reason="secret"))
    assert client.receive(0.3) is None
    assert not client.connected
    assert desk.arrived == []
    client.close(0.0)
    speaks(desk)


def test_a_peer_without_any_key_gets_nothing(desk: Desk) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IDENTITY, PEER.encode())
    socket.connect(desk.endpoint)
    link = Link(1, max_kept=10, leads=True)
    socket.send_multipart([link.header(1, first=True), encode(report(1))])
    assert socket.poll(300) == 0
    socket.close()
    context.term()
    speaks(desk)
    assert [arrived.peer for arrived in desk.arrived] == ["77.1.rank0"]


def test_a_client_does_not_speak_to_a_server_with_another_key(desk: Desk, tmp_path: Path) -> None:
    other = create_keys(tmp_path / "other")
    client = Client((desk.endpoint,), other.server_public_file, desk.keys.client_secret_file, PEER)
    client.send(report(1))
    assert not client.wait_connected(0.5)
    assert desk.arrived == []
    client.close(0.0)


def test_only_the_listed_client_keys_are_let_in(tmp_path: Path) -> None:
    mine, other = create_keys(tmp_path / "mine"), create_keys(tmp_path / "other")
    desk = Desk(tmp_path, keys=mine, allowed_key_files=(other.client_public_file,))
    refused = desk.client()
    until(lambda: desk.server.counts.refused >= 1)
    assert not refused.connected
    allowed = Client((desk.endpoint,), mine.server_public_file, other.client_secret_file, PEER)
    assert allowed.wait_connected(10)
    refused.close(0.0)
    allowed.close(0.0)
    desk.server.close()


GOOD = encode(report(1))


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"x" * 10,),
        (b"", b"", b"", b""),
        (b"short", GOOD),
        (Link(9, max_kept=1, leads=True).header(1), b""),
        (Link(9, max_kept=1, leads=True).header(1), b"\xc1not msgpack"),
        (Link(9, max_kept=1, leads=True).header(1), GOOD[:-3]),
        (Link(9, max_kept=1, leads=True).header(1), b"\x91" * 100_000),
        (
            Link(9, max_kept=1, leads=True).header(1),
            encode(KillRanks(trial_id=3, incarnation=1, why="not for a driver")),
        ),
        (Link(9, max_kept=1, leads=True).header(1), encode(report(1, trial_id=4))),
        (Link(9, max_kept=1, leads=True).header(1), encode(report(1, incarnation=2))),
        tuple(b"x" for _ in range(500)),
    ],
)
def test_what_is_no_message_is_counted_and_dropped(desk: Desk, frames: tuple[bytes, ...]) -> None:
    peer = RawPeer(desk, PEER.encode())
    peer.send(*frames)
    until(lambda: desk.server.counts.malformed == 1)
    assert desk.arrived == []
    speaks(desk)
    peer.close()


@pytest.mark.parametrize(
    "identity",
    [
        b"rank0",
        b"3.1.rank1",
        b"-1.1.rank0",
        b"3.1.sup.",
        b"3.1.sup.a b",
        b"\xff\xfe",
        b"3.1.sup." + b"n" * 200,
    ],
)
def test_a_peer_whose_name_is_none_of_ours_is_dropped(desk: Desk, identity: bytes) -> None:
    peer = RawPeer(desk, identity)
    peer.send(Link(9, max_kept=1, leads=True).header(1, first=True), GOOD)
    until(lambda: desk.server.counts.malformed == 1)
    assert desk.arrived == []
    speaks(desk)
    peer.close()


def test_a_message_that_is_too_long_ends_the_connection_and_not_the_server(desk: Desk) -> None:
    peer = RawPeer(desk, PEER.encode())
    peer.send(Link(9, max_kept=1, leads=True).header(1), b"x" * (MAX_BYTES + 5000))
    speaks(desk)
    assert [arrived.peer for arrived in desk.arrived] == ["77.1.rank0"]
    peer.close()


def test_a_flooding_peer_is_cut_off_and_ignored_and_others_are_served(tmp_path: Path) -> None:
    desk = Desk(tmp_path, answers=True, rate=Rate(per_s=100, burst=50, mute_s=600))
    peer = RawPeer(desk, PEER.encode())
    monitor = peer.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    link = Link(9, max_kept=1, leads=True)
    for seq in range(1, 5000):
        peer.send(link.header(seq), GOOD)
    until(lambda: desk.server.counts.muted == 1)
    assert monitor.poll(10_000), "its connection is closed"
    speaks(desk)
    taken = len([a for a in desk.arrived if a.peer == PEER])
    assert taken < 1000
    # ZeroMQ connects again by itself: whatever it says is dropped, and the line is cut again and again.
    before = desk.server.counts
    for seq in range(5000, 10000):
        peer.send(link.header(seq), GOOD)
    until(lambda: desk.server.counts.flooded > before.flooded)
    until(lambda: desk.server.counts.disconnected > 1)
    speaks(desk)
    assert len([a for a in desk.arrived if a.peer == PEER]) == taken
    peer.socket.disable_monitor()
    monitor.close()
    peer.close()
    desk.server.close()


def test_an_honest_client_above_the_rate_is_slowed_down_and_loses_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, rate=Rate(per_s=2000, burst=10))
    client = desk.client()
    for seq in range(1, 1500):
        client.send(report(seq))
    until(lambda: len(desk.arrived) == 1499)
    assert [message.seq for message in desk.messages] == list(range(1, 1500))  # type: ignore[union-attr]
    assert desk.server.counts.muted == 0
    client.close()
    desk.server.close()


def test_a_second_connection_of_the_same_name_takes_over(desk: Desk) -> None:
    """A supervisor that lost its line comes back before the server has noticed."""
    first = desk.client()
    assert first.wait_connected(10)
    second = desk.client()
    second.send(report(1))
    assert second.receive(10) is not None
    second.close()
    first.close(0.0)


def test_many_peers_are_told_apart(desk: Desk) -> None:
    context = zmq.Context()
    clients = [desk.client(f"{number}.1.sup.node-{number}", context=context) for number in range(40)]
    for number, client in enumerate(clients):
        client.send(Heartbeat(trial_id=number, incarnation=1, node=f"node-{number}"))
    until(lambda: len(desk.arrived) == 40)
    for number in range(40):
        desk.server.send(f"{number}.1.sup.node-{number}", SupervisorWelcome(trial_id=number, incarnation=1))
    for number, client in enumerate(clients):
        assert client.receive(10) == SupervisorWelcome(trial_id=number, incarnation=1)
    for client in clients:
        client.close(0.0)
    context.term()


def test_threads_may_send_and_receive_at_once(desk: Desk) -> None:
    client = desk.client()

    def send(start: int) -> None:
        for seq in range(start, start + 50):
            client.send(report(seq))

    threads = [threading.Thread(target=send, args=(1000 * number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    seen = {client.receive(10).seq for _ in range(200)}  # type: ignore[union-attr]
    for thread in threads:
        thread.join()
    assert len(seen) == 200
    client.close()


def test_what_deliver_raises_does_not_end_the_server(tmp_path: Path) -> None:
    calls = []

    def deliver(arrived: object) -> None:
        calls.append(arrived)
        raise ValueError("a defect of the driver")

    keys = create_keys(tmp_path)
    server = Server(keys, "tcp://127.0.0.1", deliver=deliver)
    client = Client(
        (f"tcp://127.0.0.1:{server.port}",), keys.server_public_file, keys.client_secret_file, "3.1.sup.n"
    )
    for code in range(3):
        client.send(RankExited(trial_id=3, incarnation=1, node="n", rank=0, code=code))
    assert client.close(10)
    assert len(calls) == 3
    server.close()


def test_a_forgotten_peer_leaves_nothing_behind(desk: Desk) -> None:
    desk.server.send(PEER, LeaveOrder(trial_id=3, incarnation=1, reason="pause"))
    desk.server.forget(PEER)
    client = desk.client()
    client.send(report(1))
    assert client.receive(10) == Reply(trial_id=3, incarnation=1, seq=1)
    client.close()


def test_a_peer_that_is_forgotten_at_its_last_word_knows_that_it_was_heard(tmp_path: Path) -> None:
    """Else a supervisor waits ten seconds at its end, and its step with it."""
    keys = create_keys(tmp_path / "keys")
    server = Server(keys, "tcp://127.0.0.1", deliver=lambda arrived: server.forget(arrived.peer))
    endpoint = f"tcp://127.0.0.1:{server.port}"
    client = Client((endpoint,), keys.server_public_file, keys.client_secret_file, PEER)
    client.send(report(1))
    assert client.close(10), "acknowledged"
    server.close(0.0)


def test_a_port_in_use_is_a_channel_error(desk: Desk) -> None:
    with pytest.raises(ChannelError, match="cannot listen"):
        Server(desk.keys, "tcp://127.0.0.1", deliver=lambda arrived: None, port=desk.server.port)


def test_closing_ends_all_threads(tmp_path: Path) -> None:
    before = psutil.Process().num_threads()
    desk = Desk(tmp_path, answers=True)
    client = desk.client()
    client.send(report(1))
    assert client.receive(10) is not None
    client.close()
    desk.server.close()
    until(lambda: psutil.Process().num_threads() <= before)
    with pytest.raises(ChannelError):
        client.send(report(2))
    with pytest.raises(ChannelError):
        desk.server.send(PEER, Reply(trial_id=3, incarnation=1, seq=1))


def test_no_secret_is_in_the_environment_or_the_command_line(desk: Desk) -> None:
    secrets = [
        file.read_text().split('secret-key = "')[1][:40]
        for file in desk.keys.server_secret_file.parent.glob("*_secret")
    ]
    seen = repr(dict(os.environ)) + repr(psutil.Process().cmdline())
    assert not any(secret in seen for secret in secrets)
