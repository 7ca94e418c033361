"""Ids have types: a trial's number is not an incarnation's."""

from __future__ import annotations

from typing import NewType

TrialId = NewType("TrialId", int)
"""From 0, in order of creation."""

Incarnation = NewType("Incarnation", int)
"""From 1: each launch of a trial (start, resize, resume, retry) has the next number."""
