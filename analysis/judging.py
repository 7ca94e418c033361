"""What policies are judged on: the cells, one run of a policy in a cell, and the bound that no policy can pass.

A cell is a workload under one set of conditions; a run of it is fixed by a seed, so that policies are compared on the
same trials. Three kinds:

- `paper`: the 20 recorded seeds of the 2020 program's own synthetic workload, conditions as in `analysis.parity`;
- `crossing`: saturating curves that cross (200 trials, r = 5, R = 500, a step of 0.1);
- `curves`: recorded training runs. A trial is a recorded curve, drawn with replacement; 100 trials at up to 8 atoms,
  300 above, all asked for at the start; one iteration is one evaluation; eta = 4; r = 5 % of R. The deadline is D median
  full trainings at one atom, the restart cost a share of one. R is the longest record at D >= 1 and the median one below.

Regret on recorded curves: (bound - reached) on the scale where 0 is the median and 1 the best of the final scores of the
workload's curves, clipped at 5 where D < 1. The bound is the best curve of the pool on all atoms from the start.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from hpcsched.core.enums import Mode
from hpcsched.core.events import Event, ResultReported
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import FifoSettings, PolicySettings, ScalingSettings, Settings
from hpcsched.sim.crossing import CrossingWorkload
from hpcsched.sim.curves import Workload
from hpcsched.sim.machine import simulated_machine
from hpcsched.sim.paper import PaperWorkload
from hpcsched.sim.request import NO_TIMEOUTS
from hpcsched.sim.scaling import Scaling, Throughput
from hpcsched.sim.simulate import simulate
from hpcsched.sim.table import Record, TableWorkload, load_records, longest
from hpcsched.sim.workloads import read_configs
from hpcsched.sim.world import Sampler, WorldSettings

Kind: TypeAlias = Literal["paper", "crossing", "curves"]

WORKLOADS = ("criteo1tb", "imagenet_resnet", "ogbg", "wmt")
"""The recorded ones; loss in the first, scores in the others."""
START_UP_S = 0.001
"""Of every start on the synthetic workloads, besides the restart cost."""
CLIP = 5.0

SCALINGS: dict[str, Scaling] = {
    "linear": "linear",
    "sqrt": "sqrt",
    "none": "none",
    "table": {1: 1.0, 2: 1.9, 4: 3.4, 8: 5.6, 16: 8.5},
    "imagenet": {1: 1.0, 2: 1.77, 4: 2.93, 8: 4.29},
}


class Cell(NamedTuple):
    """One set of conditions."""

    kind: Kind
    workload: str
    """Of `curves`: which; else empty."""
    atoms: int
    deadline: float
    """Seconds; of `curves`: median full trainings at one atom (D)."""
    scaling: str
    """A key of `SCALINGS`, or the name of a profiled application."""
    restart: float
    """Seconds; of `curves`: a share of the median full training."""
    after: Literal["hold", "done"] = "hold"


class Outcome(msgspec.Struct, frozen=True):
    """What one run reached."""

    score: float
    """Best by the deadline, higher is better."""
    regret: float
    """Of `curves` on the scale above, clipped where D < 1; of the others the bound less the score."""
    trials: int
    restarts: int
    """Starts of trials that had run before: promotions and resizes."""
    used: float
    """Share of the atom-seconds until the deadline that trained."""
    course: tuple[tuple[float, float], ...] = ()
    """(time, best score so far) whenever it rose; of the synthetic workloads."""


class Data(NamedTuple):
    """Where the recorded facts lie."""

    root: Path

    @property
    def virtual(self) -> Path:
        return self.root / "hypersched-original" / "virtual"

    def curves(self, workload: str) -> Path:
        return self.root / "curves" / f"{workload}.csv.gz"


def find_data() -> Data | None:
    """`shared/data` in or beside this checkout; None: nowhere."""
    here = Path(__file__).parent
    for root in (here.parent / "shared" / "data", here.parent.parent / "shared" / "data"):
        if (root / "curves").is_dir():
            return Data(root)
    return None


@lru_cache(maxsize=8)
def profiled(folder: Path) -> dict[int, float]:
    """s(atoms) of an application's measured step times (placements.csv: GPUs a node as digits).

    The batch per GPU is the largest one that was measured alone; of several placements of equally many GPUs the
    fastest counts, as a trial is placed as well as it can be.
    """
    steps: dict[int, dict[int, float]] = {}
    with (folder / "placements.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            batch = int(row["local_bsz"])
            gpus = sum(int(digit) for digit in row["placement"])
            known = steps.setdefault(batch, {})
            known[gpus] = min(float(row["step_time"]), known.get(gpus, math.inf))
    alone = max(batch for batch, known in steps.items() if 1 in known and len(known) > 2)
    known = steps[alone]
    return {gpus: gpus * known[1] / known[gpus] for gpus in sorted(known)}


def scaling_of(cell: Cell, data: Data) -> Scaling:
    if cell.scaling in SCALINGS:
        return SCALINGS[cell.scaling]
    return profiled(data.root / "scaling" / cell.scaling)


class Scale(NamedTuple):
    """A recorded workload's measures."""

    records: tuple[Record, ...]
    sign: float
    median: float
    """Of the final scores."""
    best: float
    full_s: float
    """The median full training at one atom."""
    longest: int
    typical: int
    """Rows of the longest and of the median record."""


@lru_cache(maxsize=8)
def scale_of(file: Path) -> Scale:
    records = load_records(file)
    sign = -1.0 if file.name.startswith("criteo") else 1.0
    finals = [sign * record.metrics[-1] for record in records]
    return Scale(
        records,
        sign,
        median(finals),
        max(finals),
        median(record.total_s for record in records),
        longest(records),
        int(median(len(record.metrics) for record in records)),
    )


