"""One picture of a run, `width` times `height` characters, from what its journal says. Pure."""

from __future__ import annotations

import bisect
import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.text import Text

from hpcsched.core.enums import ExperimentState, Mode, TrialState
from hpcsched.core.rungs import milestones_of
from hpcsched.eventlog.shown import ShownRun, ShownTrial
from hpcsched.eventlog.status import as_dict, policy_name
from hpcsched.report.text import clean, clean_line, duration
from hpcsched.screen.parts import atom_lines, colour_of, deadline_line, fitted, sparkline

LIVE = (TrialState.RUNNING, TrialState.STARTING, TrialState.PREEMPTING)
KEYS_HELP = "up/down choose  e explain  l logs  s stop trial  S stop run  x extend  q quit"
LEAST_TABLE_LINES = 6
MOST_FOOT_LINES = 3
LEAST_HEIGHT_FOR_FOOT = 8


class Seen(msgspec.Struct, frozen=True):
    """What a frame is made of."""

    run: ShownRun
    state: ExperimentState
    now_s: float
    """Seconds since the experiment began, by the driver's clock."""
    driver: str = ""
    """Who serves it, in words; "" when nobody."""
    is_reading: bool = False
    """The journal has not been read to its end yet: the picture is of the past."""


class Ui(msgspec.Struct):
    """What the person at the keys has chosen."""

    chosen: int = 0
    """Row of the table."""
    pane: str | None = None
    """Text shown in place of the table (explain, logs)."""
    pane_top: int = 0
    prompt: str | None = None
    """A question under the table; the answer so far stands behind it."""
    answer: str = ""
    message: str = ""
    show_keys: bool = True


