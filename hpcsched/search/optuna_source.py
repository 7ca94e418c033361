"""Optuna's samplers by ask and tell.

For each question a fresh in-memory study is filled with what has been told, and a sampler seeded by (seed, index) is
asked once. So an answer depends on the results, not on the history of calls: a crashed driver need not repeat that
history. It costs time in proportion to the number of trials, as the samplers themselves do.

Trials that were stopped or wait at a rung count as Optuna's PRUNED, with the score at their last iteration; trials without a
score yet as RUNNING, which keeps `tpe` from proposing their neighbourhood again.

Samplers that keep state of their own in the study (CMA-ES, QMC) cannot work like this and are not offered.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcsched.config.spec import Choice, Constant, Dimension, Integer, LogUniform, Uniform
from hpcsched.core.enums import TrialState
from hpcsched.core.events import Config
from hpcsched.errors import ExperimentFileError


def optuna_module(file: Path) -> Any:
    """The `optuna` package. Raises ExperimentFileError (which names the extra) when it is not there."""
    try:
        import optuna
    except ImportError as error:
        raise ExperimentFileError(
            f'sampler "optuna" needs Optuna, which cannot be imported ({error}); '
            "install it: pip install 'hpcsched[optuna]'",
            file=file,
            key="search.sampler",
            value="optuna",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it logs a line for every study we make
    return optuna


class OptunaSource:
    """Learns from what it is told."""

    learns = True

    def __init__(self, optuna: Any, space: Mapping[str, Dimension], *, kind: str, seed: int) -> None:
        self._optuna = optuna
        self._space = dict(space)
        self._kind = kind
        self._seed = seed
        self._distributions = {
            name: _distribution(optuna.distributions, dimension)
            for name, dimension in space.items()
            if not isinstance(dimension, Constant)
        }
        self._told: dict[int, Any] = {}
        """Frozen trial by trial id."""

    def configuration(self, index: int) -> Config | None:
        seed = int.from_bytes(hashlib.sha256(f"hpcsched optuna {self._seed} {index}".encode()).digest()[:4])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "experimental" options and ranges that a list of choices lacks
            study = self._optuna.create_study(direction="maximize", sampler=self._sampler(seed))
            study.add_trials([self._told[trial_id] for trial_id in sorted(self._told)])
            asked = study.ask(self._distributions).params
        return {name: self._value(name, dimension, asked) for name, dimension in self._space.items()}

    def tell(
        self, trial_id: int, config: Config, training_iteration: int, score: float | None, state: TrialState
    ) -> None:
        params = self._params(config)
        if params is None:
            return  # a user's own configuration, outside the space: Optuna has no place for it
        states = self._optuna.trial.TrialState
        if state is TrialState.COMPLETED and score is not None:
            told = self._trial(states.COMPLETE, params, score, training_iteration)
        elif score is not None:
            told = self._trial(states.PRUNED, params, score, training_iteration)
        elif state is TrialState.FAILED:
            told = self._trial(states.FAIL, params, None, 0)
        else:
            told = self._trial(states.RUNNING, params, None, 0)
        self._told[trial_id] = told

    def _trial(self, state: Any, params: dict[str, Any], score: float | None, step: int) -> Any:
        return self._optuna.trial.create_trial(
            state=state,
            value=score,
            params=params,
            distributions=self._distributions,
            intermediate_values={} if score is None else {step: score},
        )

    def _sampler(self, seed: int) -> Any:
        samplers = self._optuna.samplers
        if self._kind == "gp":
            return samplers.GPSampler(seed=seed)
        return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)

    def _value(self, name: str, dimension: Dimension, asked: Mapping[str, Any]) -> Any:
        if isinstance(dimension, Constant):
            return dimension.value
        if isinstance(dimension, Choice):
            return dimension.values[asked[name]]
        return asked[name]

    def _params(self, config: Config) -> dict[str, Any] | None:
        """Optuna's parameters of a configuration; None when one lies outside the space."""
        params: dict[str, Any] = {}
        for name, dimension in self._space.items():
            value = config.get(name)
            if isinstance(dimension, Choice):
                # By type too: 1, 1.0 and true are equal in Python.
                same = [i for i, v in enumerate(dimension.values) if v == value and type(v) is type(value)]
                if not same:
                    return None
                params[name] = same[0]
            elif not isinstance(dimension, Constant):
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    return None
                if not dimension.low <= value <= dimension.high:
                    return None
                if isinstance(dimension, Integer) and not isinstance(value, int):
                    return None
                params[name] = value
        return params


def _distribution(distributions: Any, dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        return distributions.CategoricalDistribution(tuple(range(len(dimension.values))))
    if isinstance(dimension, Integer):
        return distributions.IntDistribution(dimension.low, dimension.high, log=dimension.log)
    assert isinstance(dimension, (Uniform, LogUniform))
    return distributions.FloatDistribution(
        dimension.low, dimension.high, log=isinstance(dimension, LogUniform)
    )
