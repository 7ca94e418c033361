"""What a run shows while it runs: a live view in a terminal, else one line per decision."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import TrialState
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver.story import FailedSaves, lines_of
from hpcsched.screen.parts import atom_lines, deadline_line, fitted
from hpcsched.topology.machine import Machine

MOST_NODE_LINES = 16


def clean(text: str) -> str:
    """Without control characters: nothing that a trial prints may steer the user's terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


class Lines:
    """One line per decision, flushed; for pipes, batch jobs and NO terminal."""

    def __init__(self, machine: Machine, stream: TextIO) -> None:
        self._machine = machine
        self._stream = stream
        self._failed_saves = FailedSaves()

    def step(self, event: ev.Event, actions: list[act.Action]) -> None:
        for line in lines_of(event, actions, self._machine, clean, self._failed_saves):
            self._write(event.time, line)

    def note(self, time_s: float, text: str) -> None:
        self._write(time_s, clean(text))

    def refresh(self, now: float) -> None:
        pass

    def close(self) -> None:
        pass

    def _write(self, time_s: float, text: str) -> None:
        # Whoever read us may be gone (a closed pipe or terminal): the run goes on.
        with contextlib.suppress(OSError, ValueError):
            for number, line in enumerate(text.splitlines() or [""]):
                prefix = f"[{time_s:8.1f} s] " if number == 0 else " " * 13
                self._stream.write(prefix + line + "\n")
            self._stream.flush()


class LiveView:
    """Deadline left, best score, trials by state, who holds which atoms, the latest decisions."""

    def __init__(self, machine: Machine, scheduler: Scheduler, console: Console, metric: str) -> None:
        self._machine = machine
        self._scheduler = scheduler
        self._metric = metric
        self._failed_saves = FailedSaves()
        self._recent: deque[str] = deque(maxlen=8)
        self._deadline_s: float | None = None
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._shown_at = -1.0

    def step(self, event: ev.Event, actions: list[act.Action]) -> None:
        if isinstance(event, ev.ExperimentBegan | ev.ExperimentResumed | ev.DeadlineChanged):
            self._deadline_s = event.deadline_s
        for line in lines_of(event, actions, self._machine, clean, self._failed_saves):
            self._recent.append(f"[{event.time:7.1f} s] {line.splitlines()[0]}")

    def note(self, time_s: float, text: str) -> None:
        self._recent.append(f"[{time_s:7.1f} s] {clean(text).splitlines()[0] if text else ''}")

    def refresh(self, now: float) -> None:
        if now - self._shown_at < 0.25:
            return
        self._shown_at = now
        with contextlib.suppress(OSError, ValueError):
            self._live.update(self._picture(now), refresh=True)

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._live.stop()

    def _picture(self, now: float) -> Group:
        scheduler = self._scheduler
        width = self._live.console.width
        best = scheduler.best
        line = Text(f"best {self._metric}  ")
        line.append(
            "none yet"
            if best is None
            else f"{best.metric:.6g} (trial {best.trial_id}, iteration {best.training_iteration})"
        )
        by_state: dict[TrialState, int] = {}
        for trial in scheduler.trials:
            by_state[trial.state] = by_state.get(trial.state, 0) + 1
        states = "  ".join(f"{num} {state.value}" for state, num in sorted(by_state.items()))
        return Group(
            deadline_line(now, self._deadline_s, width),
            fitted(line, width),
            fitted(Text(f"trials  {states}"), width),
            *atom_lines(self._machine, scheduler, width, MOST_NODE_LINES),
            Text("\n".join(self._recent), overflow="ellipsis", no_wrap=True),
        )


def make_screen(
    machine: Machine, scheduler: Scheduler, metric: str, stream: TextIO = sys.stdout
) -> Lines | LiveView:
    """A live view when `stream` is a terminal, else lines."""
    console = Console(file=stream)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(machine, scheduler, console, metric)
    return Lines(machine, stream)
