"""The real cluster, session-wide."""

from __future__ import annotations

from tests.support.cluster import cluster

__all__ = ["cluster"]
