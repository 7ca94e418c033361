"""One self-contained page about a run: a summary that anybody can read, figures, tables. No network; a few lines of script
(named by their hash in the page's policy) light up one trial in all figures while the pointer is on it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcsched.core.actions import CheckpointRef
from hpcsched.errors import LogError, RunFolderError
from hpcsched.eventlog.status import best_checkpoint
from hpcsched.report import figures, search_figures
from hpcsched.report.costs import (
    first_result,
    held_hours,
    iterations_of,
    left_hours,
    restart_parts,
    total_hours,
    uses_of,
)
from hpcsched.report.drawing import Figure, svg_of
from hpcsched.report.importance import Importance, Sample, importance_of, sample_of
from hpcsched.report.load import RunLog, load
from hpcsched.report.rungs import COMPARE, Rung, rungs_of
from hpcsched.report.summary import hours_text, sentences_of
from hpcsched.report.text import clean, clean_line, duration
from hpcsched.report.whatif import MOST_SIMULATED, WhatIf, in_words, num_draws_of, what_if
from hpcsched.runfolder import RunFolder

try:
    import jinja2
except ImportError as error:
    raise LogError("the report needs jinja2: `pip install 'hpcsched[analysis]'`") from error

MOST_TRIALS = 200
MOST_WARNINGS = 50
_TEMPLATE = Path(__file__).with_name("page.html.j2")
_SCRIPT = Path(__file__).with_name("page.js")
_STATES = {
    "running": "still running when this was written",
    "suspended": "suspended, can be resumed",
    "finished": "finished",
    "failed": "failed",
}


class Table(NamedTuple):
    """`numbers`: the columns, from 0, that stand to the right."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[int, ...] = ()


class Section(NamedTuple):
    heading: str
    name: str = ""
    """Of its figure; "" for none."""
    svg: str = ""
    caption: str = ""
    words: tuple[str, ...] = ()
    table: Table | None = None


def write_report(run: Path, out: Path | None = None, *, num_draws: int | None = None) -> Path:
    """Write the page of a run (folder or log.h5) and return its path. `num_draws`: of the simulation of other policies; None:
    as many as take some seconds, 0: none. Raises as `load`, and RunFolderError when the page cannot be written."""
    log = load(run)
    folder = RunFolder(run) if run.is_dir() else None
    target = out or (folder.report if folder is not None else run.with_suffix(".html"))
    text = page_of(log, folder, num_draws=num_draws)
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


