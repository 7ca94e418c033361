"""The policies on the same trials: `python -m analysis.policies [--out DIR] [--seeds N] [--every] [--ablations SEEDS] [--page FILE]`.

Every policy runs in every cell of `analysis.judging` with the same seeds. Written to DIR: `runs.jsonl` (one line a run;
what is there is not run again), `criteria.md` (what a policy of our own must reach, what it reaches), `regret.svg`,
`pairs.svg`, `ablations.svg`. `--page` puts table and figures into a Markdown file, between its markers.

Differences are paired: per seed the mean over a group's cells, `deadline` less the other, and of these the mean with its
95 % interval (Student's t over seeds). "Worse" is an interval that lies as a whole more than 0.002 on the wrong side.

By default a recorded workload's cells are two of the eight combinations of scaling, restart cost and what follows a
record (linear, 0.05 %, done; table, 1 %, hold); `--every` runs all eight.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import msgspec

from analysis.judging import WORKLOADS, Cell, Data, Outcome, find_data, run
from hpcsched.core.settings import (
    AshaSettings,
    DeadlineSettings,
    FifoSettings,
    FixedSplitSettings,
    HyperbandSettings,
    HyperSchedSettings,
    PolicySettings,
    RasdaSettings,
)
from hpcsched.sim.sweep import num_cores, process_pool

OURS = "deadline"
BASELINES: dict[str, PolicySettings] = {
    "no early stop": FifoSettings(),
    "asha": AshaSettings(),
    "hypersched": HyperSchedSettings(),
    "reversible": HyperSchedSettings(entrance="reversible"),
    "hyperband": HyperbandSettings(),
    "rasda": RasdaSettings(),
    **{
        f"split {share:g}": FixedSplitSettings(explore_fraction=share)
        for share in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
    },
}
ABLATIONS: dict[str, PolicySettings] = {
    "no turnover": DeadlineSettings(turnover=False),
    "never narrowed": DeadlineSettings(narrow=False),
    "no scouts": DeadlineSettings(scouts=False),
    "first iterations are timed": DeadlineSettings(untypical=0),
    "no room for newcomers": DeadlineSettings(patience=0.0),
    "trials grow in small steps": DeadlineSettings(leap=1),
    "hopeless trials grow too": DeadlineSettings(reach=0.0),
}
REGIMES = (0.1, 0.3, 1.0, 3.0)
WORSE = 0.002
T_975 = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)
"""Student's t at 0.975 with 1, 2, ... degrees of freedom."""


