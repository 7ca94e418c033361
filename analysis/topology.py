"""Does it pay to know the machine? `python -m analysis.topology [--out DIR] [--scale quick|full]`.

The same searches (policy `hypersched`, the paper's synthetic workload, a deadline that binds) run in the simulator with
three placements: our pool, first fit in node order, and atoms at random. How fast a trial trains depends on how
far its atoms lie apart: linear in their number, times a factor by span (island, node, switch, beyond). The
scheduler assumes linear scaling and does not know the factors.

The last row, *profiled*, is our pool again with a scheduler that was given s(atoms, span): it then knows where growing stops
paying. The row before it, *ideal*, takes our placements at the speed of the nearest span that could hold so many atoms on an empty machine. That
is what free and instant compaction would give at most: when it is no better than our pool within the interval,
moving trials about cannot pay.

Machine: 8 GPUs a node in two islands of four, 4 nodes a leaf switch, one spine. Every start costs START_UP_S, every save SAVE_S.
Differences are paired by seed. Written to DIR: topology.csv, topology.md, topology.svg.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from analysis.compaction import MovingScheduler, Rule
from hpcsched.core.actions import Action, StartTrial
from hpcsched.core.events import Event, ExperimentBegan, TrialExited
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import HyperSchedSettings, ScalingSettings, Settings
from hpcsched.sim.curves import Workload
from hpcsched.sim.paper import PaperWorkload
from hpcsched.sim.request import NO_TIMEOUTS
from hpcsched.sim.simulate import WorkloadSampler
from hpcsched.sim.world import World, WorldSettings
from hpcsched.topology.machine import AtomId, Machine, Node, Placement, atoms_of_nodes
from hpcsched.topology.pool import Pool
from hpcsched.topology.span import Span, Spans, span_of

START_UP_S = 0.1
SAVE_S = 0.02
STEP_S = 0.1
ISLAND, NODE, LEAF = 4, 8, 32
"""Atoms in an island, on a node, under a leaf switch."""

FACTORS: dict[str, dict[Span, float]] = {
    "usual": {Span.ISLAND: 1.0, Span.NODE: 0.95, Span.SWITCH: 0.8, Span.BEYOND: 0.6},
    "mild": {Span.ISLAND: 1.0, Span.NODE: 0.99, Span.SWITCH: 0.95, Span.BEYOND: 0.9},
    "steep": {Span.ISLAND: 1.0, Span.NODE: 0.9, Span.SWITCH: 0.5, Span.BEYOND: 0.25},
}
PLACEMENTS = ("topology", "first-fit", "random", "ideal", "profiled")


RULES = {
    "migrating": Rule(others=False),
    "moving": Rule(),
    "moving-w0.5": Rule(weight=0.5),
    "moving-w0": Rule(weight=0.0),
    "moving-first": Rule(first=1),
    "moving-m1.25": Rule(margin=1.25),
}


class Setting(NamedTuple):
    num_gpus: int
    num_trials: int
    deadline_s: float
    num_seeds: int


SCALES = {
    "quick": (Setting(64, 200, 10.0, 4),),
    "full": (Setting(64, 200, 10.0, 24), Setting(256, 400, 8.0, 12), Setting(1024, 1000, 6.0, 5)),
}


class Row(msgspec.Struct, frozen=True):
    """One run."""

    num_gpus: int
    factors: str
    placement: str
    seed: int
    score: float
    iterations: int
    """Of the best checkpoint."""
    speed_share: float
    """Mean factor of what trained, weighted by atom-seconds: 1 is all trials inside islands."""
    restart_share: float
    """Of the atom-seconds until the deadline."""
    far_share: float
    """Of the trial-seconds: over more switches or nodes than so many atoms need on an empty machine."""
    avoidable_share: float
    """Of the trial-seconds: over more switches or nodes than the atoms that were free at its start allowed."""


@lru_cache(maxsize=4)
def machine_of(num_gpus: int) -> Machine:
    gpus = tuple(str(i) for i in range(NODE))
    return atoms_of_nodes(
        tuple(
            Node(
                name=f"n{i:04d}",
                gpus=gpus,
                cores=tuple(range(NODE)),
                switches=("spine", f"leaf{i * NODE // LEAF}"),
                islands=(gpus[:ISLAND], gpus[ISLAND:]),
            )
            for i in range(num_gpus // NODE)
        ),
        1,
        source="simulated",
    )


AVOIDABLE = "avoidable"
"""`because` of a placement that reaches farther than it had to, given what was free at that moment."""


class Other(Pool):
    """A placement by another rule; compared with ours on the same free atoms."""

    def choose(self, usable: list[AtomId], size: int) -> tuple[AtomId, ...]:
        raise NotImplementedError

    def find(self, size: int, *, held: Collection[AtomId] = ()) -> Placement | None:
        ours = super().find(size, held=held)
        if ours is None:
            return None
        atoms = self.choose(self.usable(held), size)
        farther = reach(self._machine, atoms) > reach(self._machine, ours.atoms)
        return Placement(atoms, AVOIDABLE if farther else "")

    def usable(self, held: Collection[AtomId]) -> list[AtomId]:
        mine = set(held)
        return [
            atom.atom_id for atom in self._machine.atoms if atom.atom_id in mine or self.is_free(atom.atom_id)
        ]


class FirstFit(Other):
    """The lowest atoms that are free, in node order."""

    def choose(self, usable: list[AtomId], size: int) -> tuple[AtomId, ...]:
        return tuple(usable[:size])


class RandomFit(Other):
    """Any atoms that are free."""

    def __init__(self, machine: Machine, seed: int) -> None:
        super().__init__(machine)
        self._draw = random.Random(seed)

    def choose(self, usable: list[AtomId], size: int) -> tuple[AtomId, ...]:
        return tuple(sorted(self._draw.sample(usable, size)))


class PlacingScheduler(Scheduler):
    """The core with another pool: everything else is the same."""

    def __init__(self, settings: Settings, make_pool: Callable[[Machine], Pool]) -> None:
        super().__init__(settings, make_pool=make_pool)


class IdealSpans(Spans):
    """Every placement is as near as so many atoms can be on an empty machine."""

    def of(self, atoms: Collection[AtomId]) -> Span:
        return nearest_span(len(atoms))


class IdealScheduler(PlacingScheduler):
    """It plans with that, too."""

    def _began(self, event: ExperimentBegan) -> None:
        super()._began(event)
        self._spans = IdealSpans(event.machine)


class PlacedWorld(World):
    """A world in which a trial's speed depends on where it is."""

    def __init__(
        self, speed_of: Callable[[Placement], float], machine: Machine, workload: Workload, settings: Settings
    ) -> None:
        super().__init__(
            machine,
            workload,
            WorkloadSampler(workload, settings.num_trials),
            float,
            WorldSettings(start_up_s=START_UP_S, save_s=SAVE_S, save_budget=0.05),
            max_iterations=settings.max_iterations,
        )
        self._speed_of = speed_of

    def perform(self, action: Action) -> None:
        if isinstance(action, StartTrial):
            speed = self._speed_of(action.placement)
            self._throughput = lambda _: speed
        super().perform(action)