def page_of(log: RunLog, folder: RunFolder | None = None, *, num_draws: int | None = None) -> str:
    """The page's text. `folder`: where the run lies, for the path of the checkpoint."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    script = _SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        **_facts(log, folder, num_draws), script=script, script_hash=f"sha256-{digest}"
    )


def _facts(log: RunLog, folder: RunFolder | None, num_draws: int | None) -> dict[str, Any]:
    rungs = rungs_of(log)
    sample = sample_of(log)
    importance = None if sample is None else importance_of(log, sample)
    draws = num_draws_of(log) if num_draws is None else num_draws
    found = what_if(log, draws) if draws else None
    return {
        "name": clean_line(log.name, 200),
        "state_words": _STATES.get(log.state, log.state),
        "policy": log.settings["policy"]["policy"],
        "num_gpus": log.num_atoms * log.gpus_per_atom,
        "began": datetime.fromtimestamp(log.began_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "metric": clean_line(log.metric, 100),
        "best": _best(log, folder),
        "sentences": sentences_of(log, rungs, importance, found),
        "sections": [
            *_time_sections(log),
            *_search_sections(log, rungs, sample, importance),
            *_cost_sections(log),
            _what_if_section(log, found, draws),
        ],
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


def _trials(log: RunLog) -> dict[str, Any]:
    rank = np.where(np.isfinite(log.trials["best_metric"]), -log.sign * log.trials["best_metric"], np.inf)
    order = np.argsort(rank, kind="stable")[:MOST_TRIALS]
    rows = [log.trials[k] for k in order]
    hours = held_hours(log)
    return {
        "trials": [
            {
                "trial_id": int(row["trial_id"]),
                "state": row["state"],
                "metric": "" if math.isnan(row["best_metric"]) else f"{row['best_metric']:.6g}",
                "iteration": int(row["training_iteration"]),
                "hours": hours_text(hours.get(int(row["trial_id"]), 0.0)),
                "config": clean_line(
                    ", ".join(f"{key} = {_plain(value)}" for key, value in json.loads(row["config"]).items()),
                    300,
                ),
            }
            for row in rows
        ],
        "trials_left_out": len(log.trials) - len(rows),
    }


def _drawn(heading: str, name: str, caption: str, figure: Figure, **more: Any) -> Section:
    return Section(heading, name, svg_of(figure, name, f"{heading}. {caption}"), caption, **more)


def _time_sections(log: RunLog) -> list[Section]:
    what = clean_line(log.metric, 60)
    line = "" if log.deadline_s is None else " The dashed red line is the deadline."
    best = log.best
    reached = "No trial has a complete checkpoint." if best is None else f"It ends at {best['metric']:.6g}."
    total = log.num_atoms * log.gpus_per_atom
    return [
        _drawn(
            "Who held which GPU when",
            "holders",
            f"One row a GPU, one colour and number a trial, over {duration(log.end_s)}.{line}",
            figures.holders(log),
        ),
        _drawn(
            "Best score against time",
            "best",
            f"The best {what} reported so far, and the best score that has a complete checkpoint: the mean of the last "
            f"{log.settings['metric_window']} reports. {reached}{line}"
            if log.settings["metric_window"] > 1
            else f"The best {what} reported so far, and the best that has a complete checkpoint. {reached}{line}",
            figures.best_score(log),
        ),
        _drawn(
            "GPUs in use",
            "use",
            f"How many of the {total} GPUs trained over time, and how many were held by trials that started or left; what is blank was "
            f"idle.{line}",
            figures.utilisation(log),
        ),
    ]


def _search_sections(
    log: RunLog, rungs: list[Rung], sample: Sample | None, importance: Importance | None
) -> list[Section]:
    what = clean_line(log.metric, 60)
    sections = [
        _drawn(
            "Learning curves",
            "curves",
            f"{what} against iteration, one line a trial; the best trials have colours and names.",
            figures.learning_curves(log),
        ),
        _drawn(
            "Learning curves by atoms",
            "sizes",
            f"{what} against time; the colour and the width of a line say how many atoms the trial had.",
            search_figures.curves_by_atoms(log),
        ),
    ]
    if rungs:
        policy = log.settings["policy"]["policy"]
        how = (
            "At each rung trials were compared and some were cut."
            if policy in COMPARE
            else f"The policy {policy} does not compare trials at rungs; the same iterations are shown to look along."
        )
        sections.append(
            _drawn(
                "Rungs, and what was cut",
                "rungs",
                f"{how} One point a trial: its {what} when it came to the rung.",
                search_figures.rungs(log, rungs),
                table=Table(
                    (
                        "Rung (iteration)",
                        "Reached it",
                        "Went on",
                        "Came to the next",
                        "Never reported again",
                        f"Best {what}",
                        "Median",
                        "Worst that went on",
                    ),
                    [
                        (
                            str(rung.milestone),
                            str(len(rung.trials)),
                            str(int(rung.went_on.sum())),
                            str(rung.num_next),
                            str(rung.num_cut),
                            f"{rung.best:.6g}",
                            f"{rung.median:.6g}",
                            "" if rung.worst_that_went_on is None else f"{rung.worst_that_went_on:.6g}",
                        )
                        for rung in rungs
                    ],
                    tuple(range(8)),
                ),
            )
        )
    if sample is not None and importance is not None:
        sections += [
            _drawn(
                "Which hyperparameters mattered",
                "importance",
                f"By {importance.measure}, over {len(sample.trials)} trials and their {what} at iteration {sample.milestone}, which "
                f"{sample.num_reached} trials reached. It describes these trials; it does not say what other values would have done.",
                search_figures.importance(log, importance),
            ),
            _drawn(
                "Configurations and their scores",
                "parallel",
                f"One line a trial through its hyperparameters to its {what} at iteration {sample.milestone}; the best tenth is red.",
                search_figures.parallel(log, sample, importance),
            ),
        ]
    return sections


def _cost_sections(log: RunLog) -> list[Section]:
    sections: list[Section] = []
    parts = restart_parts(log)
    if parts:
        sections.append(
            _drawn(
                "What a restart costs, by part",
                "restart",
                "Each launch of a trial passes through these parts; blue before it trains, orange from its first iteration to its end.",
                search_figures.restart_cost(log, parts),
                table=Table(
                    ("Part", "Median", "90th percentile", "Sum", "Launches", "What it is"),
                    [
                        (
                            part.name.replace("_", " "),
                            _seconds(part.median_s),
                            _seconds(part.p90_s),
                            _seconds(part.total_s),
                            str(part.num),
                            part.meaning,
                        )
                        for part in parts
                    ],
                    (1, 2, 3, 4),
                ),
            )
        )
    way = first_result(log)
    if way:
        at = sum(stretch.took_s for stretch in way)
        sections.append(
            Section(
                "Time to the first result",
                words=(
                    f"The first result came {duration(at)} after {'the submission' if way[0].name == 'queue' else 'the driver began'}:",
                ),
                table=Table(
                    ("Part", "Took", "What it is"),
                    [(stretch.name, _seconds(stretch.took_s), stretch.meaning) for stretch in way],
                    (1,),
                ),
            )
        )
    total = total_hours(log)
    rows = [(use.use, hours_text(use.hours), _share(use.hours, total), use.meaning) for use in uses_of(log)]
    rows.append(("used in all", hours_text(total), _share(total, total), f"by all {log.num_atoms * log.gpus_per_atom} GPUs until {duration(log.end_s)}"))  # fmt: skip
    left = left_hours(log)
    if left is not None:
        rows.append(("left", hours_text(left), "", "between the end and the deadline"))
    table = Table(("Use", "GPU-hours", "Share", "What it is"), rows, (1, 2))
    sections.append(Section("Where the GPU-hours went", table=table))
    trained = iterations_of(log)
    if trained:
        whole = sum(use.hours for use in trained)
        sections.append(
            Section(
                "Whose iterations they were",
                words=("The GPU-hours of all reported iterations:",),
                table=Table(
                    ("Whose", "GPU-hours", "Share", "What it is"),
                    [
                        (use.use, hours_text(use.hours), _share(use.hours, whole), use.meaning)
                        for use in trained
                    ],
                    (1, 2),
                ),
            )
        )
    return sections


def _what_if_section(log: RunLog, found: WhatIf | None, draws: int) -> Section:
    heading = "What other policies would have done"
    if found is None:
        why = (
            f"Not simulated: this run is large (more than {MOST_SIMULATED} results would be simulated). "
            "`hpcsched report RUN --draws 3` does it all the same, and takes its time."
            if not draws and len(log.results)
            else "Not simulated: too few trials have reported a result."
        )
        return Section(heading, words=(why,))
    again = (
        "The search space was exhausted, so nobody tries more."
        if found.exhausted
        else "Who asks for more configurations than were tried is given tried ones again."
    )
    what = clean_line(log.metric, 40)
    return Section(
        heading,
        words=(
            "The same trials, GPUs and deadline, simulated under other policies with their default options, by the core that drove this "
            f"run. {100 * found.recorded_share:.0f} % of the curves were trained to the end; the others are continued as similar trials "
            "that were trained further went on, and beyond all records by a trend that fades by a random factor. Each of "
            f"{found.num_draws} draws continues them differently; the range is from the 10th to the 90th percentile of the draws. {again} "
            "Crashes and lost nodes do not happen in it. What it cannot know: a curve that would have turned out unlike all others.",
            *in_words(log, found),
            *(f"Could not be simulated: {clean_line(text, 300)}" for text in found.failed),
        ),
        table=Table(
            ("Policy", f"{what}, median", "10th to 90th", "Nothing continued", "Better / worse than own", "Beyond records", "Trials"),
            [
                (
                    f"{row.policy} (as run)" if row.is_own else row.policy,
                    _metric(row.metric),
                    "" if row.low is None or row.high is None else f"{row.low:.6g} to {row.high:.6g}",
                    _metric(row.held),
                    "" if row.is_own else f"{row.num_better} / {row.num_worse} of {row.num_draws}",
                    f"{row.num_beyond} of {row.num_draws}",
                    f"{row.num_trials:g}",
                )
                for row in found.rows
            ],
            (1, 2, 3, 4, 5, 6),
        ),
    )  # fmt: skip


def _metric(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _seconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{seconds:.3f} s"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:.0f} %" if total > 0 else "none"