def num_trials(cell: Cell) -> int | None:
    if cell.kind == "curves":
        return 100 if cell.atoms <= 8 else 300
    return 200 if cell.kind == "crossing" else None


def settings_of(cell: Cell, policy: PolicySettings, seed: int, data: Data) -> Settings:
    r, most, mode = 5, 500, Mode.MAX
    if cell.kind == "curves":
        scale = scale_of(data.curves(cell.workload))
        most = scale.longest if cell.deadline >= 1 else scale.typical
        r = max(1, round(0.05 * most))
        mode = Mode.MIN if scale.sign < 0 else Mode.MAX
    assume = scaling_of(cell, data)
    return Settings(
        policy=policy,
        mode=mode,
        grace_period=r,
        max_iterations=most,
        reduction_factor=4,
        multiple_of=1,
        seed=seed,
        num_trials=num_trials(cell),
        request_ahead=False,
        scaling=ScalingSettings(assume=assume if isinstance(assume, str) else dict(assume)),
        timeouts=NO_TIMEOUTS,
        save_at_deadline=False,
    )


def workload_of(cell: Cell, seed: int, data: Data) -> Workload:
    if cell.kind == "paper":
        return PaperWorkload(seed)
    if cell.kind == "crossing":
        return CrossingWorkload(seed)
    return TableWorkload(scale_of(data.curves(cell.workload)).records, seed, after_record=cell.after)


def deadline_of(cell: Cell, data: Data) -> float:
    unit = scale_of(data.curves(cell.workload)).full_s if cell.kind == "curves" else 1.0
    return cell.deadline * unit


def restart_of(cell: Cell, data: Data) -> float:
    if cell.kind == "curves":
        return cell.restart * scale_of(data.curves(cell.workload)).full_s
    return START_UP_S + cell.restart


def run(cell: Cell, policy: PolicySettings, seed: int, data: Data) -> Outcome:
    """One run. A function of its arguments."""
    settings = settings_of(cell, policy, seed, data)
    scheduler = Scheduler(settings)
    sign = 1.0 if settings.mode is Mode.MAX else -1.0
    course: list[tuple[float, float]] = []

    def watch(event: Event, _: object) -> None:
        if type(event) is ResultReported and event.metric is not None:
            score = sign * event.metric
            if not course or score > course[-1][1]:
                course.append((event.time, score))

    done = simulate(
        settings,
        workload_of(cell, seed, data),
        machine=simulated_machine(cell.atoms, cell.atoms),
        deadline_s=deadline_of(cell, data),
        scaling=scaling_of(cell, data),
        world=WorldSettings(start_up_s=restart_of(cell, data)),
        sampler=_sampler(cell, seed, data),
        observer=watch,
        scheduler=scheduler,
    )
    score = course[-1][1] if course else -math.inf
    top = bound(cell, seed, data)
    if cell.kind == "curves":
        scale = scale_of(data.curves(cell.workload))
        regret = (top - score) / (scale.best - scale.median)
        regret = min(regret, CLIP) if cell.deadline < 1 else regret
    else:
        regret = top - max(score, 0.0)
    counts = scheduler.counts
    return Outcome(
        score=score,
        regret=regret,
        trials=done.trials_started,
        restarts=counts.promoted + counts.resized_up + counts.resized_down,
        used=done.atom_seconds.training / (cell.atoms * deadline_of(cell, data)),
        course=() if cell.kind == "curves" else tuple(course),
    )


def _sampler(cell: Cell, seed: int, data: Data) -> Sampler | None:
    return read_configs(data.virtual / f"seed-{seed:02d}.jsonl", "paper") if cell.kind == "paper" else None


@lru_cache(maxsize=8192)
def bound(cell: Cell, seed: int, data: Data) -> float:
    """The best trial of the pool on all atoms (or fewer, where those are faster) from the start, one start paid."""
    workload = workload_of(cell, seed, data)
    sampler = _sampler(cell, seed, data)
    settings = settings_of(cell, FifoSettings(), seed, data)
    throughput = Throughput(scaling_of(cell, data))
    speed = max(throughput(size) for size in range(1, cell.atoms + 1))
    time_s = deadline_of(cell, data) - restart_of(cell, data)
    sign = 1.0 if settings.mode is Mode.MAX else -1.0
    best = -math.inf
    trial = 0
    while settings.num_trials is None or trial < settings.num_trials:
        config = workload.config(trial) if sampler is None else sampler.ask(trial)
        if config is None:
            break
        if cell.kind == "curves":
            record = (str(config["config"]), str(config["study"]))
            ends_s, highest = _by_time(data.curves(cell.workload), sign)[record]
            most = min(bisect_right(ends_s, time_s * speed), settings.max_iterations, len(ends_s))
            best = max(best, highest[most - 1] if most else -math.inf)
        else:
            curve = workload.curve(trial, config)
            assert curve.step_s is not None
            most = min(settings.max_iterations, int(time_s * speed / curve.step_s + 1e-9))
            for iteration in range(max(1, most - 20), most + 1):  # it rises, but for the noise
                best = max(best, curve.metric(iteration))
        trial += 1
    return best


@lru_cache(maxsize=8)
def _by_time(file: Path, sign: float) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Of each record: when each iteration ends at one atom, and the best score until then."""
    return {
        (record.config, record.study): (
            list(accumulate(record.durations_s)),
            list(accumulate((sign * metric for metric in record.metrics), max)),
        )
        for record in scale_of(file).records
    }
