"""The paper's figures 5, 7, 8, 9 and 10 from our core: `python -m analysis.ablations [--out DIR] [--seeds N]`.

Each figure of section 6 of the HyperSched paper varies one thing on the synthetic workload (r = 5, R = 500, eta = 4, 200
samples, a step of 0.1): speculation (5), the entrance policy (7), allocation (8), profiling (9), start-up delay (10). The
numbers of the paper's plots are not public; what it says about them is, and a table says for each claim whether it holds
here, with the numbers. Scores are means over seeds of the best score by the deadline.

Written to DIR: figure-5.svg ... figure-10.svg, claims.md, results.csv.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from hpcsched.core.settings import AshaSettings, HyperSchedSettings, PolicySettings, ScalingSettings, Settings
from hpcsched.sim.options import SimulationTable
from hpcsched.sim.request import NO_TIMEOUTS
from hpcsched.sim.simulate import SimulatedRun
from hpcsched.sim.sweep import RunRequest, perform_all
from hpcsched.sim.world import WorldSettings

START_UP_S = 0.001
NUM_TRIALS = 200

HYPERSCHED = HyperSchedSettings()
FRACTIONS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 11))
SCALINGS = ("linear", "sqrt", "none")


class Point(NamedTuple):
    """One mark of one figure: what was varied, and under what."""

    figure: int
    series: str
    atoms: int
    deadline_s: float
    scaling: str = "linear"
    delay_s: float = 0.0
    """Added to the 0.001 of every start."""


class Means(msgspec.Struct, frozen=True):
    """Over the seeds of a point."""

    score: float
    trials: float
    throughput: float
    """Iterations of the best trial over the deadline."""
    resizes: float
    finished_s: float


class Claim(msgspec.Struct, frozen=True):
    """What the paper says about a figure, and what was found here."""

    figure: int
    says: str
    holds: bool
    found: str


def policies() -> dict[Point, PolicySettings]:
    """Every point of every figure with the policy that it runs."""
    points: dict[Point, PolicySettings] = {}
    for atoms in (4, 8, 16, 32):
        for deadline_s in (15.0, 30.0, 60.0, 120.0):
            for allocation in ("uniform", "none"):
                for speculation in (True, False):
                    name = f"{'speculation' if speculation else 'no speculation'}, allocation {allocation}"
                    points[Point(5, name, atoms, deadline_s)] = HyperSchedSettings(
                        speculation=speculation,
                        allocation=allocation,
                    )
    for atoms in (4, 16):
        for deadline_s in (10.0, 20.0, 30.0):
            points[Point(7, "adaptive", atoms, deadline_s)] = HYPERSCHED
            for fraction in FRACTIONS:
                points[Point(7, f"{fraction:.1f}", atoms, deadline_s)] = HyperSchedSettings(
                    explore_fraction=fraction
                )
    for deadline_s in (10.0, 30.0):
        for atoms in (2, 4, 8, 16):
            points[Point(8, "ASHA", atoms, deadline_s)] = AshaSettings()
            points[Point(8, "no allocation", atoms, deadline_s)] = HyperSchedSettings(allocation="none")
            for scaling in SCALINGS:
                points[Point(8, "HyperSched", atoms, deadline_s, scaling)] = HYPERSCHED
    for atoms in (4, 8, 16):
        for delay_s in (0.1, 0.5, 1.0):
            points[Point(9, "profile", atoms, 10.0, "sqrt", delay_s)] = HYPERSCHED
            points[Point(9, "no profile", atoms, 10.0, "sqrt", delay_s)] = HyperSchedSettings(
                ignore_overhead=True, assume_linear=True
            )
        for delay_s in (0.1, 0.5, 1.0, 2.0):
            for scaling in SCALINGS:
                points[Point(10, scaling, atoms, 10.0, scaling, delay_s)] = HYPERSCHED
    return points


def request_of(point: Point, policy: PolicySettings, seed: int) -> RunRequest:
    """The run of one point and seed."""
    return RunRequest(
        label=point.series,
        settings=Settings(
            policy=policy,
            grace_period=5,
            max_iterations=500,
            reduction_factor=4,
            multiple_of=1,
            num_trials=NUM_TRIALS,
            request_ahead=False,
            scaling=ScalingSettings(assume=point.scaling),  # type: ignore[arg-type]  # one of SCALINGS
            timeouts=NO_TIMEOUTS,
            save_at_deadline=False,
        ),
        table=SimulationTable(
            scaling=point.scaling,  # type: ignore[arg-type]  # one of SCALINGS
            world=WorldSettings(start_up_s=START_UP_S + point.delay_s),
            atoms_per_node=point.atoms,
        ),
        num_atoms=point.atoms,
        deadline_s=point.deadline_s,
        seed=seed,
    )


def study(
    num_seeds: int, *, num_workers: int | None = None, executor: Executor | None = None
) -> dict[Point, Means]:
    """All points; the same policy under the same conditions is run once, whatever the figures that show it."""
    points = policies()
    requests: dict[bytes, RunRequest] = {}
    keys: dict[Point, list[bytes]] = {}
    for point, policy in points.items():
        for seed in range(num_seeds):
            request = msgspec.structs.replace(request_of(point, policy, seed), label="")
            key = msgspec.json.encode(request)
            requests[key] = request
            keys.setdefault(point, []).append(key)
    runs = dict(
        zip(
            requests,
            perform_all(list(requests.values()), num_workers=num_workers, executor=executor),
            strict=True,
        )
    )
    return {point: _means(point, [runs[key] for key in mine]) for point, mine in keys.items()}


def _means(point: Point, runs: Sequence[SimulatedRun]) -> Means:
    return Means(
        score=fmean(run.best_metric or 0.0 for run in runs),
        trials=fmean(run.trials_started for run in runs),
        throughput=fmean((run.best_iteration or 0) / point.deadline_s for run in runs),
        resizes=fmean(run.num_resizes for run in runs),
        finished_s=fmean(run.finished_s for run in runs),
    )


# ---- what the paper says


def claims(means: dict[Point, Means]) -> list[Claim]:
    """Every claim with what was found."""
    return [*_claims_5(means), *_claims_7(means), *_claims_8(means), *_claims_9(means), *_claims_10(means)]


def _claims_5(means: dict[Point, Means]) -> list[Claim]:
    def ratio(atoms: int, deadline_s: float, allocation: str) -> float:
        with_it = means[Point(5, f"speculation, allocation {allocation}", atoms, deadline_s)].score
        return with_it / means[Point(5, f"no speculation, allocation {allocation}", atoms, deadline_s)].score

    found = []
    for allocation in ("none", "uniform"):
        ratios = {(a, t): ratio(a, t, allocation) for a in (4, 8, 16, 32) for t in (15.0, 30.0, 60.0, 120.0)}
        best = max(ratios, key=lambda key: ratios[key])
        by_deadline = [fmean(ratios[a, t] for a in (4, 8, 16, 32)) for t in (15.0, 30.0, 60.0, 120.0)]
        by_atoms = [fmean(ratios[a, t] for t in (15.0, 30.0)) for a in (4, 8, 16, 32)]
        what = f"allocation {allocation}"
        found += [
            Claim(
                5,
                f"speculative evaluation is up to 50 % better ({what})",
                ratios[best] >= 1.3,
                f"best ratio {ratios[best]:.2f} at {best[0]} atoms, deadline {best[1]:g}; worst {min(ratios.values()):.2f}",
            ),
            Claim(
                5,
                f"its benefit shrinks with longer deadlines ({what})",
                by_deadline[0] > by_deadline[2] and by_deadline[1] > by_deadline[3],
                "mean ratio " + ", ".join(f"{value:.2f}" for value in by_deadline) + " at 15, 30, 60, 120",
            ),
            Claim(
                5,
                f"its benefit shrinks with larger clusters ({what})",
                by_atoms[0] > by_atoms[-1],
                "mean ratio "
                + ", ".join(f"{value:.2f}" for value in by_atoms)
                + " at 4, 8, 16, 32 atoms (15, 30)",
            ),
        ]
    return found


def _claims_7(means: dict[Point, Means]) -> list[Claim]:
    cells = [(a, t) for a in (4, 16) for t in (10.0, 20.0, 30.0)]
    fixed = {cell: {f: means[Point(7, f"{f:.1f}", *cell)].score for f in FRACTIONS} for cell in cells}
    adaptive = {cell: means[Point(7, "adaptive", *cell)].score for cell in cells}
    behind = {cell: max(fixed[cell].values()) - adaptive[cell] for cell in cells}
    worst = {f: max(max(fixed[cell].values()) - fixed[cell][f] for cell in cells) for f in FRACTIONS}
    best_fraction = min(worst, key=lambda fraction: worst[fraction])
    extremes = all(
        fixed[cell][0.1] < max(fixed[cell].values()) and fixed[cell][1.0] < max(fixed[cell].values())
        for cell in cells
    )
    return [
        Claim(
            7,
            "the entrance policy is near the best fixed fraction",
            max(behind.values()) <= 0.05,
            ", ".join(
                f"{a}/{t:g}: {adaptive[a, t]:.3f} of {max(fixed[a, t].values()):.3f}" for a, t in cells
            ),
        ),
        Claim(
            7,
            "it is more robust than any one fraction",
            max(behind.values()) <= worst[best_fraction] + 0.005,
            f"furthest behind the best: adaptive {max(behind.values()):.3f}; the most robust fraction, {best_fraction:.1f}, "
            f"{worst[best_fraction]:.3f}; 0.1: {worst[0.1]:.3f}, 1.0: {worst[1.0]:.3f}",
        ),
        Claim(
            7,
            "0.1 explores too little and 1.0 cannot exploit",
            extremes,
            ", ".join(f"{a}/{t:g}: {fixed[a, t][0.1]:.3f}, {fixed[a, t][1.0]:.3f}" for a, t in cells),
        ),
    ]


def _claims_8(means: dict[Point, Means]) -> list[Claim]:
    found = []
    for deadline_s in (10.0, 30.0):
        ours = {
            s: [means[Point(8, "HyperSched", a, deadline_s, s)].score for a in (2, 4, 8, 16)]
            for s in SCALINGS
        }
        without = [means[Point(8, "no allocation", a, deadline_s)].score for a in (2, 4, 8, 16)]
        asha = [means[Point(8, "ASHA", a, deadline_s)].score for a in (2, 4, 8, 16)]
        shown = "; ".join(
            f"{name} " + " ".join(f"{value:.3f}" for value in values)
            for name, values in (*ours.items(), ("no allocation", without), ("ASHA", asha))
        )
        found += [
            Claim(
                8,
                f"giving atoms to the top trials gains, the more the better it scales (deadline {deadline_s:g})",
                all(
                    x >= y - 1e-9 and y >= z - 1e-9
                    for x, y, z in zip(ours["linear"], ours["sqrt"], ours["none"], strict=True)
                )
                and ours["linear"][2] > without[2],
                shown,
            ),
            Claim(
                8,
                f"where nothing scales allocation changes nothing (deadline {deadline_s:g})",
                ours["none"] == without
                and all(
                    means[Point(8, "HyperSched", a, deadline_s, "none")].resizes == 0 for a in (2, 4, 8, 16)
                ),
                "none " + " ".join(f"{value:.3f}" for value in ours["none"]),
            ),
            Claim(
                8,
                f"HyperSched beats ASHA wherever training scales (deadline {deadline_s:g})",
                all(x > y for x, y in zip(ours["linear"] + ours["sqrt"], asha + asha, strict=True)),
                "ASHA " + " ".join(f"{value:.3f}" for value in asha),
            ),
        ]
    return found


def _claims_9(means: dict[Point, Means]) -> list[Claim]:
    ratios = {
        (a, d): means[Point(9, "profile", a, 10.0, "sqrt", d)].score
        / means[Point(9, "no profile", a, 10.0, "sqrt", d)].score
        for a in (4, 8, 16)
        for d in (0.1, 0.5, 1.0)
    }
    shown = ", ".join(f"{a} atoms, delay {d:g}: {ratio:.3f}" for (a, d), ratio in ratios.items())
    return [
        Claim(
            9,
            "with a small delay profiling makes no difference",
            all(abs(ratios[a, 0.1] - 1) <= 0.02 for a in (4, 8, 16)),
            shown,
        ),
        Claim(
            9,
            "with a large delay (10 % of the deadline) profiling is better",
            fmean(ratios[a, 1.0] for a in (4, 8, 16)) > 1.0,
            f"mean ratio {fmean(ratios[a, 1.0] for a in (4, 8, 16)):.3f} (the paper speaks of a large difference)",
        ),
    ]


def _claims_10(means: dict[Point, Means]) -> list[Claim]:
    def score(atoms: int, scaling: str, delay_s: float) -> float:
        return means[Point(10, scaling, atoms, 10.0, scaling, delay_s)].score

    delays = (0.1, 0.5, 1.0, 2.0)
    rows = {(a, s): [score(a, s, d) for d in delays] for a in (4, 8, 16) for s in SCALINGS}
    shown = "; ".join(f"{a} {s} " + " ".join(f"{v:.3f}" for v in values) for (a, s), values in rows.items())
    resizes = sum(means[Point(10, s, a, 10.0, s, 2.0)].resizes for a in (4, 8, 16) for s in SCALINGS)
    return [
        Claim(
            10,
            "start-up delay hurts",
            all(all(x >= y for x, y in itertools.pairwise(row)) for row in rows.values()),
            shown,
        ),
        Claim(
            10,
            "with scaling it never does worse than without",
            all(
                rows[a, s][i] >= rows[a, "none"][i] - 0.005
                for a in (4, 8, 16)
                for s in ("linear", "sqrt")
                for i in range(4)
            ),
            "by the delay of each row above",
        ),
        Claim(
            10,
            "at 20 % of the deadline there is no resize and all scalings coincide",
            resizes == 0 and all(rows[a, s][3] == rows[a, "none"][3] for a in (4, 8, 16) for s in SCALINGS),
            f"{resizes:g} resizes; scores "
            + ", ".join("/".join(f"{rows[a, s][3]:.3f}" for s in SCALINGS) for a in (4, 8, 16)),
        ),
    ]


# ---- pictures


def draw(means: dict[Point, Means], folder: Path, formats: Sequence[str]) -> list[Path]:
    """One file a figure and format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    drawers: dict[int, Callable[[Any, dict[Point, Means]], Any]] = {
        5: _draw_5,
        7: _draw_7,
        8: _draw_8,
        9: _draw_9,
        10: _draw_10,
    }
    for number, drawer in drawers.items():
        figure = drawer(pyplot, means)
        for ending in formats:
            file = folder / f"figure-{number}.{ending}"
            figure.savefig(file)
            written.append(file)
        pyplot.close(figure)
    return written


