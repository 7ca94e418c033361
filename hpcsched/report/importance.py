"""Which hyperparameters mattered.

Trials are compared where most can be: at the highest milestone that at least half of the trials with a score reached, by
their first score there. Two measures, the first where Optuna is installed:

- PED-ANOVA (Watanabe et al. 2023, Optuna's evaluator): how far the distribution of a hyperparameter among the better
  trials differs from that among all. Optuna wants 2 trials; we ask for `LEAST_TRIALS`.
- Else the share of the variance of the scores' ranks that groups of the hyperparameter explain (eta squared, less what
  chance alone would explain): up to four groups of equal size for numbers, one a value for everything else.

Both are scaled to sum to 1. Neither says what would have been with other values: they describe these trials.
"""

from __future__ import annotations

import json
import math
import tomllib
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcsched.report.load import RunLog
from hpcsched.report.rungs import rungs_of

LEAST_TRIALS = 8
"""With fewer nothing is said."""
MOST_TRIALS = 2000
"""Of more, so many are taken, evenly by number."""
NUM_GROUPS = 4

Values = list[Any]


class Sample(NamedTuple):
    """The trials that are compared."""

    milestone: int
    num_reached: int
    trials: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    """Higher is better."""
    values: dict[str, Values]
    """Of each hyperparameter that differs between trials, by trial."""


class Importance(NamedTuple):
    measure: str
    shares: dict[str, float]
    """Largest first."""


def sample_of(log: RunLog) -> Sample | None:
    """None: too few trials."""
    rungs = rungs_of(log)
    if not rungs or len(rungs[0].trials) < LEAST_TRIALS:
        return None
    least = max(LEAST_TRIALS, math.ceil(len(rungs[0].trials) / 2))
    rung = max((rung for rung in rungs if len(rung.trials) >= least), key=lambda rung: rung.milestone)
    keep = np.arange(len(rung.trials))
    if len(keep) > MOST_TRIALS:
        keep = np.linspace(0, len(keep) - 1, MOST_TRIALS).astype(int)
    trials = rung.trials[keep]
    configs = [json.loads(text) for text in log.trials["config"][trials]]
    names = list(dict.fromkeys(name for config in configs for name in config))
    values = {name: [config.get(name) for config in configs] for name in names}
    differing = {
        name: column for name, column in values.items() if len({_key(value) for value in column}) > 1
    }
    return Sample(rung.milestone, len(rung.trials), trials, log.sign * rung.metrics[keep], differing)


def importance_of(log: RunLog, sample: Sample) -> Importance | None:
    """None: nothing differs between the trials."""
    if not sample.values:
        return None
    found = _by_optuna(log, sample)
    if found is None:
        shares = {name: explained(column, sample.scores) for name, column in sample.values.items()}
        found = Importance("share of the variance of the ranks that groups of its values explain", shares)
    total = sum(found.shares.values())
    shares = {name: share / total if total > 0 else 0.0 for name, share in found.shares.items()}
    return Importance(found.measure, dict(sorted(shares.items(), key=lambda item: (-item[1], item[0]))))


def explained(column: Values, scores: npt.NDArray[np.float64]) -> float:
    """Epsilon squared (Kelley 1935) of the ranks over groups of the values: 0 when they say nothing, 1 when all."""
    if len(scores) < 3:
        return 0.0
    ranks = np.argsort(np.argsort(scores, kind="stable"), kind="stable").astype(float)
    groups = _groups(column)
    num, total = len(set(groups)), float(((ranks - ranks.mean()) ** 2).sum())
    if num < 2 or num >= len(ranks) or total <= 0:
        return 0.0
    labels = np.array(groups)
    within = sum(
        float(((ranks[labels == label] - ranks[labels == label].mean()) ** 2).sum()) for label in set(groups)
    )
    unbiased = 1.0 - (within / (len(ranks) - num)) / (total / (len(ranks) - 1))
    return max(0.0, unbiased)


def _groups(column: Values) -> list[int]:
    keys = [_key(value) for value in column]
    different = sorted(set(keys))
    if len(different) <= NUM_GROUPS or not all(is_number(value) for value in column):
        return [different.index(key) for key in keys]
    order = np.argsort(np.array([float(value) for value in column]), kind="stable")
    groups = np.empty(len(column), dtype=int)
    groups[order] = np.arange(len(column)) * NUM_GROUPS // len(column)
    return [int(group) for group in groups]


def _by_optuna(log: RunLog, sample: Sample) -> Importance | None:
    try:
        import optuna
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    except ImportError:
        return None
    space = _space(log)
    distributions: dict[str, Any] = {}
    indices: dict[str, list[Any]] = {}
    for name, column in sample.values.items():
        if all(is_number(value) for value in column) and "choice" not in space.get(name, {}):
            numbers = [float(value) for value in column]
            log_scale = is_logarithmic(space.get(name, {})) and min(numbers) > 0
            distributions[name] = optuna.distributions.FloatDistribution(
                min(numbers), max(numbers), log=log_scale
            )
            indices[name] = numbers
        else:
            keys = sorted({_key(value) for value in column})
            distributions[name] = optuna.distributions.CategoricalDistribution(range(len(keys)))
            indices[name] = [keys.index(_key(value)) for value in column]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "experimental"
            study = optuna.create_study(direction="maximize")
            study.add_trials(
                [
                    optuna.trial.create_trial(
                        value=float(score),
                        params={name: column[k] for name, column in indices.items()},
                        distributions=distributions,
                    )
                    for k, score in enumerate(sample.scores)
                ]
            )
            shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (ValueError, RuntimeError):
        return None  # too few, or too equal: the simple measure says 0 there
    finally:
        optuna.logging.set_verbosity(verbosity)
    return Importance("PED-ANOVA, by Optuna", {str(name): float(share) for name, share in shares.items()})


def _space(log: RunLog) -> dict[str, dict[str, Any]]:
    """[search.space] of the experiment's text, as far as it has shapes."""
    try:
        found = tomllib.loads(log.experiment).get("search", {}).get("space", {})
    except tomllib.TOMLDecodeError:
        return {}
    return {name: shape for name, shape in found.items() if isinstance(shape, dict)}


def is_logarithmic(shape: dict[str, Any]) -> bool:
    return "log_uniform" in shape or bool(shape.get("log"))


def logarithmic_names(log: RunLog) -> set[str]:
    """Hyperparameters that were drawn by orders of magnitude."""
    return {name for name, shape in _space(log).items() if is_logarithmic(shape)}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
