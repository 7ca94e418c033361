"""Node lists as Slurm writes them, expanded."""

from __future__ import annotations


def expand_nodelist(text: str) -> tuple[str, ...]:
    """("gpu-a1n01", "gpu-a1n02") of "gpu-a1n[01-02]": several brackets, mixed padding, commas. Each name once, in the
    list's order. Text that is no node list gives ()."""
    # ClusterShell costs 30 ms: not at import time. Group syntax ("@rack1") is off: Slurm has none.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    text = text.strip()
    if text in {"", "(null)", "None", "N/A"}:
        return ()
    try:
        return tuple(str(name) for name in NodeSet(text, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, ValueError):  # a bare ValueError: ranges such as "[0-1-2-3-4]" (ClusterShell 1.9)
        return ()
