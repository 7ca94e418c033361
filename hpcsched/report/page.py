"""One self-contained page about a run: a summary that anybody can read, figures, tables. No network; a few lines of script
(named by their hash in the page's policy) light up one trial in all figures while the pointer is on it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcsched.core.actions import CheckpointRef
from hpcsched.errors import LogError, RunFolderError
from hpcsched.eventlog.status import best_checkpoint
from hpcsched.report import figures
from hpcsched.report.load import RunLog, load
from hpcsched.report.text import clean, clean_line, duration
from hpcsched.runfolder import RunFolder

try:
    import jinja2
except ImportError as error:
    raise LogError("the report needs jinja2: `pip install 'hpcsched[analysis]'`") from error

MOST_TRIALS = 200
MOST_WARNINGS = 50
_TEMPLATE = Path(__file__).with_name("page.html.j2")
_SCRIPT = Path(__file__).with_name("page.js")
_USES = {
    "training": "trials that train",
    "restart": "starting, restoring, saving and leaving; atoms reserved for a resize",
    "idle": "nobody held them",
    "quarantined": "set aside because it was not proven that a killed trial's ranks were gone",
    "down": "their node was lost or they were set aside",
}
_STATES = {
    "running": "still running when this was written",
    "suspended": "suspended, can be resumed",
    "finished": "finished",
    "failed": "failed",
}


class Drawn(NamedTuple):
    heading: str
    caption: str
    svg: str


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run (folder or log.h5) and return its path. Raises as `load`, and RunFolderError when the page
    cannot be written."""
    log = load(run)
    folder = RunFolder(run) if run.is_dir() else None
    target = out or (folder.report if folder is not None else run.with_suffix(".html"))
    text = page_of(log, folder)
    temporary = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RunFolderError(
            f"{target}: cannot be written: {error.strerror or error}. Give another file with --out."
        ) from error
    return target


