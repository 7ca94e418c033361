"""What one result changes in the record of its trial."""

from __future__ import annotations

import math

from hpcsched.core.events import ResultReported
from hpcsched.core.trial import Trial


def take_in(trial: Trial, event: ResultReported, *, sign: float, metric_window: int) -> None:
    """The result is the trial's latest. `sign`: -1 where lower is better. The score is the mean of the last `metric_window` metrics; None
    when the latest is no number."""
    trial.incarnation_iteration = trial.training_iteration = event.training_iteration
    took_s = event.time_this_iter_s
    if not (math.isfinite(took_s) and took_s >= 0.0):
        took_s = 0.0
    trial.training_s += took_s
    trial.last_iter_s = took_s
    metric = event.metric
    if metric is None or not math.isfinite(metric):
        trial.score = None
        trial.problem = event.problem or ("missing" if metric is None else str(metric))
        trial.lacks_metric = trial.problem == "missing" and not trial.reported
    else:
        trial.score = _windowed(trial, sign * metric, metric_window)
        trial.problem = None
        trial.reported = True
        trial.lacks_metric = False
    trial.snapshots.add(trial.training_iteration, trial.score, trial.window, trial.training_s)
    trial.ran_at = len(trial.atoms)
    trial.ran_over = trial.span


def _windowed(trial: Trial, value: float, most: int) -> float:
    if most == 1:
        return value
    window = trial.window = (*trial.window, value)[-most:]
    mean = sum(window) / len(window)
    if math.isfinite(mean):
        return mean
    return sum(each / len(window) for each in window)  # the sum is out of range, the mean is not
