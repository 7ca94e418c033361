"""Trials whose metric is no number, report after report.

The halving policies stop such a trial at its next milestone. `fifo` has no early stop, for whoever wants every curve to its end, and a metric
may be undefined in the first iterations and not later: nobody is stopped for it here, it is said.
"""

from __future__ import annotations

from hpcsched.core.events import ResultReported
from hpcsched.core.ids import TrialId

REPORTS = 3
"""In a row."""


class Diverged:
    """Says it once a trial, and again when it has reported a number in between."""

    def __init__(self, *, metric: str, policy: str) -> None:
        self._metric = metric
        self._policy = policy
        self._since: dict[TrialId, tuple[int, int]] = {}
        """First iteration and number of reports in a row without a finite number."""

    def warning(self, event: ResultReported) -> str:
        """What to say after this report; "" when nothing is new."""
        if event.metric is not None or event.problem in (None, "missing"):
            self._since.pop(event.trial_id, None)
            return ""
        first, num = self._since.get(event.trial_id, (event.training_iteration, 0))
        self._since[event.trial_id] = (first, num + 1)
        if num + 1 != REPORTS:
            return ""
        text = f"{self._metric} is {event.problem} since iteration {first}"
        if self._policy == "fifo":
            text += f"; fifo has no early stop and trains the trial on: `hpcsched stop RUN {event.trial_id}` ends it"
        return text