def _draw_5(pyplot: Any, means: dict[Point, Means]) -> Any:
    figure, axes = pyplot.subplots(1, 4, figsize=(13, 3.4), sharey=True, layout="constrained")
    deadlines = (15.0, 30.0, 60.0, 120.0)
    for axis, atoms in zip(axes, (4, 8, 16, 32), strict=True):
        for allocation, style in (("uniform", "-"), ("none", "--")):
            for word, color in (("speculation", "tab:blue"), ("no speculation", "tab:orange")):
                series = f"{word}, allocation {allocation}"
                scores = [means[Point(5, series, atoms, t)].score for t in deadlines]
                axis.plot(deadlines, scores, style, marker="o", color=color, label=series)
        axis.set_xscale("log", base=2)
        axis.set_xticks(deadlines, [f"{t:g}" for t in deadlines])
        axis.set_title(f"{atoms} atoms")
        axis.set_xlabel("deadline (s)")
    axes[0].set_ylabel("best score")
    axes[0].legend(fontsize=7)
    figure.suptitle("Figure 5: speculative evaluation")
    return figure


def _draw_7(pyplot: Any, means: dict[Point, Means]) -> Any:
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for axis, atoms in zip(axes, (4, 16), strict=True):
        for deadline_s, color in ((10.0, "tab:blue"), (20.0, "tab:orange"), (30.0, "tab:green")):
            scores = [means[Point(7, f"{f:.1f}", atoms, deadline_s)].score for f in FRACTIONS]
            axis.plot(FRACTIONS, scores, "o-", color=color, label=f"fixed, deadline {deadline_s:g}")
            axis.axhline(means[Point(7, "adaptive", atoms, deadline_s)].score, color=color, linestyle="--")
        axis.set_title(f"{atoms} atoms")
        axis.set_xlabel("fraction of the time that explores (dashed: entrance policy)")
    axes[0].set_ylabel("best score")
    axes[0].legend(fontsize=8)
    figure.suptitle("Figure 7: entrance policy against fixed exploration")
    return figure


