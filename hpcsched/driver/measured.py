"""What a run has measured of throughput and restarts, beside what was assumed: for the log, the last words, the next run."""

from __future__ import annotations

from typing import Any

from hpcsched.config.profile import profile_of_run
from hpcsched.core.scaling import scaling_of
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import ScalingSettings
from hpcsched.eventlog.records import Note


def assumed_in_words(settings: ScalingSettings) -> str:
    """Such as "linear", "a profile"."""
    if settings.spans:
        return "a profile"
    if settings.assume is None:
        return "measured"
    return "a table" if isinstance(settings.assume, dict) else settings.assume


def scaling_note(scheduler: Scheduler, now: float) -> Note:
    """The note "scaling": `data` holds `assumed` (a word), `measured` (one object a size and span, with what was expected
    before the run), `restart_s` (by atoms, p90)."""
    settings = scheduler.settings.scaling
    expected = scaling_of(settings) if settings.spans or settings.assume is not None else None
    points: list[dict[str, Any]] = [
        {
            "atoms": point.size,
            "span": str(point.span),
            "speedup": round(point.speedup, 4),
            "reports": point.num,
            "expected": None if expected is None else round(expected(point.size, point.span), 4),
        }
        for point in scheduler.measured.points()
    ]
    restart_s = {str(size): round(cost, 4) for size, cost in scheduler.restart_costs_s().items()}
    word = assumed_in_words(settings)
    return Note(
        time=now,
        topic="scaling",
        text="\n".join(_lines(word, points, restart_s, warm=scheduler.starts_are_warm)),
        data={"assumed": word, "measured": points, "restart_s": restart_s},
    )


def _lines(word: str, points: list[dict[str, Any]], restart_s: dict[str, float], *, warm: bool) -> list[str]:
    lines = [f"scaling       assumed: {word}"]
    if not points:
        lines[0] += "; no trial has trained on more than one atom, so nothing was measured"
    for point in points:
        beside = "" if point["expected"] is None else f", expected {point['expected']:.2f}"
        lines.append(
            f"              {point['atoms']} atoms, span {point['span']}: {point['speedup']:.2f} times one atom{beside} "
            f"({point['reports']} reports)"
        )
    if restart_s:
        costs = ", ".join(f"{cost:.2f} s on {size}" for size, cost in restart_s.items())
        which = "; those from a spare, cold ones are not counted" if warm else ""
        lines.append(f"a start took  {costs} (p90, by atoms{which})")
    return lines


def profile_document(scheduler: Scheduler) -> dict[str, Any] | None:
    """What `[scaling] profile = "RUN/profile.json"` reads; None when nothing was measured."""
    return profile_of_run(scheduler.measured.points(), scheduler.restart_costs_s())
