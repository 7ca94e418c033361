"""How figures are drawn: style, colours, axes, and SVG text for the page.

Object-oriented matplotlib only: no pyplot, no global figure list, no change of anybody's settings. In the SVG text whatever
is drawn in the colour of the text becomes `currentColor`, so that one picture serves light and dark pages.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcsched.errors import LogError
from hpcsched.report.load import Rows, RunLog
from hpcsched.report.text import clean_line

try:
    import matplotlib as mpl
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.figure import Figure
except ImportError as error:
    raise LogError("figures need matplotlib: `pip install 'hpcsched[analysis]'`") from error

__all__ = [
    "COLOURS", "MOST_LABELS", "MOST_LINES", "MOST_POINTED_AT", "MOST_VECTORS", "NUM_NAMED", "TEXT_COLOUR", "Figure",
    "LineCollection", "PolyCollection", "colormaps", "colour_of", "curves_of", "draw_deadline", "mpl", "new_figure", "style",
    "svg_of", "thin", "time_axis",
]  # fmt: skip

TEXT_COLOUR = "#15161a"
COLOURS = (
    "#3b7dd8", "#d9822b", "#2f9e6e", "#c4488c", "#8a6fd1", "#b59a00", "#2aa6b8", "#d0504a", "#6f9440", "#9a6a4f",
)  # fmt: skip
"""Of trials, by number; each has enough contrast (3:1) on white and on near-black."""
DEADLINE_COLOUR = "#d0504a"
MOST_VECTORS = 3000
"""Shapes of a figure beyond which they are drawn as an image inside the SVG: the page stays small."""
MOST_LABELS = 300
MOST_POINTED_AT = 300
"""Trials beyond which the page's script lights none up."""
MOST_LINES = 2000
NUM_NAMED = 8
"""Learning curves with a colour and a name."""


def colour_of(trial_id: int) -> str:
    return COLOURS[trial_id % len(COLOURS)]


@contextmanager
def style() -> Iterator[None]:
    settings: Any = {  # matplotlib's own type lists every key there is
        "svg.fonttype": "none",
        "svg.hashsalt": "hpcsched",
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": TEXT_COLOUR,
        "axes.labelcolor": TEXT_COLOUR,
        "axes.edgecolor": TEXT_COLOUR,
        "xtick.color": TEXT_COLOUR,
        "ytick.color": TEXT_COLOUR,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.facecolor": "none",
        "legend.edgecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": TEXT_COLOUR,
        "grid.alpha": 0.12,
        "axes.axisbelow": True,
        "text.parse_math": False,  # a "$" in somebody's name is a "$"
    }
    with mpl.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def draw_deadline(axes: Any, log: RunLog) -> None:
    if log.deadline_s is not None:
        axes.axvline(log.deadline_s, color=DEADLINE_COLOUR, linewidth=1.5, linestyle="--", label="deadline")


def time_axis(axes: Any, log: RunLog) -> None:
    right = max(log.end_s, log.deadline_s or 0.0, 1e-9)
    axes.set_xlim(0.0, right * 1.01)
    axes.set_xlabel("seconds since the experiment began")


def svg_of(figure: Figure, name: str, title: str) -> str:
    """SVG text to be put into a page. `name` makes its ids unique there; `title` is its alternative text."""
    stream = io.StringIO()
    with style():
        figure.savefig(
            stream,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
            dpi=120,
        )
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = text.replace(TEXT_COLOUR, "currentColor")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    head, _, body = text.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-labelledby="{name}-title"><title id="{name}-title">{_xml(title)}</title>{body}'


def _xml(text: str) -> str:
    text = clean_line(text, 2000)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def curves_of(results: Rows) -> dict[int, npt.NDArray[np.float64]]:
    """trial -> rows of (iteration, metric); of repeated iterations the last report counts."""
    finite = results[np.isfinite(results["metric"])]
    order = np.lexsort((np.arange(len(finite)), finite["training_iteration"], finite["trial_id"]))
    finite = finite[order]
    trial, iteration = finite["trial_id"], finite["training_iteration"]
    if len(finite):
        finite = finite[np.append((trial[1:] != trial[:-1]) | (iteration[1:] != iteration[:-1]), True)]
    points = np.stack([finite["training_iteration"].astype(float), finite["metric"]], axis=1)
    numbers, begins = np.unique(finite["trial_id"], return_index=True)
    return {int(n): part for n, part in zip(numbers, np.split(points, begins[1:]), strict=False)}


def thin(curve: npt.NDArray[np.float64], most: int = 400) -> npt.NDArray[np.float64]:
    """At most `most` points, the first and the last among them."""
    if len(curve) <= most:
        return curve
    thin: npt.NDArray[np.float64] = curve[np.linspace(0, len(curve) - 1, most).astype(int)]
    return thin
