"""A line to the user from whatever thread: to stderr, beside the screen's own."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(f"hpcsched: {text}", file=sys.stderr, flush=True)
