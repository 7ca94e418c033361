"""Figures of the search: rungs and what was cut, curves by atoms, restarts by part, hyperparameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcsched.report.costs import BEFORE_TRAINING, Part, restart_parts
from hpcsched.report.drawing import (
    COLOURS,
    MOST_VECTORS,
    TEXT_COLOUR,
    Figure,
    LineCollection,
    colormaps,
    new_figure,
    style,
    thin,
)
from hpcsched.report.importance import (
    Importance,
    Sample,
    importance_of,
    is_number,
    logarithmic_names,
    sample_of,
)
from hpcsched.report.load import RunLog
from hpcsched.report.rungs import Rung, last_reports, rungs_of
from hpcsched.report.text import clean_line, duration

SIZE_COLOURS = ("#7a8699", "#3b7dd8", "#2f9e6e", "#b59a00", "#d9822b", "#d0504a", "#c4488c", "#8a6fd1")
"""Of 1, 2-3, 4-7, ... atoms; each with 3:1 on white and on near-black."""
MOST_SIZED = 400
"""Curves by atoms beyond which only the furthest are drawn."""
MOST_AXES = 10
SPREAD = 0.32


def rungs(log: RunLog, found: Sequence[Rung] | None = None) -> Figure:
    """Metric at each rung, one point a trial: who went on and who did not. `found`: what `rungs_of` has said."""
    if found is None:
        found = rungs_of(log)
    with style():
        figure, axes = new_figure(9.6, 3.8)
        for k, rung in enumerate(found):
            x = k + SPREAD * (2.0 * _scattered(rung.trials) - 1.0)
            raster = len(rung.trials) > MOST_VECTORS
            for on, colour, marker, label in (
                (False, COLOURS[1], "x", "did not go on"),
                (True, COLOURS[0], "o", "went on"),
            ):
                which = rung.went_on == on
                axes.scatter(
                    x[which], rung.metrics[which], s=16, color=colour, marker=marker, linewidths=1.1,
                    alpha=0.85 if len(rung.trials) < 1000 else 0.4, label=label if k == 0 else None, rasterized=raster,
                )  # fmt: skip
        axes.set_xticks(range(len(found)), [str(rung.milestone) for rung in found])
        axes.set_xlabel("rung (iteration)")
        axes.set_ylabel(clean_line(log.metric, 40))
        axes.grid(axis="x", visible=False)
        if found:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        return figure


def curves_by_atoms(log: RunLog) -> Figure:
    """Metric against time, one line a trial; the colour is the number of atoms it had."""
    with style():
        figure, axes = new_figure(9.6, 4.0)
        rows = last_reports(log.results)
        rows = rows[np.isfinite(rows["metric"])]
        segments: dict[int, list[npt.NDArray[np.float64]]] = {}
        for part in _furthest(rows):
            points = np.stack([part["time_s"], part["metric"]], axis=1)
            level = np.floor(np.log2(np.maximum(1, part["num_atoms"]))).astype(int)
            # A stretch is as the report at its end says: the iteration was done on so many atoms.
            cuts = np.flatnonzero(level[1:] != level[:-1]) + 1
            begins = [0, *cuts.tolist()]
            for begin, end in zip(begins, [*cuts.tolist(), len(level)], strict=True):
                stretch = points[max(0, begin - 1) : end]
                if len(stretch) == 1:
                    stretch = np.repeat(stretch, 2, axis=0)
                segments.setdefault(int(level[begin]), []).append(thin(stretch, 200))
        for level in sorted(segments):
            low, high = 2**level, 2 ** (level + 1) - 1
            words = (
                "1 atom"
                if level == 0
                else f"{low} to {high} atoms"
                if _some(rows, low, high)
                else f"{low} atoms"
            )
            lines = LineCollection(
                segments[level],
                colors=SIZE_COLOURS[level % len(SIZE_COLOURS)],
                linewidths=1.0 + 0.5 * level,
                capstyle="round",
                label=words,
                rasterized=sum(map(len, segments[level])) > 10 * MOST_VECTORS,
            )
            axes.add_collection(lines)
        axes.autoscale_view()
        axes.set_xlabel("seconds since the experiment began")
        axes.set_ylabel(clean_line(log.metric, 40))
        if segments:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        return figure


def _some(rows: Any, low: int, high: int) -> bool:
    """Whether any size strictly between the two ends of a class occurs."""
    return high > low and bool(((rows["num_atoms"] > low) & (rows["num_atoms"] <= high)).any())


def _furthest(rows: Any) -> list[Any]:
    """The curves of the trials that came furthest, each a part of the rows."""
    if not len(rows):
        return []
    begins = np.flatnonzero(np.append(True, rows["trial_id"][1:] != rows["trial_id"][:-1]))
    parts = np.split(rows, begins[1:])
    if len(parts) > MOST_SIZED:
        lengths = np.array([part["training_iteration"][-1] for part in parts])
        parts = [parts[k] for k in sorted(np.argsort(-lengths, kind="stable")[:MOST_SIZED])]
    return parts


def restart_cost(log: RunLog, parts: Sequence[Part] | None = None) -> Figure:
    """What a restart costs, by its parts in the order in which they happen: medians, with the 90th percentile. `parts`: what
    `restart_parts` has said."""
    if parts is None:
        parts = restart_parts(log)
    with style():
        figure, axes = new_figure(9.6, 0.9 + 0.34 * max(1, len(parts)))
        y = np.arange(len(parts))
        medians = np.array([part.median_s for part in parts])
        p90s = np.array([part.p90_s for part in parts])
        colours = [COLOURS[0] if part.name in BEFORE_TRAINING else COLOURS[1] for part in parts]
        axes.barh(y, medians, color=colours, height=0.6)
        axes.errorbar(
            medians, y, xerr=[np.zeros(len(parts)), np.maximum(0.0, p90s - medians)], fmt="none", ecolor=TEXT_COLOUR,
            elinewidth=1, capsize=3,
        )  # fmt: skip
        for k, part in enumerate(parts):
            axes.annotate(
                duration(part.median_s) if part.median_s >= 0.05 else f"{1000 * part.median_s:.1f} ms",
                (max(part.median_s, part.p90_s), k), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
        axes.set_yticks(y, [part.name.replace("_", " ") for part in parts])
        axes.set_ylim(len(parts) - 0.4, -0.6)
        axes.margins(x=0.12)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("seconds (median; the line reaches to the 90th percentile)")
        return figure


def importance(log: RunLog, found: Importance | None = None) -> Figure:
    """How much each hyperparameter mattered. `found`: what `importance_of` has said."""
    if found is None and (sample := sample_of(log)) is not None:
        found = importance_of(log, sample)
    shares = {} if found is None else dict(list(found.shares.items())[: 2 * MOST_AXES])
    with style():
        figure, axes = new_figure(9.6, 0.8 + 0.3 * max(1, len(shares)))
        axes.barh(range(len(shares)), list(shares.values()), color=COLOURS[2], height=0.6)
        for k, share in enumerate(shares.values()):
            axes.annotate(
                f"{100 * share:.0f} %",
                (share, k),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.set_yticks(range(len(shares)), [clean_line(name, 30) for name in shares])
        axes.set_ylim(max(1, len(shares)) - 0.4, -0.6)
        axes.set_xlim(0, 1.08)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("share of the importance")
        return figure


def parallel(log: RunLog, sample: Sample | None = None, found: Importance | None = None) -> Figure:
    """One line a trial through its hyperparameters to its score; the better, the darker the line and the more in front.
    `sample`, `found`: what `sample_of` and `importance_of` have said."""
    if sample is None:
        sample = sample_of(log)
    with style():
        figure, axes = new_figure(9.6, 3.8)
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.set_yticks([])
        if sample is None or not sample.values:
            axes.set_xticks([])
            return figure
        if found is None:
            found = importance_of(log, sample)
        names = list(sample.values if found is None else found.shares)[:MOST_AXES]
        logarithmic = logarithmic_names(log)
        columns = []
        for at, name in enumerate(names):
            heights, ticks = _axis(sample.values[name], logarithmic=name in logarithmic)
            columns.append(heights)
            _draw_axis(axes, at, ticks)
        finite = log.sign * sample.scores
        heights, ticks = _axis(finite.tolist(), logarithmic=False)
        columns.append(heights)
        _draw_axis(axes, len(names), ticks)
        place = np.argsort(np.argsort(sample.scores, kind="stable"), kind="stable") / max(
            1, len(sample.scores) - 1
        )
        order = np.argsort(place, kind="stable")
        lines = np.stack([np.stack([np.full(len(place), float(at)), column], axis=1) for at, column in enumerate(columns)], axis=1)  # fmt: skip
        best = place >= 0.9
        axes.add_collection(
            LineCollection(
                list(lines[order]),
                colors=[
                    _shade(value, on=bool(top)) for value, top in zip(place[order], best[order], strict=True)
                ],
                linewidths=[2.0 if top else 0.9 for top in best[order]],
                rasterized=len(place) > MOST_VECTORS // 6,
            )
        )
        axes.set_xlim(-0.15, len(names) + 0.35)
        axes.set_ylim(-0.06, 1.06)
        score = f"{clean_line(log.metric, 20)}\nat {sample.milestone}"
        axes.set_xticks(range(len(names) + 1), [*(clean_line(name, 18) for name in names), score])
        axes.tick_params(axis="x", length=0)
        return figure


def _axis(column: Sequence[Any], *, logarithmic: bool) -> tuple[npt.NDArray[np.float64], dict[float, str]]:
    """Heights 0..1, and what stands at some of them."""
    if all(is_number(value) for value in column) and len(set(column)) > 6:
        numbers = np.array([float(value) for value in column])
        logarithmic = logarithmic and bool((numbers > 0).all())
        scaled = np.log10(numbers) if logarithmic else numbers
        low, high = float(scaled.min()), float(scaled.max())
        heights = (scaled - low) / (high - low) if high > low else np.full(len(scaled), 0.5)
        ends = {0.0: low, 0.5: (low + high) / 2, 1.0: high}
        return heights, {at: f"{10**value if logarithmic else value:.3g}" for at, value in ends.items()}
    keys = sorted({_word(value) for value in column}, key=_rank)
    step = 1.0 / max(1, len(keys) - 1)
    at = {key: (k * step if len(keys) > 1 else 0.5) for k, key in enumerate(keys)}
    shown = keys if len(keys) <= 8 else [keys[0], keys[-1]]
    heights = np.array([at[_word(value)] for value in column])
    return heights, {at[key]: clean_line(key, 12) for key in shown}


def _draw_axis(axes: Any, at: float, ticks: dict[float, str]) -> None:
    axes.plot([at, at], [0, 1], color=TEXT_COLOUR, linewidth=1)
    for height, word in ticks.items():
        axes.annotate(
            word, (at, height), xytext=(4, 0), textcoords="offset points", fontsize=7.5, va="center"
        )


def _shade(place: float, *, on: bool) -> tuple[float, float, float, float]:
    if on:
        return (0.82, 0.31, 0.29, 0.95)
    red, green, blue, _ = colormaps["viridis"](0.25 + 0.5 * place)
    return (red, green, blue, 0.18 + 0.4 * place)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rank(word: str) -> tuple[int, float, str]:
    try:
        return (0, float(word), word)
    except ValueError:
        return (1, 0.0, word)


def _scattered(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """0..1 by number alone, evenly spread: the same picture each time."""
    return (numbers.astype(np.float64) * 0.6180339887498949) % 1.0
