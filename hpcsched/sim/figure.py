"""The comparison as a picture: every run a dot, by policy, and what the atoms were used for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcsched.errors import InputError
from hpcsched.sim.comparison import compare
from hpcsched.sim.simulate import SimulatedRun
from hpcsched.sim.sweep import RunRequest

FORMATS = (".svg", ".png", ".pdf")


def check_figure(file: Path) -> None:
    """Raises InputError when a figure cannot be written there: before the runs, not after them."""
    if file.suffix not in FORMATS:
        raise InputError(f"--figure {file}: the ending says the format; allowed: {', '.join(FORMATS)}")
    if not file.absolute().parent.is_dir():
        raise InputError(f"--figure {file}: there is no folder {file.absolute().parent}")
    try:
        import matplotlib  # noqa: F401  # only to know
    except ImportError as error:
        raise InputError(
            "--figure needs matplotlib: pip install 'hpcsched[analysis]', or leave --figure out"
        ) from error


def draw(requests: Sequence[RunRequest], runs: Sequence[SimulatedRun], file: Path, *, metric: str) -> None:
    """Write the figure. matplotlib is loaded here and nowhere else."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = compare(requests, runs)
    labels = [row.label for row in rows]
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(10, 1.4 + 0.6 * len(rows)), sharey=True, width_ratios=(3, 2), layout="constrained"
    )
    for place, row in enumerate(rows):
        scores = [
            run.best_metric
            for request, run in zip(requests, runs, strict=True)
            if request.label == row.label and run.best_metric is not None
        ]
        left.plot(scores, [place] * len(scores), "o", alpha=0.4, color="tab:blue")
        if row.score is not None:
            left.plot([row.score] * 2, [place - 0.3, place + 0.3], color="black")
        start = 0.0
        shares = (
            ("training", row.training_share, "tab:green"),
            ("restarts", row.restart_share, "tab:red"),
            ("idle", row.idle_share, "lightgrey"),
        )
        for name, share, color in shares:
            right.barh(place, share, left=start, color=color, label=name if place == 0 else None)
            start += share
    left.set_yticks(range(len(labels)), labels)
    left.invert_yaxis()
    left.set_xlabel(f"{metric} at the deadline (bar: median)")
    right.set_xlabel("share of atom-seconds")
    right.set_xlim(0, 1)
    figure.legend(loc="outside upper right", ncols=3)
    try:
        figure.savefig(file)
    except OSError as error:
        raise InputError(f"--figure {file}: cannot be written: {error.strerror}") from error
    finally:
        pyplot.close(figure)
