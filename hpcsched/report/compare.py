"""Several runs side by side: the numbers that one would ask for first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcsched.errors import InputError
from hpcsched.report.load import RunLog
from hpcsched.report.text import clean_line, duration


class Compared(msgspec.Struct, frozen=True):
    """One run's column."""

    run: str
    policy: str
    state: str
    best: float | None
    """User's sign; None: no complete checkpoint."""
    best_trial: int | None
    saved_s: float | None
    reached_s: float | None
    """When it first was as good as the worst run's best; None: never (only that run's own best may be missing)."""
    num_trials: int
    num_resized: int
    gpu_hours: float
    training_share: float | None
    """Of the GPU time; None: there was none."""
    length_s: float
    deadline_s: float | None


def compare(logs: Sequence[RunLog], names: Sequence[str]) -> list[Compared]:
    """Raises InputError when the runs were after different metrics or directions."""
    first = logs[0]
    for log, name in zip(logs, names, strict=True):
        if (log.metric, log.mode) != (first.metric, first.mode):
            raise InputError(
                f"{name} is after {log.mode} {log.metric}, {names[0]} after {first.mode} {first.metric}: their scores cannot be compared"
            )
    bests = [log.best["metric"] for log in logs if log.best is not None]
    bar = min(bests, key=lambda metric: first.sign * metric) if bests else None
    return [_column(log, name, bar) for log, name in zip(logs, names, strict=True)]


def _column(log: RunLog, name: str, bar: float | None) -> Compared:
    total = sum(log.atom_seconds.values())
    best = log.best
    reached = None
    if bar is not None:
        good = log.best_curve[log.sign * log.best_curve["metric"] >= log.sign * bar]
        reached = float(good["saved_s"][0]) if len(good) else None
    return Compared(
        run=name,
        policy=str(log.settings["policy"]["policy"]),
        state=log.state,
        best=None if best is None else float(best["metric"]),
        best_trial=None if best is None else int(best["trial_id"]),
        saved_s=None if best is None else float(best["saved_s"]),
        reached_s=reached,
        num_trials=len(log.trials),
        num_resized=log.counts.get("resized_up", 0) + log.counts.get("resized_down", 0),
        gpu_hours=total * log.gpus_per_atom / 3600,
        training_share=log.atom_seconds.get("training", 0.0) / total if total else None,
        length_s=log.end_s,
        deadline_s=log.deadline_s,
    )


def names_of(runs: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart."""
    for depth in range(1, 1 + max(len(run.absolute().parts) for run in runs)):
        names = ["/".join(run.absolute().parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [str(run) for run in runs]


def rows_of(columns: Sequence[Compared], metric: str) -> list[tuple[str, list[str]]]:
    """Label and one text a run."""

    def each(of: object) -> list[str]:
        assert callable(of), "a text of one column"
        return [str(of(column)) for column in columns]

    return [
        ("run", each(lambda one: clean_line(one.run, 60))),
        ("policy", each(lambda one: one.policy)),
        ("state", each(lambda one: one.state)),
        (
            f"best {clean_line(metric, 30)}",
            each(lambda one: "none" if one.best is None else f"{one.best:.6g}"),
        ),
        ("by trial", each(lambda one: "" if one.best_trial is None else one.best_trial)),
        ("saved at", each(lambda one: "" if one.saved_s is None else duration(one.saved_s))),
        (
            "as good as the worst at",
            each(lambda one: "" if one.reached_s is None else duration(one.reached_s)),
        ),
        ("trials", each(lambda one: one.num_trials)),
        ("resizes", each(lambda one: one.num_resized)),
        ("GPU-hours", each(lambda one: f"{one.gpu_hours:.3g}")),
        (
            "of it training",
            each(lambda one: "" if one.training_share is None else f"{100 * one.training_share:.0f} %"),
        ),
        ("length", each(lambda one: duration(one.length_s))),
        ("deadline", each(lambda one: "none" if one.deadline_s is None else duration(one.deadline_s))),
    ]


def text_of(columns: Sequence[Compared], metric: str) -> str:
    rows = rows_of(columns, metric)
    label = max(len(name) for name, _ in rows)
    widths = [max(len(texts[at]) for _, texts in rows) for at in range(len(columns))]
    return "\n".join(
        "  ".join(
            [name.ljust(label), *(text.rjust(width) for text, width in zip(texts, widths, strict=True))]
        ).rstrip()
        for name, texts in rows
    )
