"""What a command says on stdout at its end, when all that matters is done or must still be done whoever reads."""

from __future__ import annotations

import sys

from hpcsched.driver.outlet import Outlet, write_through

PATIENCE_S = 5.0
"""Nobody reads: what is still to be done (`--requeue`) waits so long."""
UNREAD_S = 60.0
"""So long the process stays for a reader. It may hold an allocation."""


class LastWords:
    """Texts in their order; never raises. What could not be written (nobody reads, a full disk) is left out."""

    def __init__(self) -> None:
        self._outlet: Outlet[str] = Outlet(
            lambda texts, _: write_through(sys.stdout, "".join(texts)), most=100, name="last-words"
        )

    def say(self, text: str) -> None:
        """It has been written when this returns, unless nobody reads."""
        self._outlet.put(text)
        self._outlet.wait(PATIENCE_S)

    def close(self) -> None:
        """Gives a reader the last chance."""
        self._outlet.close(UNREAD_S)
