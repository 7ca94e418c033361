"""What differs between Slurm versions, for the launcher: one row a change (RELEASE_NOTES, and what was seen)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Version: TypeAlias = tuple[int, int]
"""Such as (22, 5)."""

OLDEST: Version = (20, 11)


class Abilities(msgspec.Struct, frozen=True):
    """What srun of one version can do."""

    overlap: bool
    """`--overlap` also shares GPUs and memory: the default binding works."""
    exact: bool
    """`--exact` exists; before 20.11 steps were exact by default."""
    stepmgr: bool
    """The job may have its own step manager, which answers while the controller is away."""


_SINCE: dict[str, Version] = {"exact": (20, 11), "overlap": (22, 5), "stepmgr": (24, 5)}


def abilities_of(version: Version | None) -> Abilities:
    """Of an unknown version (None) the newest are assumed: srun's own refusal then tells."""
    known = version or (99, 0)
    return Abilities(**{name: known >= since for name, since in _SINCE.items()})
