"""The `[simulation]` table of an experiment file.

| key | default | meaning |
|---|---|---|
| `workload` | `"paper"` | `"paper"`, `"crossing"`, `"table:PATH"` (recorded curves) or `"run:PATH"` (a finished run's folder) |
| `configs` | `"workload"` | whose configurations: the workload's own distribution, or `"search"`: `[search]` of the file |
| `scaling` | that of `[scaling] assume` | how trials really scale: `"linear"`, `"sqrt"`, `"none"` or a table of atoms and speed-up |
| `step` | 0.1 | seconds of an iteration at one atom (paper, crossing) |
| `start_up` | 0.001 | seconds of every start, resume and resize |
| `restart_cost` | 0 | added to `start_up` |
| `save` | 0 | seconds of a checkpoint, in which training stands still |
| `verdict_delay` | 0 | seconds that a report waits for the verdict |
| `boundary` | the iteration's end | a trial that is asked to leave in mid-iteration does so within so many seconds |
| `kill` | 0 | seconds from a kill to the exit |
| `after_record` | `"hold"` | beyond its record a curve holds its last value, or the trial is `"done"` |
| `atoms` | `[atoms] num_atoms`, else 4 | atoms of the machine |
| `atoms_per_node` | 4 | of each invented node |
| `submit` | `"at_start"` | all configurations at the beginning, or `"when_free"`: one when there is room |
| `save_at_deadline` | false | true: only what a complete checkpoint holds at the deadline counts, as in a real run |
| `faults` | none | see `hpcsched.sim.faults`; `[timeouts]` apply only where there are faults |

Durations as elsewhere in the file ("90s", "2h30m", seconds).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from hpcsched.config.duration import parse_duration
from hpcsched.config.kinds import did_you_mean
from hpcsched.config.mistakes import ABSENT, Mistakes
from hpcsched.config.spec import ExperimentSpec
from hpcsched.sim.faults import FaultSettings
from hpcsched.sim.scaling import Scaling
from hpcsched.sim.world import WorldSettings


class WorkloadName(msgspec.Struct, frozen=True):
    """Which workload; `path` for "table" and "run"."""

    kind: Literal["paper", "crossing", "table", "run"]
    path: Path | None = None


class SimulationTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table, every default filled in."""

    workload: WorkloadName = WorkloadName("paper")
    configs: Literal["workload", "search"] = "workload"
    scaling: Scaling | None = None
    """None: as the scheduler assumes."""
    step_s: float = 0.1
    world: WorldSettings = WorldSettings()
    after_record: Literal["hold", "done"] = "hold"
    atoms: int | None = None
    atoms_per_node: int = 4
    submit: Literal["at_start", "when_free"] = "at_start"
    save_at_deadline: bool = False
    faults: FaultSettings = FaultSettings()


_DURATIONS = {
    "step": "step_s",
    "start_up": "start_up_s",
    "restart_cost": "restart_cost_s",
    "save": "save_s",
    "verdict_delay": "verdict_delay_s",
    "boundary": "boundary_s",
    "kill": "kill_s",
}
_WORDS = {
    "configs": ("workload", "search"),
    "after_record": ("hold", "done"),
    "submit": ("at_start", "when_free"),
}
_WHOLE = ("atoms", "atoms_per_node")
_KNOWN = (*_DURATIONS, *_WORDS, *_WHOLE, "workload", "scaling", "save_at_deadline", "faults")


def parse_workload(text: object, start: Path) -> WorkloadName:
    """`"paper"`, `"crossing"`, `"table:PATH"`, `"run:PATH"`; relative paths from `start`. Raises ValueError."""
    if text == "paper" or text == "crossing":
        return WorkloadName(text)
    kind, colon, path = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or not path or kind not in ("table", "run"):
        raise ValueError(did_you_mean(text, ("paper", "crossing", "table:PATH", "run:PATH")).strip())
    full = Path(start, Path(path).expanduser()).absolute()
    if not full.exists():
        raise ValueError(f"no such file or folder: {full}")
    return WorkloadName("table" if kind == "table" else "run", full)


