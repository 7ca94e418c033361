"""Where a driver life takes users' orders: its endpoint and the files in `control/`. All go into the inbox, with the way back."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from hpcsched.channel.keys import create_keys, load_public
from hpcsched.channel.ordering import OrderServer
from hpcsched.driver.control import Letter, Letterbox
from hpcsched.driver.inbox import Ordered
from hpcsched.driver.say import say
from hpcsched.errors import ChannelError
from hpcsched.orders import Answer, Order
from hpcsched.runfolder import RunFolder


class OrderDesk:
    """Listens from the beginning; makes new keys for its life. Raises ChannelError when it cannot."""

    def __init__(self, folder: RunFolder, bind: str, *, life: int, put: Callable[[Ordered], None]) -> None:
        keys = create_keys(folder.order_keys(life))
        self.server_key = load_public(keys.server_public_file).decode()
        self._put = put
        self._box = Letterbox(folder)
        self._server = OrderServer(keys, bind, life=life, deliver=self._take)

    def endpoints(self, addresses: Sequence[str], *, is_local: bool) -> tuple[str, ...]:
        """For `driver.json`. A login node may know this host by its name and not reach the nodes' network."""
        hosts = [*addresses] if is_local else [*addresses, socket.gethostname()]
        return tuple(f"tcp://{host}:{self._server.port}" for host in hosts)

    def look_at_files(self) -> None:
        """To be called each second."""
        letters, complaints = self._box.look()
        for letter in letters:
            self._put(Ordered(letter.order, self._answer_of(letter)))
        for complaint in complaints:
            say(complaint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def _take(self, peer: str, order: Order) -> None:
        def answer(given: Answer) -> None:
            with contextlib.suppress(ChannelError):  # we are closing: whoever asked goes on to the file
                self._server.answer(peer, given)

        self._put(Ordered(order, answer))

    def _answer_of(self, letter: Letter) -> Callable[[Answer], None]:
        def answer(given: Answer) -> None:
            if wrong := self._box.answer(letter, given):
                say(wrong)

        return answer
