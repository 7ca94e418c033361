"""A run in a few plain sentences, for a reader who has never heard of a rung."""

from __future__ import annotations

import numpy as np

from hpcsched.report.costs import held_hours, left_hours, total_hours
from hpcsched.report.importance import Importance
from hpcsched.report.load import RunLog
from hpcsched.report.rungs import COMPARE, Rung
from hpcsched.report.text import clean_line, duration
from hpcsched.report.whatif import WhatIf, is_plausible


def sentences_of(
    log: RunLog, rungs: list[Rung], importance: Importance | None, found: WhatIf | None
) -> list[str]:
    """In the order of what one would ask."""
    out = [_tried(log, rungs), _hours(log)]
    gain = _gain(log)
    if gain:
        out.append(gain)
    if importance is not None and sum(importance.shares.values()) > 0:
        first, share = next(iter(importance.shares.items()))
        out.append(
            f"Of the hyperparameters, {clean_line(first, 60)} mattered most ({100 * share:.0f} % of the importance)."
        )
    if found is not None:
        other = max(
            (row for row in found.rows if not row.is_own),
            key=lambda row: (row.num_better - row.num_worse, -found.rows.index(row)),
            default=None,
        )
        own = next((row for row in found.rows if row.is_own), None)
        if other is not None and own is not None:
            better = other.num_better > 0.8 * other.num_draws
            sure = log.best is not None and is_plausible(own, float(log.best["metric"]))
            out.append(
                (
                    f"In a simulation from this run's own curves the policy {other.policy} would have ended better in "
                    f"{other.num_better} of {other.num_draws} draws"
                    if better
                    else "In a simulation from this run's own curves no other policy would have ended reliably better"
                )
                + (
                    "; see below for how sure that is."
                    if sure
                    else "; but the simulation does not come to what really came out, so this is a hint only."
                )
            )
    return [sentence for sentence in out if sentence]


def _tried(log: RunLog, rungs: list[Rung]) -> str:
    num = len(log.trials)
    if not num:
        return "No trial was made."
    states, numbers = np.unique(log.trials["state"].astype(str), return_counts=True)
    by_state = ", ".join(f"{count} {state}" for state, count in zip(states, numbers, strict=True))
    text = f"{num} configuration{'s were' if num != 1 else ' was'} tried ({by_state})."
    if rungs and log.settings["policy"]["policy"] in COMPARE:
        first, last = rungs[0], rungs[-1]
        if len(rungs) > 1:
            text += (
                f" {len(first.trials)} were compared after {_iterations(first.milestone)}, {len(last.trials)} of them came "
                f"to iteration {last.milestone}."
            )
    return text


def _iterations(num: int) -> str:
    return "1 iteration" if num == 1 else f"{num} iterations"


def _hours(log: RunLog) -> str:
    total, left = total_hours(log), left_hours(log)
    training = log.atom_seconds.get("training", 0.0) * log.gpus_per_atom / 3600
    share = f"{100 * training / total:.0f} %" if total > 0 else "none"
    text = f"Of {hours_text(total)} GPU-hours in {duration(log.end_s)}, {share} went into training"
    if log.best is not None:
        best = held_hours(log).get(int(log.best["trial_id"]), 0.0)
        text += f"; the best model held GPUs for {hours_text(best)} of them"
    if left is not None:
        text += f". {hours_text(left)} GPU-hours were left before the deadline"
    return text + "."


def _gain(log: RunLog) -> str:
    """How the best stands to the field."""
    if log.best is None:
        return ""
    others = log.trials["best_metric"][np.arange(len(log.trials)) != int(log.best["trial_id"])]
    others = others[np.isfinite(others)]
    if not len(others):
        return ""
    best, middle = float(log.best["metric"]), float(np.median(others))
    second = float(log.sign * (log.sign * others).max())
    what = clean_line(log.metric, 60)
    return f"Its {what} of {best:.6g} compares with {second:.6g} of the second best and {middle:.6g} of the middle of the others."


def hours_text(hours: float) -> str:
    return f"{hours:.3g}" if hours < 100 else f"{hours:.0f}"
