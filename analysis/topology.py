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
Differences are paired by seed. Written to DIR: topology.csv (each run), topology.md (each placement), summary.md and topology.svg (as in
the documentation, hpcsched/docs/machine.md).
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
from hpcsched.topology.span import Span, span_of

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


class Setting(NamedTuple):
    num_gpus: int
    num_trials: int
    deadline_s: float
    num_seeds: int


SCALES = {
    "quick": (Setting(64, 200, 10.0, 4),),
    "full": (Setting(64, 200, 10.0, 40), Setting(256, 400, 8.0, 16), Setting(1024, 1000, 6.0, 8)),
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
        if placement == "profiled"
        else ScalingSettings(assume="linear"),
        timeouts=NO_TIMEOUTS,
    )
    make_pool: dict[str, Callable[[Machine], Pool]] = {
        "topology": Pool,
        "ideal": Pool,
        "profiled": Pool,
        "first-fit": FirstFit,
        "random": lambda each: RandomFit(each, seed),
    }
    scheduler = PlacingScheduler(settings, make_pool[placement])

    def factor_of(chosen: Placement) -> float:
        span = nearest_span(len(chosen.atoms)) if placement == "ideal" else span_of(machine, chosen)
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
    # Two-sided 97.5 % points of Student's t by degrees of freedom (any table); beyond 120 the normal's.
    table = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 11: 2.20, 15: 2.13, 23: 2.07, 39: 2.02}
    degrees = len(values) - 1
    t = table.get(
        degrees, 1.96 if degrees > 120 else table[max(known for known in table if known <= degrees)]
    )
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


def summary_of(rows: Sequence[Row]) -> list[str]:
    """The table of the documentation: ours less the others', paired by seed; bold where the 95 % interval leaves out 0."""
    lines = [
        "| GPUs | island, node, switch, beyond | seeds | score | over first fit | over random | told s(atoms, span) | compaction at best | "
        "restarts: ours | first fit | random | first fit too far |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    by_key = {(row.num_gpus, row.factors, row.placement, row.seed): row for row in rows}

    def of(num_gpus: int, factors: str, placement: str) -> list[Row]:
        return [
            row for key, row in by_key.items() if key[:3] == (num_gpus, factors, placement)
        ]  # in order of seeds

    def gap(num_gpus: int, factors: str, placement: str, sign: float) -> str:
        ours = {row.seed: row.score for row in of(num_gpus, factors, "topology")}
        mean, half = interval(
            [sign * (ours[row.seed] - row.score) for row in of(num_gpus, factors, placement)]
        )
        text = f"{mean:+.4f} ± {half:.4f}"
        return f"**{text}**" if abs(mean) > half else text

    def restarts(num_gpus: int, factors: str, placement: str) -> str:
        mean, half = interval([100.0 * row.restart_share for row in of(num_gpus, factors, placement)])
        return f"{mean:.1f} ± {half:.1f} %"

    for num_gpus, factors in dict.fromkeys((row.num_gpus, row.factors) for row in rows):
        ours = of(num_gpus, factors, "topology")
        far = fmean(row.avoidable_share for row in of(num_gpus, factors, "first-fit"))
        values = ", ".join(f"{factor:g}" for factor in FACTORS[factors].values())
        cells = [
            str(num_gpus),
            f"{factors}: {values}",
            str(len(ours)),
            f"{fmean(row.score for row in ours):.4f}",
            gap(num_gpus, factors, "first-fit", 1.0),
            gap(num_gpus, factors, "random", 1.0),
            gap(num_gpus, factors, "profiled", -1.0),
            gap(num_gpus, factors, "ideal", -1.0),
            *(restarts(num_gpus, factors, placement) for placement in ("topology", "first-fit", "random")),
            f"{100.0 * far:.1f} %",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


LABELS = {"topology": "topology-aware", "first-fit": "first fit", "random": "random", "ideal": "compaction at best", "profiled": "told s(atoms, span)"}  # fmt: skip


def draw(rows: Sequence[Row], file: Path) -> None:
    """By number of GPUs and placement: score at the deadline less that of the topology-aware pool, time lost to restarts, and
    iterations of the best model over those of the topology-aware pool. Bars: 95 % intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = sorted({row.num_gpus for row in rows})
    by_key: Mapping[tuple[int, str, str, int], Row] = {
        (row.num_gpus, row.factors, row.placement, row.seed): row for row in rows
    }

    def ours(row: Row) -> Row:
        return by_key[row.num_gpus, row.factors, "topology", row.seed]

    panels: tuple[tuple[str, bool, Callable[[Row], float]], ...] = (
        ("score at the deadline,\nless topology-aware", False, lambda row: row.score - ours(row).score),
        ("time lost to restarts,\n% of atom-seconds", True, lambda row: 100.0 * row.restart_share),
        (
            "iterations of the best,\nover topology-aware",
            False,
            lambda row: row.iterations / ours(row).iterations,
        ),
    )
    figure, axes = pyplot.subplots(
        len(panels),
        len(FACTORS),
        figsize=(3.4 * len(FACTORS), 2.5 * len(panels)),
        sharex=True,
        sharey=False,
        squeeze=False,
    )
    for column, factors in enumerate(FACTORS):
        for line, (label, with_ours, value_of) in enumerate(panels):
            axis = axes[line][column]
            for number, placement in enumerate(PLACEMENTS):
                if placement == "topology" and not with_ours:
                    continue
                points = [
                    interval(
                        [
                            value_of(row)
                            for row in rows
                            if (row.num_gpus, row.factors, row.placement) == (size, factors, placement)
                        ]
                    )
                    for size in sizes
                ]
                # Side by side, so that bars do not hide each other.
                places = [place + 0.08 * (number - 2) for place in range(len(sizes))]
                axis.errorbar(
                    places, [mean for mean, _ in points], [half for _, half in points],
                    marker="o", markersize=4, linewidth=1, capsize=2, label=LABELS[placement], color=f"C{number}",
                )  # fmt: skip
            axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
            if column == 0:
                axis.set_ylabel(label, fontsize=8)
            axis.tick_params(labelsize=8)
        axes[0][column].axhline(0.0, color="black", linewidth=0.8)
        axes[2][column].axhline(1.0, color="black", linewidth=0.8)
        axes[2][column].set_yscale("log")
        axes[2][column].set_yticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"])
        axes[2][column].minorticks_off()
        axes[2][column].set_xlabel("GPUs", fontsize=8)
        values = ", ".join(f"{factor:g}" for factor in FACTORS[factors].values())
        axes[0][column].set_title(f"{factors}: {values}", fontsize=9)
    axes[1][0].legend(fontsize=7)
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
        (chosen.out / "summary.md").write_text("\n".join(summary_of(rows)) + "\n")
    draw(rows, chosen.out / "topology.svg")
    print("\n".join(table_of(rows)))


if __name__ == "__main__":
    main()
