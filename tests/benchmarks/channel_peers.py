"""Many peers in one process: `python -m tests.benchmarks.channel_peers FACTS.json` (started by tests.benchmarks.channel).

Each trial is a rank 0 that reports at its rate and a supervisor that sends a heartbeat a second: two DEALER sockets with keys
that speak the line's protocol (`hpcsched.channel.link`), all of them in one thread. Waits for a line on standard input when
all have connected; at the end it writes the times to a file and prints one JSON line.
"""

from __future__ import annotations

import heapq
import json
import resource
import select
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import zmq

from hpcsched.channel.keys import load_pair, load_public
from hpcsched.channel.link import Link
from hpcsched.channel.sockets import set_common, set_heartbeats
from hpcsched.wire import (
    FromDriver,
    Heartbeat,
    RankHello,
    Reply,
    Report,
    SupervisorHello,
    ToDriver,
    decode_from_driver,
    encode,
)


class Peer:
    """One connection."""

    def __init__(self, context: zmq.Context[Any], facts: dict[str, Any], identity: str, session: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        set_common(self.socket)
        set_heartbeats(self.socket, heartbeat_s=1.0, heartbeat_timeout_s=30.0)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        public, secret = load_pair(Path(facts["client_key_file"]))
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, load_public(Path(facts["server_key_file"])))
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self.socket.connect(facts["endpoint"])
        self.link = Link(session, max_kept=10_000, leads=True)
        self.link.connection_began()
        self.socket.send_multipart([self.link.header(first=True), b""])
        self.asked: dict[int, float] = {}

    def send(self, message: ToDriver) -> None:
        self.link.put(encode(message))
        for seq, body in self.link.unsent():
            self.socket.send_multipart([self.link.header(seq), body], zmq.NOBLOCK)
            self.link.sent = seq

    def drain(self) -> list[FromDriver]:
        found = []
        while True:
            try:
                header, body = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            if self.link.take(header)[1]:
                found.append(decode_from_driver(body))


def main() -> int:
    facts = json.loads(Path(sys.argv[1]).read_text())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    num, rate, seconds = facts["trials"], facts["rate"], facts["seconds"]
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, min(65_535, context.get(zmq.SOCKET_LIMIT)))
    ranks = [Peer(context, facts, f"{trial}.1.rank0", 2 * trial + 1) for trial in range(num)]
    supervisors = [
        Peer(context, facts, f"{trial}.1.sup.{facts['nodes'][trial]}", 2 * trial + 2) for trial in range(num)
    ]
    poll = select.epoll()
    by_fd: dict[int, tuple[Peer, bool]] = {}
    for peers, are_ranks in ((ranks, True), (supervisors, False)):
        for peer in peers:
            fd = peer.socket.getsockopt(zmq.FD)
            by_fd[fd] = (peer, are_ranks)
            poll.register(fd, select.EPOLLIN | select.EPOLLET)
    print("ready", flush=True)
    sys.stdin.readline()
    for trial in range(num):
        supervisors[trial].send(
            SupervisorHello(trial, 1, node=facts["nodes"][trial], pid=1, step_id="", devices=(), cores=())
        )
        ranks[trial].send(RankHello(trial, 1, pid=1, world_size=1, setup_s={}, restored_iteration=0))
    began = time.monotonic() + 1.0
    every_s = num / rate
    due = [(began + every_s * trial / num, 2 * trial) for trial in range(num)]
    due += [(began + trial / num, 2 * trial + 1) for trial in range(num)]
    heapq.heapify(due)
    latencies: list[tuple[float, float]] = []
    sent = answered = welcomes = 0
    iterations = [0] * num
    end = began + seconds
    stop = end + facts["wait_s"]
    late_s = 0.0
    rounds = [0.0]

    def take(peer: Peer, is_rank: bool) -> None:
        nonlocal answered, welcomes
        for message in peer.drain():
            now = time.monotonic()
            if isinstance(message, Reply):
                asked = peer.asked.pop(message.seq, None)
                if asked is not None:
                    answered += 1
                    latencies.append((asked, now - asked))
            elif not is_rank:
                welcomes += 1

    while (now := time.monotonic()) < stop and (now < end or answered < sent):
        while due and due[0][0] <= now:
            at, which = heapq.heappop(due)
            trial, is_heartbeat = divmod(which, 2)
            if is_heartbeat:
                heapq.heappush(due, (at + 1.0, which))
                peer = supervisors[trial]
                peer.send(Heartbeat(trial, 1, node=facts["nodes"][trial]))
            elif at < end:
                heapq.heappush(due, (at + every_s, which))
                peer = ranks[trial]
                iterations[trial] += 1
                seq = iterations[trial]
                peer.asked[seq] = now
                late_s = max(late_s, now - at)
                peer.send(
                    Report(
                        trial,
                        1,
                        seq=seq,
                        training_iteration=seq,
                        metrics={"accuracy": 0.5},
                        time_this_iter_s=every_s,
                    )
                )
                sent += 1
            else:
                continue
            take(peer, not is_heartbeat)  # a send may use up the edge that told of something to read
        rounds.append(time.monotonic() - now)
        wait_s = max(0.0, min(due[0][0] if due else stop, stop) - time.monotonic())
        for fd, _ in poll.poll(min(wait_s, 0.05)):
            take(*by_fd[fd])
    rounds.sort()
    steady = [latency for asked, latency in latencies if asked >= began + min(2.0, seconds / 4)]
    Path(facts["latencies_file"]).write_bytes(array("d", steady).tobytes())
    print(
        json.dumps(
            {
                "sent": sent,
                "answered": answered,
                "welcomes": welcomes,
                "late_s": late_s,
                "round_p99_s": rounds[int(0.99 * len(rounds))],
            }
        ),
        flush=True,
    )
    for peer in (*ranks, *supervisors):
        peer.socket.close(0)
    context.term()
    return 0


if __name__ == "__main__":
    sys.exit(main())
