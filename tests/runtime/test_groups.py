from __future__ import annotations

import socket
import threading
import time

from hpcsched.runtime.groups import wait_for_rank_0
from tests.support.ranks import free_port


def test_a_rank_comes_to_the_store_as_soon_as_it_is_there() -> None:
    port = free_port()
    came = threading.Event()
    thread = threading.Thread(target=lambda: (wait_for_rank_0("127.0.0.1", port, 60.0), came.set()))
    thread.start()
    assert not came.wait(0.05), "nobody listens yet"
    with socket.create_server(("127.0.0.1", port)):
        assert came.wait(60.0)
    thread.join()


def test_it_does_not_wait_for_ever() -> None:
    began = time.monotonic()
    wait_for_rank_0("127.0.0.1", free_port(), 0.05)
    assert time.monotonic() - began < 30.0
