"""What a run shows while it runs: a live view in a terminal, else one line per decision.

The loop's thread makes the lines and pictures; they are written by another (see `outlet`), so that a terminal that is not read
holds up nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import TrialState
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver.outlet import Outlet, write_through
from hpcsched.driver.story import FailedSaves, lines_of
from hpcsched.screen.parts import atom_lines, deadline_line, fitted
from hpcsched.topology.machine import Machine

MOST_NODE_LINES = 16
MOST_LINES = 2000
"""That wait while nobody reads."""
CLOSE_S = 2.0
"""Longest wait for a write at the end."""


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
        self._outlet = Outlet(self._show, most=MOST_LINES, name="screen")

    def step(self, event: ev.Event, actions: list[act.Action]) -> None:
        for line in lines_of(event, actions, self._machine, clean, self._failed_saves):
            self._write(event.time, line)

    def note(self, time_s: float, text: str) -> None:
        self._write(time_s, clean(text))

    def refresh(self, now: float) -> None:
        pass

    def close(self) -> None:
        """What has been handed over is written when this returns, unless nobody reads."""
        self._outlet.close(CLOSE_S)

    def _write(self, time_s: float, text: str) -> None:
        self._outlet.put((time_s, text))

    def _show(self, lines: list[tuple[float, str]], num_dropped: int) -> None:
        if num_dropped:
            lines = [(lines[0][0], f"({num_dropped} lines before this one are lost: nobody read)"), *lines]
        written = ""
        for time_s, text in lines:
            for number, line in enumerate(text.splitlines() or [""]):
                prefix = f"[{time_s:8.1f} s] " if number == 0 else " " * 13
                written += prefix + line + "\n"
        write_through(self._stream, written)


class _Through:
    """The stream of a live view's console: `write_through` to another one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        write_through(self._stream, text)
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


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
        self._shown_at = -1.0
        self._before = (sys.stdout, sys.stderr)  # the live view takes their place while it stands
        self._is_up = False
        self._outlet: Outlet[Group | None] = Outlet(self._show, most=1, name="screen")

    def step(self, event: ev.Event, actions: list[act.Action]) -> None:
        if isinstance(event, ev.ExperimentBegan | ev.ExperimentResumed | ev.DeadlineChanged):
            self._deadline_s = event.deadline_s
        for line in lines_of(event, actions, self._machine, clean, self._failed_saves):
            self._recent.append(f"[{event.time:7.1f} s] {line.splitlines()[0]}")

    def note(self, time_s: float, text: str) -> None:
        self._recent.append(f"[{time_s:7.1f} s] {clean(text).splitlines()[0] if text else ''}")

    def refresh(self, now: float) -> None:
        if now - self._shown_at < 0.25 or self._outlet.waiting:
            return
        self._shown_at = now
        self._outlet.put(self._picture(now))

    def close(self) -> None:
        self._outlet.put(None)
        if not self._outlet.close(CLOSE_S):
            sys.stdout, sys.stderr = self._before

    def _show(self, pictures: list[Group | None], _: int) -> None:
        """None: it is over."""
        picture = pictures[-1]
        if picture is not None:
            if not self._is_up:
                self._live.start()
                self._is_up = True
            self._live.update(picture, refresh=True)
        elif self._is_up:
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
    console = Console(file=cast(TextIO, _Through(stream)))
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(machine, scheduler, console, metric)
    return Lines(machine, stream)