class Mean(NamedTuple):
    """With its 95 % interval."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} ± {self.half:.3f}"


class Criterion(NamedTuple):
    what: str
    found: str
    holds: bool


# ---- the cells


def curve_cells(*, every: bool) -> list[Cell]:
    conditions: list[tuple[str, float, Any]] = [("linear", 0.0005, "done"), ("table", 0.01, "hold")]
    if every:
        conditions = [
            (scaling, restart, after)
            for scaling in ("linear", "table")
            for restart in (0.0005, 0.01)
            for after in ("done", "hold")
        ]
    return [
        Cell("curves", workload, atoms, deadline, *condition)
        for workload in WORKLOADS
        for deadline in REGIMES
        for atoms in (8, 32)
        for condition in conditions
    ]


def paper_cells() -> list[Cell]:
    return [
        Cell("paper", "", atoms, deadline, scaling, restart)
        for atoms in (4, 16)
        for deadline, restart in ((15.0, 0.0), (15.0, 0.5), (30.0, 0.0), (30.0, 0.5))
        for scaling in ("linear", "sqrt", "none")
    ]


def crossing_cells() -> list[Cell]:
    return [
        Cell("crossing", "", atoms, deadline, scaling, 0.0)
        for atoms in (8, 16)
        for deadline in (10.0, 30.0)
        for scaling in ("linear", "sqrt")
    ]


TO_TARGET = {
    "linear": Cell("paper", "", 16, 30.0, "linear", 0.0),
    "imagenet": Cell("paper", "", 16, 30.0, "imagenet", 0.0),
}


# ---- the runs


class _Line(msgspec.Struct, frozen=True):
    key: str
    outcome: Outcome


@lru_cache(maxsize=1)
def _digest() -> str:
    """Of the policy's own code: its runs are done again when it has changed."""
    folder = Path(__file__).parent.parent / "hpcsched" / "core"
    files = [*sorted((folder / "policies").glob("deadline*.py")), folder / "settings.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def key_of(cell: Cell, policy: PolicySettings, seed: int) -> str:
    code = f" {_digest()}" if isinstance(policy, DeadlineSettings) else ""
    return f"{msgspec.json.encode(cell).decode()} {msgspec.json.encode(policy).decode()} {seed}{code}"


class Runs:
    """All runs of a study: outcomes by cell, policy and seed; kept in a file as they end."""

    def __init__(self, file: Path, data: Data) -> None:
        self._file = file
        self._data = data
        self._known: dict[str, Outcome] = {}
        if file.is_file():
            for line in file.read_bytes().splitlines():
                try:
                    one = msgspec.json.decode(line, type=_Line)
                except msgspec.DecodeError:
                    continue  # torn when an earlier study was stopped
                self._known[one.key] = one.outcome

    def outcome(self, cell: Cell, policy: PolicySettings, seed: int) -> Outcome:
        return self._known[key_of(cell, policy, seed)]

    def perform(
        self,
        cells: Iterable[Cell],
        policies: Iterable[PolicySettings],
        seeds: int,
        jobs: int,
        say: Callable[[str], None],
    ) -> None:
        """Do what is missing."""
        missing = {}
        policies = list(policies)
        for cell in cells:
            for policy in policies:
                for seed in range(seeds):
                    key = key_of(cell, policy, seed)
                    if key not in self._known:
                        missing[key] = (cell, policy, seed)
        if not missing:
            return
        say(f"{len(missing)} runs")
        with self._file.open("ab") as stream, process_pool(jobs) as pool:
            futures = {pool.submit(run, *one, self._data): key for key, one in missing.items()}
            for done, future in enumerate(as_completed(futures), 1):
                key = futures[future]
                self._known[key] = outcome = future.result()
                stream.write(msgspec.json.encode(_Line(key, outcome)) + b"\n")
                if done % 1000 == 0:
                    say(f"{done} of {len(missing)}")

    def mean(
        self, cells: Sequence[Cell], policy: PolicySettings, seeds: int, value: Callable[[Outcome], float]
    ) -> float:
        return fmean(value(self.outcome(cell, policy, seed)) for cell in cells for seed in range(seeds))

    def difference(
        self,
        cells: Sequence[Cell],
        one: PolicySettings,
        other: PolicySettings,
        seeds: int,
        value: Callable[[Outcome], float],
    ) -> Mean:
        """Paired, `one` less `other`."""
        by_seed = [
            fmean(
                value(self.outcome(cell, one, seed)) - value(self.outcome(cell, other, seed))
                for cell in cells
            )
            for seed in range(seeds)
        ]
        if seeds < 2:
            return Mean(by_seed[0], math.inf)
        t = T_975[min(seeds - 2, len(T_975) - 1)]
        return Mean(fmean(by_seed), t * stdev(by_seed) / math.sqrt(seeds))


def regret(outcome: Outcome) -> float:
    return outcome.regret


def score(outcome: Outcome) -> float:
    return outcome.score


def restarts(outcome: Outcome) -> float:
    return outcome.restarts


# ---- the judgement


def judge(runs: Runs, curves: Sequence[Cell], seeds: int, ours: PolicySettings) -> list[Criterion]:
    """Every criterion with what was found."""
    return [
        *_judge_paper(runs, seeds, ours),
        _judge_crossing(runs, seeds, ours),
        *_judge_curves(runs, curves, seeds, ours),
        *_judge_restarts(runs, curves, seeds, ours),
        *(_judge_time(runs, name, seeds, ours) for name in TO_TARGET),
    ]


def _judge_paper(runs: Runs, seeds: int, ours: PolicySettings) -> list[Criterion]:
    cells = paper_cells()
    found = []
    for name in ("hypersched", "asha"):
        differences = {cell: runs.difference([cell], ours, BASELINES[name], seeds, score) for cell in cells}
        worst = min(differences, key=lambda cell: differences[cell].value)
        below = sum(difference.value < -0.005 for difference in differences.values())
        found.append(
            Criterion(
                f"paper's workload: in no cell more than 0.005 below {name}",
                f"{below} of {len(cells)} are; worst {differences[worst]} ({worst.atoms} atoms, T = {worst.deadline:g}, "
                f"{worst.scaling}, restart {worst.restart:g})",
                not below,
            )
        )
        mean = runs.difference(cells, ours, BASELINES[name], seeds, score)
        found.append(Criterion(f"paper's workload: above {name} on average", str(mean), mean.value > 0))
    used = runs.mean([cell for cell in cells if not cell.restart], ours, seeds, lambda outcome: outcome.used)
    found.append(
        Criterion("paper's workload, no restart cost: atom-seconds used", f"{used:.3f}", used >= 0.95)
    )
    return found


def _judge_crossing(runs: Runs, seeds: int, ours: PolicySettings) -> Criterion:
    mean = runs.difference(crossing_cells(), ours, BASELINES["asha"], seeds, score)
    return Criterion("crossing curves: at least asha", str(mean), mean.value >= -WORSE)


def _judge_curves(runs: Runs, curves: Sequence[Cell], seeds: int, ours: PolicySettings) -> list[Criterion]:
    found = []
    reached, best_sum = 0.0, 0.0
    for regime in REGIMES:
        cells = [cell for cell in curves if cell.deadline == regime]
        means = {name: runs.mean(cells, policy, seeds, regret) for name, policy in BASELINES.items()}
        best = min(means, key=lambda name: means[name])
        mine = runs.mean(cells, ours, seeds, regret)
        reached += mine
        best_sum += means[best]
        difference = runs.difference(cells, ours, BASELINES[best], seeds, regret)
        found.append(
            Criterion(
                f"recorded curves, D = {regime:g}: regret at most that of the best baseline",
                f"{mine:.3f}, {best} {means[best]:.3f} (difference {difference})",
                mine <= means[best],
            )
        )
    found.append(
        Criterion(
            "recorded curves, all regimes: at most 0.8 of the best baselines'",
            f"{reached / len(REGIMES):.3f} over {best_sum / len(REGIMES):.3f} is {reached / best_sum:.2f}",
            reached <= 0.8 * best_sum,
        )
    )
    for name in ("asha", "hypersched"):
        worse = []
        for workload in WORKLOADS:
            cells = [cell for cell in curves if cell.workload == workload]
            difference = runs.difference(cells, ours, BASELINES[name], seeds, regret)
            if difference.value - difference.half > WORSE:
                worse.append(f"{workload} {difference}")
        found.append(
            Criterion(
                f"recorded curves: on no workload worse than {name}", ", ".join(worse) or "on none", not worse
            )
        )
    return found


def _judge_restarts(runs: Runs, curves: Sequence[Cell], seeds: int, ours: PolicySettings) -> list[Criterion]:
    found = []
    for what, cells in (("paper's workload", paper_cells()), ("recorded curves", list(curves))):
        mine, theirs = (
            runs.mean(cells, policy, seeds, restarts) for policy in (ours, BASELINES["hypersched"])
        )
        found.append(
            Criterion(
                f"restarts, {what}: at most half of hypersched's",
                f"{mine:.1f} and {theirs:.1f} a run",
                mine <= theirs / 2,
            )
        )
    return found


def _judge_time(runs: Runs, name: str, seeds: int, ours: PolicySettings) -> Criterion:
    """When the mean course over seeds reaches asha's final mean."""
    cell = TO_TARGET[name]
    least = {"linear": 2.5, "imagenet": 1.9}[name]
    theirs = [runs.outcome(cell, BASELINES["asha"], seed) for seed in range(seeds)]
    target = fmean(outcome.score for outcome in theirs)
    asha_s = _reached(theirs, target, cell.deadline)
    ours_s = _reached([runs.outcome(cell, ours, seed) for seed in range(seeds)], target, cell.deadline)
    ratio = asha_s / ours_s
    return Criterion(
        f"time to asha's final score, 16 atoms, T = 30, {name}: at most 1/{least:g} of asha's",
        f"{ours_s:.1f} and {asha_s:.1f}: 1/{ratio:.1f}"
        if ours_s < math.inf
        else f"{target:.3f} is not reached",
        ratio >= least,
    )


def _reached(outcomes: Sequence[Outcome], target: float, deadline: float) -> float:
    rises = sorted((time, i, value) for i, outcome in enumerate(outcomes) for time, value in outcome.course)
    now = [0.0] * len(outcomes)
    total = 0.0
    for time, i, value in rises:
        total += value - now[i]
        now[i] = value
        if total >= (target - 1e-9) * len(outcomes):
            return time
    return math.inf if deadline else 0.0


# ---- what is written


def regret_table(runs: Runs, curves: Sequence[Cell], seeds: int, policies: dict[str, PolicySettings]) -> str:
    """Markdown: mean regret by workload and regime."""
    lines = ["| mean regret | " + " | ".join(policies) + " |", "|---|" + "---|" * len(policies)]
    for workload in (*WORKLOADS, "all"):
        for regime in REGIMES:
            cells = [
                cell for cell in curves if cell.deadline == regime and workload in (cell.workload, "all")
            ]
            means = [runs.mean(cells, policy, seeds, regret) for policy in policies.values()]
            lines.append(
                f"| {workload}, D = {regime:g} | "
                + " | ".join(_bold(mean, min(means)) for mean in means)
                + " |"
            )
    return "\n".join(lines)


def paper_table(runs: Runs, seeds: int, policies: dict[str, PolicySettings]) -> str:
    """Markdown: mean score on the synthetic workloads."""
    lines = ["| mean score | " + " | ".join(policies) + " |", "|---|" + "---|" * len(policies)]
    for cell in (*paper_cells(), *crossing_cells()):
        means = [runs.mean([cell], policy, seeds, score) for policy in policies.values()]
        what = f"{cell.kind}, {cell.atoms} atoms, T = {cell.deadline:g}, {cell.scaling}, restart {cell.restart:g}"
        lines.append(f"| {what} | " + " | ".join(_bold(mean, max(means)) for mean in means) + " |")
    return "\n".join(lines)


def _bold(mean: float, best: float) -> str:
    return f"**{mean:.3f}**" if mean == best else f"{mean:.3f}"


def ablation_table(runs: Runs, curves: Sequence[Cell], seeds: int, ours: PolicySettings) -> str:
    """Markdown: what is lost when a part is left out (positive: the part is worth it)."""
    groups: dict[str, tuple[list[Cell], Callable[[Outcome], float], float]] = {
        f"D = {regime:g}": ([cell for cell in curves if cell.deadline == regime], regret, 1.0)
        for regime in REGIMES
    }
    groups["paper"] = (paper_cells(), score, -1.0)
    groups["crossing"] = (crossing_cells(), score, -1.0)
    lines = ["| without | " + " | ".join(groups) + " |", "|---|" + "---|" * len(groups)]
    for name, policy in ABLATIONS.items():
        found = []
        for cells, value, sign in groups.values():
            difference = runs.difference(cells, policy, ours, seeds, value)
            found.append(str(Mean(sign * difference.value, difference.half)))
        lines.append(f"| {name} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def criteria_table(criteria: Sequence[Criterion]) -> str:
    lines = ["| criterion | found | holds |", "|---|---|---|"]
    lines += [f"| {one.what} | {one.found} | {'yes' if one.holds else '**no**'} |" for one in criteria]
    return "\n".join(lines)


def draw_regret(
    runs: Runs, curves: Sequence[Cell], seeds: int, policies: dict[str, PolicySettings], file: Path
) -> None:
    """Mean regret by regime; matplotlib is loaded in the drawing functions only."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hpcsched"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(REGIMES), figsize=(11, 4), sharey=True, layout="constrained")
    for ax, regime in zip(axes, REGIMES, strict=True):
        cells = [cell for cell in curves if cell.deadline == regime]
        means = [runs.mean(cells, policy, seeds, regret) for policy in policies.values()]
        colours = ["C3" if name == OURS else "C0" for name in policies]
        ax.barh(range(len(means)), means, color=colours)
        ax.set_yticks(range(len(means)), list(policies))
        ax.set_title(f"D = {regime:g} full trainings")
        ax.set_xlabel("mean regret")
    axes[0].invert_yaxis()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def draw_pairs(runs: Runs, seeds: int, ours: PolicySettings, file: Path) -> None:
    """The paper's cells: ours less the others, with intervals."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hpcsched"
    from matplotlib import pyplot

    cells = paper_cells()
    figure, ax = pyplot.subplots(figsize=(9, 6), layout="constrained")
    for place, name in enumerate(("hypersched", "asha")):
        found = [runs.difference([cell], ours, BASELINES[name], seeds, score) for cell in cells]
        ax.errorbar(
            [one.value for one in found],
            [i + 0.25 * place for i in range(len(cells))],
            xerr=[one.half for one in found],
            fmt="o",
            label=f"deadline - {name}",
        )
    labels = [f"{c.atoms} atoms, T {c.deadline:g}, {c.scaling}, restart {c.restart:g}" for c in cells]
    ax.set_yticks(range(len(cells)), labels)
    ax.axvline(0, color="0.5")
    ax.invert_yaxis()
    ax.set_xlabel("paired difference of the score at the deadline, 95 % interval")
    ax.legend()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the markers of a page."""
    old = page.read_text(encoding="utf-8")
    before, _, rest = old.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.policies", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("policies-out"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=num_cores())
    parser.add_argument("--every", action="store_true", help="all eight conditions of each recorded workload")
    parser.add_argument(
        "--ablations", type=int, default=0, metavar="SEEDS", help="also without each part, so many seeds"
    )
    parser.add_argument(
        "--page", type=Path, default=None, help="Markdown file with markers for table and figures"
    )
    options = parser.parse_args(arguments)
    data = find_data()
    if data is None:
        print("analysis.policies: no shared/data with recorded curves beside this checkout", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    runs = Runs(options.out / "runs.jsonl", data)
    ours = DeadlineSettings()
    policies: dict[str, PolicySettings] = {OURS: ours, **BASELINES}
    curves = curve_cells(every=options.every)
    cells = [*curves, *paper_cells(), *crossing_cells(), TO_TARGET["imagenet"]]

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    runs.perform(cells, policies.values(), options.seeds, options.jobs, say)
    runs.perform(cells, ABLATIONS.values(), options.ablations, options.jobs, say)
    criteria = judge(runs, curves, options.seeds, ours)
    parts = [
        f"{options.seeds} seeds, {len(curves)} cells of recorded curves, {len(paper_cells())} of the paper's workload, "
        f"{len(crossing_cells())} of crossing curves.",
        criteria_table(criteria),
        regret_table(runs, curves, options.seeds, policies),
        paper_table(runs, options.seeds, policies),
    ]
    if options.ablations:
        parts.insert(
            2,
            f"What is lost without a part (regret, or score on the synthetic workloads; {options.ablations} seeds):",
        )
        parts.insert(3, ablation_table(runs, curves, options.ablations, ours))
    text = "\n\n".join(parts)
    (options.out / "criteria.md").write_text(text + "\n", encoding="utf-8")
    folder = options.out if options.page is None else options.page.parent / "images"
    folder.mkdir(exist_ok=True)
    draw_regret(runs, curves, options.seeds, policies, folder / "deadline-regret.svg")
    draw_pairs(runs, options.seeds, ours, folder / "deadline-pairs.svg")
    if options.page is not None:
        put_into(options.page, text)
    print(criteria_table(criteria))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
