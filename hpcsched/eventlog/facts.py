"""Two small facts of a run: its best complete checkpoint, and atoms that are set aside."""

from __future__ import annotations

import msgspec

from hpcsched.core.actions import CheckpointRef


class BestSoFar(msgspec.Struct, frozen=True):
    """The best complete checkpoint, as last published."""

    checkpoint: CheckpointRef
    metric: float
    """Windowed score in the user's sign."""
    saved_s: float
    """When its checkpoint was complete."""
    published_s: float


class Aside(msgspec.Struct, frozen=True):
    """An atom that is not used, and since when and why."""

    since_s: float
    why: str