def nearest_span(size: int) -> Span:
    """Of so many atoms on an empty machine."""
    if size <= ISLAND:
        return Span.ISLAND
    if size <= NODE:
        return Span.NODE
    return Span.SWITCH if size <= LEAF else Span.BEYOND


def reach(machine: Machine, atoms: Sequence[AtomId]) -> tuple[int, int]:
    """(leaf switches, nodes) that the atoms lie on."""
    return len({atom // LEAF for atom in atoms}), len({machine.atoms[atom].node for atom in atoms})


def least_reach(size: int) -> tuple[int, int]:
    """Of so many atoms on an empty machine."""
    return -(-size // LEAF), -(-size // NODE)


def profile_of(factors: Mapping[Span, float], num_gpus: int) -> ScalingSettings:
    """What `hpcsched profile` would have measured: the truth at each span's ends."""
    ends = {Span.ISLAND: (1, ISLAND), Span.NODE: (ISLAND + 1, NODE), Span.SWITCH: (NODE + 1, LEAF)}
    if num_gpus > LEAF:
        ends[Span.BEYOND] = (LEAF + 1, num_gpus)
    return ScalingSettings(
        assume=None,
        spans={
            span.value: {size: size * factors[span] for size in range(first, last + 1)}
            for span, (first, last) in ends.items()
        },
    )


def run(setting: Setting, factors_name: str, placement: str, seed: int) -> Row:
    """One search."""
    factors = FACTORS[factors_name]
    machine = machine_of(setting.num_gpus)
    settings = Settings(
        policy=HyperSchedSettings(),
        grace_period=5,
        max_iterations=100_000,  # the deadline ends the search, never the training
        reduction_factor=4,
        multiple_of=2,
        seed=seed,
        num_trials=setting.num_trials,
        scaling=profile_of(factors, setting.num_gpus)
        if placement in ("profiled", "ideal profiled") or placement in RULES
        else ScalingSettings(assume="linear"),
        timeouts=NO_TIMEOUTS,
    )
    make_pool: dict[str, Callable[[Machine], Pool]] = {
        "topology": Pool,
        "ideal": Pool,
        "profiled": Pool,
        "ideal profiled": Pool,
        "first-fit": FirstFit,
        "random": lambda each: RandomFit(each, seed),
    }
    rule = RULES.get(placement)
    best_case = placement in ("ideal", "ideal profiled")
    scheduler: Scheduler = (
        (IdealScheduler if best_case else PlacingScheduler)(settings, make_pool[placement])
        if rule is None
        else MovingScheduler(settings, rule)
    )

    def factor_of(chosen: Placement) -> float:
        span = nearest_span(len(chosen.atoms)) if best_case else span_of(machine, chosen)
        return factors[span]

    world = PlacedWorld(
        lambda chosen: len(chosen.atoms) * factor_of(chosen),
        machine,
        PaperWorkload(seed, step_s=STEP_S),
        settings,
    )
    live: dict[tuple[int, int], tuple[float, Placement]] = {}
    atom_s = fast_atom_s = trial_s = far_s = avoidable_s = 0.0

    def ends(key: tuple[int, int], now: float) -> None:
        nonlocal atom_s, fast_atom_s, trial_s, far_s, avoidable_s
        began, chosen = live.pop(key)
        lasted = now - began
        atom_s += lasted * len(chosen.atoms)
        fast_atom_s += lasted * len(chosen.atoms) * factor_of(chosen)
        trial_s += lasted
        far_s += lasted * (reach(machine, chosen.atoms) > least_reach(len(chosen.atoms)))
        avoidable_s += lasted * (chosen.because == AVOIDABLE)

    event: Event = ExperimentBegan(0.0, machine, setting.deadline_s)
    while True:
        actions = scheduler.handle(event)
        if isinstance(event, TrialExited) and (event.trial_id, event.incarnation) in live:
            ends((event.trial_id, event.incarnation), event.time)
        for action in actions:
            if isinstance(action, StartTrial):
                live[action.trial_id, action.incarnation] = (world.now, action.placement)
            world.perform(action)
        if world.finished is not None:
            break
        event = world.next_event()
    for key in list(live):
        ends(key, world.now)
    best = scheduler.best
    assert best is not None, "a search without a checkpoint"
    return Row(
        num_gpus=setting.num_gpus,
        factors=factors_name,
        placement=placement,
        seed=seed,
        score=best.metric,
        iterations=best.training_iteration,
        speed_share=fast_atom_s / atom_s,
        restart_share=world.restart_atom_s / (setting.num_gpus * setting.deadline_s),
        far_share=far_s / trial_s,
        avoidable_share=avoidable_s / trial_s,
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half width of its 95 % interval by Student's t)."""
    if len(values) < 2:
        return fmean(values), float("nan")
    # Two-sided 97.5 % points of Student's t by degrees of freedom (any table); beyond 30 the normal's.
    table = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 11: 2.20, 15: 2.13, 23: 2.07}
    degrees = len(values) - 1
    t = table.get(degrees, 1.96 if degrees > 30 else table[max(known for known in table if known <= degrees)])
    return fmean(values), t * stdev(values) / sqrt(len(values))


def table_of(rows: Sequence[Row]) -> list[str]:
    """The Markdown table: means, and the difference of score and iterations to the topology-aware pool, paired by seed."""
    lines = [
        "| GPUs | factors | placement | seeds | score | aware - this | iterations of the best | speed share | restarts | too far | avoidable |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[int, str], dict[str, list[Row]]] = {}
    for row in rows:
        groups.setdefault((row.num_gpus, row.factors), {}).setdefault(row.placement, []).append(row)
    for (num_gpus, factors), by_placement in groups.items():
        ours = {row.seed: row for row in by_placement["topology"]}
        for placement, mine in by_placement.items():
            mean, half = interval([ours[row.seed].score - row.score for row in mine])
            gap = "" if placement == "topology" else f"{mean:+.4f} ± {half:.4f}"
            lines.append(
                f"| {num_gpus} | {factors} | {placement} | {len(mine)} | {fmean(row.score for row in mine):.4f} | {gap} "
                f"| {fmean(row.iterations for row in mine):.0f} | {fmean(row.speed_share for row in mine):.3f} "
                f"| {fmean(row.restart_share for row in mine):.1%} | {fmean(row.far_share for row in mine):.1%} "
                f"| {fmean(row.avoidable_share for row in mine):.1%} |"
            )
    return lines


def draw(rows: Sequence[Row], file: Path) -> None:
    """Iterations of the best model at the deadline, relative to the topology-aware pool, by placement and size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = sorted({row.num_gpus for row in rows})
    figure, axes = pyplot.subplots(
        1, len(FACTORS), figsize=(4 * len(FACTORS), 3.2), sharey=True, squeeze=False
    )
    by_key: Mapping[tuple[int, str, str, int], Row] = {
        (row.num_gpus, row.factors, row.placement, row.seed): row for row in rows
    }
    for axis, factors in zip(axes[0], FACTORS, strict=True):
        for placement in PLACEMENTS[1:]:
            points = [
                interval(
                    [
                        row.iterations / by_key[size, factors, "topology", row.seed].iterations
                        for row in rows
                        if (row.num_gpus, row.factors, row.placement) == (size, factors, placement)
                    ]
                )
                for size in sizes
            ]
            axis.errorbar(
                [str(size) for size in sizes], [mean for mean, _ in points], [half for _, half in points],
                marker="o", capsize=3, label=placement,
            )  # fmt: skip
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_title(
            f"{factors}: " + ", ".join(f"{factor:g}" for factor in FACTORS[factors].values()), fontsize=9
        )
        axis.set_xlabel("GPUs")
        axis.set_yscale("log")
        axis.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"])
        axis.minorticks_off()
    axes[0][0].set_ylabel("iterations of the best model\nover topology-aware")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("topology-study"))
    parser.add_argument("--scale", choices=sorted(SCALES), default="quick")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    began = time.monotonic()
    for setting in SCALES[chosen.scale]:
        for factors in FACTORS:
            for placement in PLACEMENTS:
                rows += [run(setting, factors, placement, seed) for seed in range(setting.num_seeds)]
            print(f"{setting.num_gpus} GPUs, {factors}: {time.monotonic() - began:.0f} s", flush=True)
        with (chosen.out / "topology.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Row.__struct_fields__)
            writer.writerows(msgspec.structs.astuple(row) for row in rows)
        (chosen.out / "topology.md").write_text("\n".join(table_of(rows)) + "\n")
    draw(rows, chosen.out / "topology.svg")
    print("\n".join(table_of(rows)))


if __name__ == "__main__":
    main()
