"""A supervisor's or rank 0's line to the driver, usable from any thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from hpcsched.channel.keys import load_pair, load_public
from hpcsched.channel.line import Line
from hpcsched.wire import FromDriver, ToDriver, decode_from_driver, encode


class Client(Line[FromDriver]):
    """Connects in the background at once. `identity` is "TRIAL.INCARNATION.rank0" or "TRIAL.INCARNATION.sup.NODE".

    Raises ChannelError when a key file is missing, not ours or readable by others.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        server_key_file: str | Path,
        client_key_file: str | Path,
        identity: str,
        *,
        heartbeat_s: float = 1.0,
        heartbeat_timeout_s: float = 5.0,
        context: zmq.Context[Any] | None = None,
    ) -> None:
        super().__init__(
            endpoints,
            load_public(Path(server_key_file)),
            load_pair(Path(client_key_file)),
            identity,
            read=decode_from_driver,
            heartbeat_s=heartbeat_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            context=context,
        )

    def send(self, message: ToDriver) -> None:
        """From any thread; returns at once. Arrives once and in order, as soon as the driver is there."""
        self._post(encode(message))