def frame(seen: Seen, ui: Ui, width: int, height: int | None, *, ascii_only: bool = False) -> Text:
    """height None: as many lines as it takes (a file, a pipe)."""
    width = max(20, width)
    top = _head(seen, width, ascii_only)
    trials = ordered(seen.run)
    foot = [] if height is not None and height < LEAST_HEIGHT_FOR_FOOT else _foot(seen, ui, trials, width)
    room = None if height is None else max(0, height - len(top) - len(foot))
    if seen.run.machine is not None:
        most = 10**6 if room is None else max(1, min(room // 3, room - LEAST_TABLE_LINES))
        top += atom_lines(seen.run.machine, seen.run.scheduler, width, most)
        room = None if height is None else max(0, height - len(top) - len(foot))
    if ui.pane is not None and room is not None:
        body = _pane(ui, width, room)
    else:
        body = _table(seen, ui, trials, width, room)
    lines = [*top, *body]
    if height is not None:
        lines = lines[: height - len(foot)]
        lines += [Text()] * (height - len(foot) - len(lines))
    return Text("\n").join([*lines, *foot])


def _head(seen: Seen, width: int, ascii_only: bool) -> list[Text]:
    run = seen.run
    header, scheduler = run.header, run.scheduler
    title = Text(clean_line(header.name, 60), "bold").append(f" ({policy_name(run)}) ")
    title.append(seen.state.value, "bold green" if seen.state is ExperimentState.RUNNING else "bold yellow")
    if seen.is_reading:
        title.append(f"  as of {duration(run.now)}: still reading the journal", "dim")
    elif seen.driver:
        title.append(f"  {clean_line(seen.driver)}", "dim")
    lines = [fitted(title, width), deadline_line(seen.now_s, run.deadline_s, width, ascii_only=ascii_only)]
    best = run.best
    line = Text(f"best {clean_line(header.metric, 30)} ")
    if best is None:
        line.append("none yet", "dim")
    else:
        ref = best.checkpoint
        line.append(f"{best.metric:.6g}", "bold")
        line.append(f" trial {ref.trial_id} iteration {ref.training_iteration}", colour_of(ref.trial_id))
        line.append(_reported_only(run, best.metric), "dim")
        curve = [(point.saved_s, point.metric) for point in run.best_curve]
        line.append("  ")
        line.append(
            sparkline(curve, max(seen.now_s, 1e-9), min(60, width - line.cell_len), ascii_only=ascii_only)
        )
    lines.append(fitted(line, width))
    by_state: dict[str, int] = {}
    for trial in scheduler.trials:
        by_state[trial.state.value] = by_state.get(trial.state.value, 0) + 1
    words = f"trials {len(scheduler.trials)}: " + "  ".join(f"{num} {name}" for name, num in by_state.items())
    lines.append(fitted(Text(words), width))
    seconds: dict[str, float] = as_dict(
        scheduler.atom_seconds(seen.now_s if run.over_at is None else run.over_at)
    )
    total = sum(seconds.values())
    uses = "  ".join(
        f"{100 * part / total:.0f} % {use}" for use, part in seconds.items() if part > 0 and total
    )
    lines.append(fitted(Text(f"atoms {_num_atoms(run)}: {uses or 'not used yet'}"), width))
    return lines


def _reported_only(run: ShownRun, saved: float) -> str:
    """What the table shows and no checkpoint holds (yet)."""
    if not run.best_metric:
        return ""
    sign = 1.0 if run.header.settings.mode is Mode.MAX else -1.0
    trial_id, metric = max(run.best_metric.items(), key=lambda item: sign * item[1])
    if sign * metric <= sign * saved:
        return ""
    return f" (saved; trial {trial_id} has reported {metric:.6g})"


def _num_atoms(run: ShownRun) -> int:
    return 0 if run.machine is None else len(run.machine.atoms)


def ordered(run: ShownRun) -> list[ShownTrial]:
    """Those that hold atoms first, then the others; each by best score."""
    sign = 1.0 if run.header.settings.mode is Mode.MAX else -1.0
    scores = run.best_metric

    def key(trial: ShownTrial) -> tuple[bool, float, int]:
        best = scores.get(trial.trial_id)
        return (trial.state not in LIVE, float("inf") if best is None else -sign * best, trial.trial_id)

    return sorted(run.scheduler.trials, key=key)


def rows_of(run: ShownRun, trials: Sequence[ShownTrial]) -> list[dict[str, Any]]:
    """One row a trial, as shown here and by `run.trials` of the interactive API."""
    settings = run.header.settings
    milestones = milestones_of(settings.grace_period, settings.max_iterations, settings.reduction_factor)
    rows = []
    for trial in trials:
        passed = bisect.bisect_right(milestones, trial.training_iteration)
        target = milestones[passed] if passed < len(milestones) else settings.max_iterations
        eta = None
        if trial.state is TrialState.RUNNING and trial.last_iter_s is not None:
            eta = max(0, target - trial.training_iteration) * trial.last_iter_s
        rows.append(
            {
                "trial": int(trial.trial_id),
                "state": trial.state.value,
                "rung": passed,
                "iteration": trial.training_iteration,
                "score": run.best_metric.get(trial.trial_id),
                "atoms": trial.num_atoms,
                "next_rung_s": eta,
                "why": why_of(run, trial),
                "config": trial.config,
            }
        )
    return rows


def why_of(run: ShownRun, trial: ShownTrial) -> str:
    """The latest decision about the trial."""
    return trial.dropped_because or run.because.get(trial.trial_id, "")


def _table(seen: Seen, ui: Ui, trials: Sequence[ShownTrial], width: int, room: int | None) -> list[Text]:
    if room is not None and room < 2:
        return []
    num = len(trials) if room is None else room - 1
    ui.chosen = min(max(0, ui.chosen), max(0, len(trials) - 1))
    start = 0 if room is None else min(max(0, ui.chosen - num // 2), max(0, len(trials) - num))
    lines = [
        fitted(
            Text(f"  trial {'state':<10} rung   iter {'score':>10} atoms next rung  why", "bold underline"),
            width,
        )
    ]
    for number, row in enumerate(rows_of(seen.run, trials[start : start + num]), start):
        score = "" if row["score"] is None else f"{row['score']:.6g}"
        eta = "" if row["next_rung_s"] is None else duration(row["next_rung_s"])
        atoms = str(row["atoms"]) if row["atoms"] else ""
        is_chosen = ui.show_keys and number == ui.chosen
        line = Text(">" if is_chosen else " ").append(f" {row['trial']:>5}", colour_of(row["trial"]))
        line.append(
            f" {row['state']:<10} {row['rung']:>4} {row['iteration']:>6} {score:>10} {atoms:>5} {eta:>9}  "
        )
        line.append(clean_line(row["why"], 300), "dim")
        if is_chosen:
            line.stylize("reverse")
        lines.append(fitted(line, width))
    return lines


def _pane(ui: Ui, width: int, room: int) -> list[Text]:
    assert ui.pane is not None, "the caller has looked"
    wrapped: list[str] = []
    for line in clean(ui.pane).expandtabs().split("\n"):
        wrapped += [line[at : at + width] for at in range(0, max(1, len(line)), width)]
    ui.pane_top = min(max(0, ui.pane_top), max(0, len(wrapped) - room))
    return [fitted(Text(line), width) for line in wrapped[ui.pane_top : ui.pane_top + room]]


def _foot(seen: Seen, ui: Ui, trials: Sequence[ShownTrial], width: int) -> list[Text]:
    if not ui.show_keys:
        return []
    if ui.prompt is not None:
        return [fitted(Text(f"{ui.prompt} {ui.answer}_", "bold"), width)]
    if ui.message:
        return [
            Text(line, "bold") for line in _wrapped(clean_line(ui.message, 2000), width)[:MOST_FOOT_LINES]
        ]
    if ui.pane is not None:
        return [fitted(Text("up/down scroll  Esc back to the trials  q quit", "dim"), width)]
    return [*_chosen(seen, ui, trials, width), fitted(Text(KEYS_HELP, "dim"), width)]


def _chosen(seen: Seen, ui: Ui, trials: Sequence[ShownTrial], width: int) -> list[Text]:
    """The chosen trial's configuration and the whole reason, which the table has no room for."""
    if not trials:
        return []
    trial = trials[min(max(0, ui.chosen), len(trials) - 1)]
    config = ", ".join(f"{name} = {_plain(value)}" for name, value in trial.config.items())
    why = why_of(seen.run, trial)
    lines = _wrapped(
        clean_line(f"trial {trial.trial_id}: {config}" + (f"; {why}" if why else ""), 600), width
    )
    return [Text(line) for line in lines[:MOST_FOOT_LINES]]


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=True) or [""]
