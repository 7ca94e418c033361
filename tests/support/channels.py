"""Builders for tests of the channel: a server with a record of what arrived, clients, and raw peers that misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from hpcsched.channel.client import Client
from hpcsched.channel.keys import Keys, create_keys, load_pair, load_public
from hpcsched.channel.server import Arrived, Server
from hpcsched.wire import Reply, Report, ToDriver

LIMIT_S = 20.0


def until(condition: Callable[[], object], what: str = "condition", limit_s: float = LIMIT_S) -> None:
    """Wait for a condition with a limit."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        threading.Event().wait(0.005)


def report(seq: int, *, trial_id: int = 3, incarnation: int = 1, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "training_iteration": seq,
        "metrics": {"accuracy": 0.5},
        "time_this_iter_s": 1.0,
    }
    return Report(trial_id=trial_id, incarnation=incarnation, seq=seq, **(fields | changes))


class Desk:
    """A server whose arrivals are kept; answers reports with a reply when `answers`."""

    def __init__(
        self, folder: Path, *, keys: Keys | None = None, answers: bool = False, **options: Any
    ) -> None:
        self.keys = keys or create_keys(folder / "keys")
        self.arrived: list[Arrived] = []
        self.answers = answers
        self.server = Server(self.keys, "tcp://127.0.0.1", deliver=self._deliver, **options)
        self.endpoint = f"tcp://127.0.0.1:{self.server.port}"

    def _deliver(self, arrived: Arrived) -> None:
        self.arrived.append(arrived)
        message = arrived.message
        if self.answers and isinstance(message, Report):
            self.server.send(
                arrived.peer,
                Reply(trial_id=message.trial_id, incarnation=message.incarnation, seq=message.seq),
            )

    @property
    def messages(self) -> list[ToDriver]:
        return [arrived.message for arrived in self.arrived]

    def client(self, identity: str = "3.1.rank0", **options: Any) -> Client:
        return Client(
            (self.endpoint,), self.keys.server_public_file, self.keys.client_secret_file, identity, **options
        )


class RawPeer:
    """A DEALER with a valid key (or `key_file` of one's own) that sends whatever bytes the test likes."""

    def __init__(self, desk: Desk, identity: bytes, key_file: Path | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 100_000)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, load_public(desk.keys.server_public_file))
        public, secret = load_pair(key_file or desk.keys.client_secret_file)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self.socket.connect(desk.endpoint)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def close(self) -> None:
        self.socket.close()
        self.context.term()


class Wire:
    """A cable between a client and a server that can be cut the hard way: nothing passes, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._cut = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        """New connections pass; the old ones stay dead."""
        self._cut = threading.Event()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target, self._cut), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not cut.is_set():
                    target.sendall(data)
            target.close()
