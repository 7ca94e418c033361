"""Figures of a run over time, and of its curves; and all figures by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcsched.errors import RunFolderError
from hpcsched.report import search_figures
from hpcsched.report.drawing import (
    COLOURS,
    MOST_LABELS,
    MOST_LINES,
    MOST_POINTED_AT,
    MOST_VECTORS,
    NUM_NAMED,
    TEXT_COLOUR,
    Figure,
    LineCollection,
    PolyCollection,
    colour_of,
    curves_of,
    draw_deadline,
    mpl,
    new_figure,
    style,
    thin,
    time_axis,
)
from hpcsched.report.load import Rows, RunLog
from hpcsched.report.text import clean_line


def holders(log: RunLog) -> Figure:
    """Who held which GPU when, one row a GPU, coloured by trial."""
    rows = log.placements
    gpus = sorted({(str(row["node"]), str(row["gpu"])) for row in rows[["node", "gpu"]]}, key=_natural)
    place = {gpu: k for k, gpu in enumerate(gpus)}
    with style():
        figure, axes = new_figure(9.6, min(12.0, max(1.8, 0.9 + 0.24 * len(gpus))))
        if len(rows):
            y = np.array([place[str(row["node"]), str(row["gpu"])] for row in rows], dtype=float)
            x0 = rows["from_s"].astype(float)
            x1 = np.where(np.isnan(rows["to_s"]), log.end_s, rows["to_s"])
            corners = np.stack(
                [
                    np.stack([x, y + dy], axis=1)
                    for x, dy in ((x0, -0.42), (x1, -0.42), (x1, 0.42), (x0, 0.42))
                ],
                axis=1,
            )
            for trial, which in _by_trial(rows["trial_id"]):
                spans = PolyCollection(
                    list(corners[which]),
                    facecolors=[colour_of(int(number)) for number in rows["trial_id"][which]],
                    edgecolors="white" if len(rows) <= MOST_VECTORS else "none",
                    linewidths=0.6,
                    rasterized=len(rows) > MOST_VECTORS,
                )
                if trial is not None:
                    spans.set_gid(f"trial-{trial}")
                axes.add_collection(spans)
            wide = (x1 - x0) > 0.018 * max(log.end_s, 1e-9)
            if int(wide.sum()) <= MOST_LABELS and len(gpus) <= 64:
                for k in np.flatnonzero(wide):
                    axes.text(
                        (x0[k] + x1[k]) / 2,
                        y[k],
                        str(rows["trial_id"][k]),
                        ha="center",
                        va="center_baseline",
                        fontsize=8,
                        color="white",
                        fontweight="bold",
                    )
        draw_deadline(axes, log)
        time_axis(axes, log)
        axes.set_ylim(len(gpus) - 0.4, -0.6)
        step = max(1, len(gpus) // 48 + (len(gpus) % 48 > 0)) if len(gpus) > 48 else 1
        axes.set_yticks(
            range(0, len(gpus), step), [clean_line(":".join(gpu), 40) for gpu in gpus[::step]], fontsize=8
        )
        axes.grid(axis="y", visible=False)
        axes.set_ylabel("GPU")
        return figure


def best_score(log: RunLog) -> Figure:
    """Best score against time: as reported, and as held by a complete checkpoint."""
    with style():
        figure, axes = new_figure(9.6, 3.2)
        results = log.results
        finite = results[np.isfinite(results["metric"])]
        if len(finite):
            best = log.sign * np.maximum.accumulate(log.sign * finite["metric"])
            keep = _changes(best)
            time = np.append(finite["time_s"][keep], log.end_s)
            axes.plot(
                time,
                np.append(best[keep], best[-1]),
                drawstyle="steps-post",
                color=COLOURS[0],
                alpha=0.85,
                label="reported",
            )
        curve = log.best_curve
        if len(curve):
            axes.plot(
                np.append(curve["time_s"], log.end_s),
                np.append(curve["metric"], curve["metric"][-1]),
                drawstyle="steps-post",
                color=COLOURS[2],
                linewidth=2.2,
                label="with a complete checkpoint (score)",
            )
        draw_deadline(axes, log)
        time_axis(axes, log)
        axes.set_ylabel(clean_line(log.metric, 40))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")
        return figure


def learning_curves(log: RunLog) -> Figure:
    """Metric against iteration, one line a trial; the best trials have colours and names."""
    results = log.results
    with style():
        figure, axes = new_figure(9.6, 4.2)
        curves = curves_of(results)
        ranked = sorted(
            (
                trial
                for trial in curves
                if trial < len(log.trials) and np.isfinite(log.trials["best_metric"][trial])
            ),
            key=lambda trial: -log.sign * log.trials["best_metric"][trial],
        )
        named = ranked[:NUM_NAMED]
        others = [curves[trial] for trial in curves if trial not in set(named)]
        if len(others) > MOST_LINES:
            others = [others[k] for k in np.linspace(0, len(others) - 1, MOST_LINES).astype(int)]
        if others:
            axes.add_collection(
                LineCollection(
                    [thin(curve) for curve in others],
                    colors=TEXT_COLOUR,
                    alpha=0.18,
                    linewidths=0.9,
                    rasterized=sum(map(len, others)) > 20 * MOST_VECTORS,
                )
            )
        used: set[str] = set()
        for trial in named:
            curve = thin(curves[trial])
            dashes = "--" if colour_of(trial) in used else "-"
            used.add(colour_of(trial))
            (line,) = axes.plot(
                curve[:, 0],
                curve[:, 1],
                color=colour_of(trial),
                linestyle=dashes,
                linewidth=1.8,
                marker="o" if len(curve) < 40 else None,
                markersize=3,
                label=f"trial {trial}",
            )
            line.set_gid(f"trial-{trial}")
        axes.autoscale_view()
        axes.set_xlabel("iteration")
        axes.set_ylabel(clean_line(log.metric, 40))
        if named:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        return figure


def utilisation(log: RunLog) -> Figure:
    """How many GPUs trained, how many were held by trials that started or left, how many were idle, over time."""
    total = log.num_atoms * log.gpus_per_atom
    with style():
        figure, axes = new_figure(9.6, 2.6)
        if len(log.placements):
            times, training, held = held_over_time(log)
            raster = len(times) > 20 * MOST_VECTORS
            for low, high, colour, label in (
                (np.zeros(len(times)), training, COLOURS[0], "training"),
                (training, held, COLOURS[1], "starting, leaving, quarantined"),
            ):
                axes.fill_between(
                    times, low, high, step="post", color=colour, alpha=0.65, linewidth=0, rasterized=raster, label=label
                )  # fmt: skip
        axes.axhline(total, color=TEXT_COLOUR, linewidth=1, label=f"all {total} GPUs")
        draw_deadline(axes, log)
        time_axis(axes, log)
        axes.set_ylim(0, total * 1.05 + 0.1)
        axes.set_ylabel("GPUs")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        return figure


Floats = npt.NDArray[np.float64]


def held_over_time(log: RunLog) -> tuple[Floats, Floats, Floats]:
    """Times at which something changes (the last is the end), and from each on: GPUs that train, and GPUs that are held.

    An incarnation trains from the moment when all its ranks are up until it is asked to leave, or has left.
    """
    rows = log.placements
    keys = list(zip(rows["trial_id"].tolist(), rows["incarnation"].tolist(), strict=True))
    up = _first_of(log.events, ("TrialStarted",))
    asked = _first_of(log.actions, ("PreemptTrial", "KillTrial"))
    begin = rows["from_s"].astype(float)
    end = np.where(np.isnan(rows["to_s"]), log.end_s, rows["to_s"])
    trains = np.clip(np.array([up.get(key, np.inf) for key in keys]), begin, end)
    leaves = np.clip(np.array([asked.get(key, np.inf) for key in keys]), trains, end)
    times = np.unique(np.concatenate([begin, end, trains, leaves, [log.end_s]]))
    training, held = np.zeros(len(times)), np.zeros(len(times))
    for curve, starts, ends in ((training, trains, leaves), (held, begin, end)):
        np.add.at(curve, np.searchsorted(times, starts), 1.0)
        np.add.at(curve, np.searchsorted(times, ends), -1.0)
    return times, np.cumsum(training), np.cumsum(held)


def _first_of(rows: Rows, kinds: tuple[str, ...]) -> dict[tuple[int, int], float]:
    """(trial, incarnation) -> time of the first row of these kinds."""
    found = rows[np.logical_or.reduce([rows["kind"] == kind for kind in kinds])]
    first: dict[tuple[int, int], float] = {}
    for trial, incarnation, time_s in zip(
        found["trial_id"].tolist(), found["incarnation"].tolist(), found["time_s"].tolist(), strict=True
    ):
        first.setdefault((trial, incarnation), time_s)
    return first


def _by_trial(numbers: Rows) -> Iterator[tuple[int | None, npt.NDArray[np.intp]]]:
    """The rows of each trial, for a shape of its own that the page can point at; all in one where they are too many."""
    trials = np.unique(numbers)
    if len(numbers) > MOST_VECTORS or len(trials) > MOST_POINTED_AT:
        yield None, np.arange(len(numbers))
        return
    for trial in trials:
        yield int(trial), np.flatnonzero(numbers == trial)


FIGURES: dict[str, Callable[[RunLog], Figure]] = {
    "holders": holders,
    "best_score": best_score,
    "learning_curves": learning_curves,
    "utilisation": utilisation,
    "rungs": search_figures.rungs,
    "curves_by_atoms": search_figures.curves_by_atoms,
    "restart_cost": search_figures.restart_cost,
    "importance": search_figures.importance,
    "parallel": search_figures.parallel,
}
"""By name: of their files, and for `run.plot`."""
FORMATS = ("png", "svg", "pdf")
PAPER_DPI = 300


def write_figures(log: RunLog, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Each figure in each format, for papers and slides: text stays text in SVG and PDF. Raises RunFolderError when `folder`
    cannot be written."""
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in FIGURES.items():
            figure = draw(log)
            for kind in formats:
                target = folder / f"{name}.{kind}"
                with style(), mpl.rc_context({"pdf.fonttype": 42}):
                    figure.savefig(
                        target, format=kind, dpi=PAPER_DPI, facecolor="white", metadata=_NO_DATE[kind]
                    )
                written.append(target)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return written


_NO_DATE: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""The same log gives the same bytes."""


def compared(logs: Sequence[RunLog], names: Sequence[str]) -> Figure:
    """Best score with a complete checkpoint against time, one line a run."""
    with style():
        figure, axes = new_figure(9.6, 3.6)
        for number, (log, name) in enumerate(zip(logs, names, strict=True)):
            curve = log.best_curve
            if len(curve):
                axes.plot(
                    np.append(curve["time_s"], log.end_s),
                    np.append(curve["metric"], curve["metric"][-1]),
                    drawstyle="steps-post",
                    color=COLOURS[number % len(COLOURS)],
                    linestyle=("-", "--", ":", "-.")[number // len(COLOURS) % 4],
                    linewidth=2,
                    label=clean_line(name, 60),
                )
        axes.set_xlabel("seconds since the experiment began")
        axes.set_ylabel(clean_line(logs[0].metric, 40))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", fontsize=8)
        return figure


def _changes(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    changed: npt.NDArray[np.bool_] = np.append(True, values[1:] != values[:-1])
    return changed


def _natural(key: tuple[str, str]) -> list[Any]:
    """n2 before n10."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for text in key
        for part in (*re.split(r"(\d+)", text), "\0")
    ]
