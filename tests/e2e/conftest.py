"""The real clusters, session-wide."""

from __future__ import annotations

from tests.support.cluster import cluster, confined_cluster

__all__ = ["cluster", "confined_cluster"]
