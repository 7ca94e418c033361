"""Files that nobody else may read."""

from __future__ import annotations

from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """A file for the owner alone, whole or not at all. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.touch(mode=0o600)
    fresh.write_bytes(data)
    fresh.rename(path)