def _draw_8(pyplot: Any, means: dict[Point, Means]) -> Any:
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    atoms = (2, 4, 8, 16)
    for axis, deadline_s in zip(axes, (10.0, 30.0), strict=True):
        for scaling in SCALINGS:
            scores = [means[Point(8, "HyperSched", a, deadline_s, scaling)].score for a in atoms]
            axis.plot(atoms, scores, "o-", label=f"HyperSched, {scaling}")
        for series in ("no allocation", "ASHA"):
            axis.plot(
                atoms, [means[Point(8, series, a, deadline_s)].score for a in atoms], "s--", label=series
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(atoms, [str(a) for a in atoms])
        axis.set_title(f"deadline {deadline_s:g} s")
        axis.set_xlabel("atoms")
    axes[0].set_ylabel("best score")
    axes[0].legend(fontsize=8)
    figure.suptitle("Figure 8: dynamic allocation")
    return figure


def _draw_9(pyplot: Any, means: dict[Point, Means]) -> Any:
    figure, axes = pyplot.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
    atoms = (4, 8, 16)
    for axis, delay_s in zip(axes, (0.1, 0.5, 1.0), strict=True):
        for series in ("profile", "no profile"):
            scores = [means[Point(9, series, a, 10.0, "sqrt", delay_s)].score for a in atoms]
            axis.plot(atoms, scores, "o-", label=series)
        axis.set_xscale("log", base=2)
        axis.set_xticks(atoms, [str(a) for a in atoms])
        axis.set_title(f"start-up {delay_s:g} s of 10")
        axis.set_xlabel("atoms")
    axes[0].set_ylabel("best score")
    axes[0].legend()
    figure.suptitle("Figure 9: profiling of scaling and overhead")
    return figure


def _draw_10(pyplot: Any, means: dict[Point, Means]) -> Any:
    figure, axes = pyplot.subplots(2, 3, figsize=(11, 6), sharex=True, sharey="row", layout="constrained")
    delays = (0.1, 0.5, 1.0, 2.0)
    for column, atoms in enumerate((4, 8, 16)):
        for scaling in SCALINGS:
            mine = [means[Point(10, scaling, atoms, 10.0, scaling, d)] for d in delays]
            axes[0][column].plot(delays, [one.score for one in mine], "o-", label=scaling)
            axes[1][column].plot(delays, [one.throughput for one in mine], "o-", label=scaling)
        axes[0][column].set_title(f"{atoms} atoms")
        axes[1][column].set_xlabel("start-up delay (s), deadline 10")
    axes[0][0].set_ylabel("best score")
    axes[1][0].set_ylabel("iterations of the best\na second of the deadline")
    axes[0][0].legend()
    figure.suptitle("Figure 10: start-up delay")
    return figure


# ---- the command


def as_markdown(found: Sequence[Claim], num_seeds: int) -> str:
    """The table of claims."""
    lines = [
        f"Claims of the HyperSched paper's section 6 in our simulator ({num_seeds} seeds).",
        "",
        "| figure | the paper says | holds here | found |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {one.figure} | {one.says} | {'yes' if one.holds else 'no'} | {one.found} |" for one in found
    ]
    return "\n".join(lines) + "\n"


def write_results(means: dict[Point, Means], file: Path) -> None:
    """Every point with its means."""
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*Point._fields, *Means.__struct_fields__])
        for point, mean in means.items():
            writer.writerow([*point, *(f"{value:.6g}" for value in msgspec.structs.astuple(mean))])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.ablations", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("ablations"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=None, help="processes; default: all cores")
    parser.add_argument("--formats", default="svg", help="svg, png or both: svg,png")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    means = study(options.seeds, num_workers=options.jobs)
    found = claims(means)
    draw(means, options.out, options.formats.split(","))
    write_results(means, options.out / "results.csv")
    text = as_markdown(found, options.seeds)
    (options.out / "claims.md").write_text(text)
    print(text)
    print(
        f"{len(means)} points, {options.seeds} seeds: {time.monotonic() - began:.1f} s; written to {options.out}/"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
