"""`fail_fast`: a search whose first trials all fail before anybody has reported the metric ends, and says what the last one said."""

from __future__ import annotations

from hpcsched.core.ids import TrialId


class FailFast:
    """Counts trials that crashed, or ended without the metric. Ask only while nobody has ever reported it."""

    __slots__ = ("_failed", "_most")

    def __init__(self, most: int) -> None:
        """0: never."""
        self._most = most
        self._failed: set[TrialId] = set()

    def count(self, trial_id: TrialId, *, crashed: bool, lacks_metric: bool, why: str) -> str | None:
        """Why the search is to end; None: it goes on. `lacks_metric`: it has ended, and its reports never had the metric."""
        if not self._most or not (crashed or lacks_metric):
            return None
        self._failed.add(trial_id)
        if len(self._failed) < self._most:
            return None
        last = why or "no reason given"
        if not crashed:
            last = "its reports lack the metric; is it the name that the script reports?"
        return f"the first {self._most} trials all failed before a metric was reported; the last one: {last}"
