"""From a workload's name to its trials for one seed."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from hpcsched.core.enums import Mode
from hpcsched.core.events import Config
from hpcsched.errors import InputError
from hpcsched.sim.crossing import CrossingWorkload
from hpcsched.sim.curves import Curve, Workload
from hpcsched.sim.options import SimulationTable
from hpcsched.sim.paper import PaperWorkload
from hpcsched.sim.recorded import RecordedRun, RecordedRunWorkload, load_run
from hpcsched.sim.table import TableWorkload, load_records

PARAMETERS = {
    "paper": ("b0", "b1", "b2"),
    "crossing": ("A", "tau"),
    "table": ("config", "study"),
    "run": (),
}
"""What a configuration must hold to be a trial of the workload."""


@lru_cache(maxsize=4)
def _run(folder: Path) -> RecordedRun:
    return load_run(folder)


def make_workload(table: SimulationTable, seed: int, mode: Mode = Mode.MAX) -> Workload:
    """The workload of this seed. The synthetic ones give scores, or where less is better losses: the paper's own, and one less the
    score. Raises InputError (CurveTableError) or LogError when its record cannot be read."""
    name = table.workload
    if name.kind == "paper":
        paper = PaperWorkload(seed, step_s=table.step_s)
        return paper if mode is Mode.MAX else Losses(paper, 2.0)
    if name.kind == "crossing":
        crossing = CrossingWorkload(seed, step_s=table.step_s)
        return crossing if mode is Mode.MAX else Losses(crossing, 1.0)
    assert name.path is not None
    if name.kind == "table":
        return TableWorkload(load_records(name.path), seed, after_record=table.after_record)
    return RecordedRunWorkload(_run(name.path))


class LossCurve:
    """The same course as a loss: `scale` times what the score lacks to 1."""

    __slots__ = ("_curve", "_scale", "length", "recorded", "step_s")

    def __init__(self, curve: Curve, scale: float) -> None:
        self._curve = curve
        self._scale = scale
        self.step_s = curve.step_s
        self.length = curve.length
        self.recorded = curve.recorded

    def metric(self, iteration: int) -> float:
        return self._scale * (1.0 - self._curve.metric(iteration))

    def duration_s(self, iteration: int) -> float:
        return self._curve.duration_s(iteration)


class Losses:
    """A workload of scores for whom less is better."""

    def __init__(self, workload: Workload, scale: float) -> None:
        self._workload = workload
        self._scale = scale

    def config(self, trial_id: int) -> Config | None:
        return self._workload.config(trial_id)

    def curve(self, trial_id: int, config: Config) -> LossCurve:
        return LossCurve(self._workload.curve(trial_id, config), self._scale)


class ListedConfigs:
    """Configurations in a given order: the sampler of a `seed-NN.jsonl` file."""

    def __init__(self, configs: list[Config]) -> None:
        self._configs = configs

    def ask(self, trial_id: int) -> Config | None:
        return self._configs[trial_id] if trial_id < len(self._configs) else None


def read_configs(file: Path, workload: str) -> ListedConfigs:
    """One JSON object a line, its keys the workload's parameters. Raises InputError with file and line."""
    needed = PARAMETERS[workload]
    configs: list[Config] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            config = json.loads(line)
        except ValueError as error:
            raise InputError(f"{file}: line {number}: not JSON: {error}") from error
        if not isinstance(config, dict):
            raise InputError(
                f'{file}: line {number}: not an object; one configuration a line, such as {{"b0": 0.1}}'
            )
        missing = [name for name in needed if name not in config and name != "study"]
        if missing:
            raise InputError(
                f"{file}: line {number}: no {', '.join(missing)}; a trial of the {workload} workload has {', '.join(needed)}"
            )
        if workload in ("paper", "crossing"):
            for name in needed:
                if isinstance(config[name], bool) or not isinstance(config[name], (int, float)):
                    raise InputError(f"{file}: line {number}: {name} is {config[name]!r}, not a number")
        configs.append(config)
    if not configs:
        raise InputError(f"{file}: holds no configuration")
    return ListedConfigs(configs)