def parse_scaling(value: object) -> Scaling:
    """`"linear"`, `"sqrt"`, `"none"`, or {atoms: speed-up}. Raises ValueError."""
    if value == "linear" or value == "sqrt" or value == "none":
        return value
    if not isinstance(value, dict) or not value:
        raise ValueError(did_you_mean(value, ("linear", "sqrt", "none")).strip())
    table: dict[int, float] = {1: 1.0}
    for atoms, speed in value.items():
        number = int(atoms) if str(atoms).isdigit() else 0
        if number < 1 or isinstance(speed, bool) or not isinstance(speed, (int, float)):
            raise ValueError(f"{atoms} = {speed!r} is no number of atoms with its speed-up")
        if not speed > 0 or math.isinf(speed):
            raise ValueError(f"the speed-up at {atoms} atoms is {speed!r}; it must be above 0")
        table[number] = float(speed)
    return table


def read_simulation(spec: ExperimentSpec) -> SimulationTable:
    """The table of a loaded experiment. Raises ExperimentFileError with all its mistakes."""
    mistakes = Mistakes(spec.file, spec.text)
    raw = dict(spec.simulation)
    start = spec.file.parent.absolute()
    values: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for name, value in raw.items():
        key = f"simulation.{name}"
        if name not in _KNOWN:
            mistakes.add(key, f"there is no such key.{did_you_mean(name, _KNOWN)}", allowed=", ".join(_KNOWN))
        elif name in _DURATIONS:
            _duration(key, name, value, seconds, mistakes)
        elif name in _WORDS:
            if value in _WORDS[name]:
                values[name] = value
            else:
                mistakes.add(key, "", value, " | ".join(f'"{word}"' for word in _WORDS[name]))
        elif name in _WHOLE:
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20:
                mistakes.add(key, "", value, "a whole number from 1 to 1048576")
            else:
                values[name] = value
        elif name == "save_at_deadline":
            if isinstance(value, bool):
                values[name] = value
            else:
                mistakes.add(key, "", value, "true or false")
        elif name == "workload":
            try:
                values[name] = parse_workload(value, start)
            except ValueError as error:
                mistakes.add(key, str(error), value, '"paper" | "crossing" | "table:PATH" | "run:PATH"')
        elif name == "scaling":
            try:
                values[name] = parse_scaling(value)
            except ValueError as error:
                mistakes.add(
                    key, str(error), value, '"linear" | "sqrt" | "none" | a table such as { 2 = 1.8 }'
                )
        else:
            values[name] = _faults(key, value, mistakes)
    mistakes.raise_if_any()
    step_s = seconds.pop("step_s", 0.1)
    seconds["start_up_s"] = seconds.get("start_up_s", 0.001) + seconds.pop("restart_cost_s", 0.0)
    saves = bool(values.get("save_at_deadline", False))
    world = WorldSettings(**seconds, save_budget=spec.checkpoint.budget if saves else None)
    return SimulationTable(**values, step_s=step_s, world=world)


def _duration(key: str, name: str, value: object, seconds: dict[str, float], mistakes: Mistakes) -> None:
    try:
        number = parse_duration(value)
        if name == "step" and number == 0:
            raise ValueError("zero")
    except ValueError as error:
        mistakes.add(key, str(error), value, 'a duration such as "0.5s" or 0.5')
        return
    seconds[_DURATIONS[name]] = number


def _faults(key: str, value: object, mistakes: Mistakes) -> FaultSettings:
    if not isinstance(value, dict):
        mistakes.add(key, "", value, "a table such as { crash_rate = 0.01 }")
        return FaultSettings()
    try:
        faults = msgspec.convert(value, FaultSettings)
    except msgspec.ValidationError as error:
        mistakes.add(key, f"{error}", ABSENT, ", ".join(FaultSettings.__struct_fields__))
        return FaultSettings()
    problem = faults.problem()
    if problem is not None:
        mistakes.add(f"{key}.{problem.split()[0]}", problem, ABSENT)
    return faults
