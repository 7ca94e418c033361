"""Which address of this host the nodes can reach."""

from __future__ import annotations

import socket
from collections.abc import Sequence


def addresses_towards(nodes: Sequence[str]) -> tuple[str, ...]:
    """This host's IPv4 addresses on the routes to the given names or addresses, each once, the most useful first.

    A datagram socket is connected (nothing is sent) and asked for its own end. Loopback is left out unless there
    is nothing else; names that do not resolve are passed over.
    """
    found: list[str] = []
    for node in nodes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((node, 9))
                address = probe.getsockname()[0]
            except OSError:
                continue
        if address not in found:
            found.append(address)
    outward = [address for address in found if not address.startswith("127.")]
    if outward:
        return tuple(outward)
    try:
        mine = socket.gethostbyname(socket.gethostname())
    except OSError:
        mine = "127.0.0.1"
    return tuple(dict.fromkeys([*found, mine]))
