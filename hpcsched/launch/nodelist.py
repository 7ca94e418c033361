"""Node lists as Slurm writes them, expanded."""

from __future__ import annotations

import re

MOST_NAMES = 65_536
"""Slurm has no larger clusters; a list of more is nonsense, and to expand it would take all memory."""
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_LONG_NUMBER = re.compile(r"\]\d{7}", re.ASCII)
"""ClusterShell takes "n[1-4]999" for the range 1999-4999/1000, and asserts that no range is longer than a billion."""
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?(?:/\d{1,6})?", re.ASCII)


def expand_nodelist(text: str) -> tuple[str, ...]:
    """("gpu-a1n01", "gpu-a1n02") of "gpu-a1n[01-02]": several brackets, mixed padding, commas. Each name once, in the
    list's order. Text that is no node list gives ()."""
    # ClusterShell costs 30 ms: not at import time. Group syntax ("@rack1") is off: Slurm has none.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    text = text.strip()
    if text in {"", "(null)", "None", "N/A"} or _most_names(text) > MOST_NAMES or _LONG_NUMBER.search(text):
        return ()
    try:
        return tuple(str(name) for name in NodeSet(text, resolver=RESOLVER_NOGROUP))
    except (
        NodeSetException,
        ValueError,
    ):  # a bare ValueError: ranges such as "[0-1-2-3-4]" (ClusterShell 1.9)
        return ()


def _most_names(text: str) -> int:
    """How many names this can be at most, without making them."""
    total = 0
    for term in re.split(r",(?![^\[]*\])", text):
        names = 1
        for bracket in _BRACKET.findall(term):
            names *= sum(_width(piece) for piece in bracket.split(","))
            if names > MOST_NAMES:
                return names
        total += names
    return total


def _width(piece: str) -> int:
    """Of "3", "01-64" or "0-9/2". Anything else is no range (ClusterShell would make one of "1-0-99999999")."""
    match = _RANGE.fullmatch(piece.strip())
    if match is None:
        return MOST_NAMES + 1
    return 1 if match[2] is None else max(1, int(match[2]) - int(match[1]) + 1)
