"""Samplers: where configurations come from, by ask and tell.

`ask(trial_id)` is a pure function of the seed, the trial's number and what was told before, so a driver that goes on
after a crash rebuilds a sampler like this: make it anew with the same seed, `rebuild` it with the submitted
configurations, and `tell` it the latest result of each trial. For `random`, `grid` and `list` nothing told matters.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpcsched.config.configurations import read_list_file
from hpcsched.config.kinds import WrongValueError
from hpcsched.config.spec import ExperimentSpec
from hpcsched.core.enums import TrialState
from hpcsched.core.events import Config
from hpcsched.errors import ExperimentFileError
from hpcsched.search.grid import Grid
from hpcsched.search.randomly import RandomSource


class Source(Protocol):
    """An endless or finite row of configurations."""

    def configuration(self, index: int) -> Config | None:
        """The configuration at `index` (from 0); None: there are no more."""
        ...

    def tell(
        self, trial_id: int, config: Config, training_iteration: int, score: float | None, state: TrialState
    ) -> None:
        """A result; most sources learn nothing."""
        ...


class Sampler:
    """What the driver asks. Puts `[search] first` before the source and stops at `num_trials`."""

    def __init__(
        self, source: Source, *, first: Sequence[Config] = (), num_trials: int | None = None
    ) -> None:
        self._source = source
        self._first = tuple(first)
        self._num_trials = num_trials
        self._adopted: list[int] = []

    def ask(self, trial_id: int) -> Config | None:
        """The configuration of trial `trial_id` (from 0, in order of creation); None: no more come.

        Asked twice, it answers the same, unless something was told or adopted in between.
        """
        index = trial_id - bisect_left(self._adopted, trial_id)
        if self._num_trials is not None and index >= self._num_trials:
            return None
        if index < len(self._first):
            return dict(self._first[index])
        return self._source.configuration(index - len(self._first))

    def tell(
        self, trial_id: int, config: Config, training_iteration: int, score: float | None, state: TrialState
    ) -> None:
        """The trial's latest result: `score` is higher-is-better, None when there is none yet.

        May be told at every report or only when the trial leaves; the last one for a trial stands.
        """
        self._source.tell(trial_id, config, training_iteration, score, state)

    def adopt(self, trial_id: int) -> None:
        """Trial `trial_id` got its configuration from elsewhere (a user added it): later ones do not skip any."""
        if trial_id not in self._adopted:
            insort(self._adopted, trial_id)

    def rebuild(self, submitted: Iterable[tuple[int, Config]]) -> None:
        """After a crash: the (trial_id, config) of every TrialSubmitted of the journal, in order.

        A configuration that this sampler would not have given was added by a user. (A source that learns cannot
        tell; there it makes no difference.)
        """
        for trial_id, config in submitted:
            if not self.learns and self.ask(trial_id) != config:
                self.adopt(trial_id)

    @property
    def learns(self) -> bool:
        """Whether telling changes what is asked later."""
        return bool(getattr(self._source, "learns", False))


class Listed:
    """Configurations in the order of a list."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._configs = configs

    def configuration(self, index: int) -> Config | None:
        return dict(self._configs[index]) if index < len(self._configs) else None

    def tell(
        self, trial_id: int, config: Config, training_iteration: int, score: float | None, state: TrialState
    ) -> None:
        pass


def make_sampler(spec: ExperimentSpec, *, seed: int) -> Sampler:
    """The sampler that the experiment file names.

    Raises ExperimentFileError when a list file has gone bad since it was checked, or Optuna is not installed.
    """
    search = spec.search
    return Sampler(_source(spec, seed), first=search.first, num_trials=search.num_trials)


def _source(spec: ExperimentSpec, seed: int) -> Source:
    search = spec.search
    if search.sampler == "grid":
        return Grid(search.space)
    if search.sampler == "list":
        try:
            return Listed(read_list_file(Path(search.list_file or ""), search.space))
        except WrongValueError as error:
            raise ExperimentFileError(
                str(error), file=spec.file, key="search.list_file", value=search.list_file
            ) from error
    if search.sampler == "optuna":
        from hpcsched.search.optuna_source import OptunaSource, optuna_module  # an extra, and slow to import

        module: Any = optuna_module(spec.file)
        return OptunaSource(module, search.space, kind=search.optuna_sampler or "tpe", seed=seed)
    return RandomSource(search.space, seed=seed)
