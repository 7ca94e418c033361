"""What the driver and the child that makes its log say to each other, one line each (see `hpcsched.eventlog.seal`)."""

from __future__ import annotations

from enum import StrEnum

DONE = b"done\n"
"""The answer to an order."""


class Order(StrEnum):
    POLL = "poll"
    """Read on."""
    PUBLISH = "publish"
    """Read on, and put what there is in place."""
    FINISH = "finish"
    """The same for the last time, and end."""