def page_of(log: RunLog, folder: RunFolder | None = None) -> str:
    """The page's text. `folder`: where the run lies, for the path of the checkpoint."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    script = _SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        **_facts(log, folder), script=script, script_hash=f"sha256-{digest}"
    )


def _facts(log: RunLog, folder: RunFolder | None) -> dict[str, Any]:
    states, numbers = np.unique(log.trials["state"].astype(str), return_counts=True)
    by_state = ", ".join(f"{num} {state}" for state, num in zip(states, numbers, strict=True))
    num_trials = len(log.trials)
    hours = _hours(log)
    total = sum(log.atom_seconds.values()) * log.gpus_per_atom / 3600
    training = log.atom_seconds.get("training", 0.0) * log.gpus_per_atom / 3600
    policy = log.settings["policy"]["policy"]
    return {
        "name": clean_line(log.name, 200),
        "state_words": _STATES.get(log.state, log.state),
        "policy": policy,
        "num_gpus": log.num_atoms * log.gpus_per_atom,
        "began": datetime.fromtimestamp(log.began_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "metric": clean_line(log.metric, 100),
        "best": _best(log, folder),
        "trials_words": f"{num_trials} configurations were tried ({by_state})."
        if num_trials
        else "No trial was made.",
        "hours_words": (
            f"Of {_hours_text(total)} GPU-hours in {duration(log.end_s)}, {_share(training, total)} went into training."
        ),
        "figures": _figures(log),
        "hours": hours,
        "decisions": [(name.replace("_", " "), num) for name, num in log.counts.items()],
        **_trials(log),
        "warnings": [
            (duration(float(note["time_s"])), clean_line(note["text"]))
            for note in log.notes[log.notes["topic"] == "warning"][:MOST_WARNINGS]
        ],
        "provenance": [
            ("deadline", "none" if log.deadline_s is None else duration(log.deadline_s)),
            ("driver lives", str(log.num_lives)),
            *(
                (clean_line(str(key)), clean_line(_plain(value), 1000))
                for key, value in log.provenance.items()
            ),
        ],
        "experiment": clean(log.experiment),
    }


def _best(log: RunLog, folder: RunFolder | None) -> dict[str, Any] | None:
    best = log.best
    if best is None:
        return None
    ref = CheckpointRef(best["trial_id"], best["incarnation"], best["training_iteration"])
    where = RunFolder(Path("RUN")) if folder is None else folder
    checkpoint = (
        where.checkpoint(ref.trial_id, ref.incarnation, ref.training_iteration)
        if folder is None
        else best_checkpoint(folder, ref)
    )
    margin = ""
    if log.deadline_s is not None:
        before = log.deadline_s - best["saved_s"]
        margin = f", {duration(abs(before))} {'before' if before >= 0 else 'after'} the deadline"
    return {
        "trial_id": best["trial_id"],
        "metric": f"{best['metric']:.6g}",
        "iteration": best["training_iteration"],
        "max_iterations": log.settings["max_iterations"],
        "saved": duration(best["saved_s"]),
        "margin": margin,
        "checkpoint": clean_line(str(checkpoint), 4096),
        "config": [
            (clean_line(str(key)), clean_line(_plain(value), 1000))
            for key, value in log.config(best["trial_id"]).items()
        ],
    }


def _hours(log: RunLog) -> list[dict[str, str]]:
    total = sum(log.atom_seconds.values())
    return [
        {
            "use": use,
            "hours": _hours_text(seconds * log.gpus_per_atom / 3600),
            "share": _share(seconds, total),
            "meaning": _USES.get(use, ""),
        }
        for use, seconds in log.atom_seconds.items()
        if seconds > 0 or use in ("training", "restart", "idle", "quarantined")
    ]


def _trials(log: RunLog) -> dict[str, Any]:
    rank = np.where(np.isfinite(log.trials["best_metric"]), -log.sign * log.trials["best_metric"], np.inf)
    order = np.argsort(rank, kind="stable")[:MOST_TRIALS]
    rows = [log.trials[k] for k in order]
    return {
        "trials": [
            {
                "trial_id": int(row["trial_id"]),
                "state": row["state"],
                "metric": "" if math.isnan(row["best_metric"]) else f"{row['best_metric']:.6g}",
                "iteration": int(row["training_iteration"]),
                "config": clean_line(
                    ", ".join(f"{key} = {_plain(value)}" for key, value in json.loads(row["config"]).items()),
                    300,
                ),
            }
            for row in rows
        ],
        "trials_left_out": len(log.trials) - len(rows),
    }


def _figures(log: RunLog) -> list[Drawn]:
    what = clean_line(log.metric, 60)
    line = "" if log.deadline_s is None else " The dashed red line is the deadline."
    best = log.best
    reached = "No trial has a complete checkpoint." if best is None else f"It ends at {best['metric']:.6g}."
    total = log.num_atoms * log.gpus_per_atom
    drawn = (
        (
            "holders",
            "Who held which GPU when",
            f"One row a GPU, one colour and number a trial, over {duration(log.end_s)}.{line}",
            figures.holders(log),
        ),
        (
            "best",
            "Best score against time",
            f"The best {what} reported so far, and the best score that has a complete checkpoint. {reached}{line}",
            figures.best_score(log),
        ),
        (
            "curves",
            "Learning curves",
            f"{what} against iteration, one line a trial; the best trials have colours and names.",
            figures.learning_curves(log),
        ),
        (
            "use",
            "GPUs in use",
            f"How many of the {total} GPUs were held by trials over time.{line}",
            figures.utilisation(log),
        ),
    )
    return [
        Drawn(heading, caption, figures.svg_of(figure, name, f"{heading}. {caption}"))
        for name, heading, caption, figure in drawn
    ]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:.0f} %" if total > 0 else "none"


def _hours_text(hours: float) -> str:
    return f"{hours:.3g}" if hours < 100 else f"{hours:.0f}"
