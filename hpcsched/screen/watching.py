"""`hpcsched watch`: look, draw, listen, again and again. Reads files only; orders go out through `Orders`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from hpcsched.core.enums import ExperimentState
from hpcsched.errors import HpcschedError
from hpcsched.eventlog.lease import Holder, holder_of, this_host
from hpcsched.eventlog.picture import Pictures, leave_picture
from hpcsched.eventlog.shown import ShownRun
from hpcsched.eventlog.state import RunFollower
from hpcsched.eventlog.status import status_of
from hpcsched.runfolder import RunFolder
from hpcsched.screen.frame import Seen, Ui, frame, ordered
from hpcsched.screen.keys import Keys

SLICE = 2000
"""Records between two looks at the clock while a long journal is read."""
READ_S = 0.15
"""Longest reading between two frames."""
REFRESH_S = 0.5
LEASE_S = 2.0
"""The lease lies on the same file system as the journal: not asked for at every frame."""


class Watcher:
    """Keeps up with one run folder."""

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._pictures = Pictures(folder)
        self._follower: RunFollower | None = None
        """From the moment on at which the picture alone does not do."""
        self._clock = clock
        self._host = this_host()
        self._num_records = -1
        self._changed_at = clock()
        self._lease_at: float | None = None
        self._holder: Holder | None = None
        self.at_end = False
        """Everything that was written is in what `look` gave."""

    def look(self, limit_s: float | None = READ_S) -> Seen:
        """Take in what is new for at most `limit_s` seconds (None: all of it). Raises as RunFollower.look."""
        run = self._look_at_picture() if self._follower is None else None
        if run is None:
            run = self._read(limit_s)
        now = self._clock()
        if run.num_records != self._num_records:
            self._num_records = run.num_records
            self._changed_at = now
        if not self.at_end or not run.num_records:
            return Seen(run=run, state=ExperimentState.RUNNING, now_s=run.now, is_reading=True)
        holder = self._look_at_lease(now)
        state = status_of(self._folder, run, holder).state
        is_live = state is ExperimentState.RUNNING
        now_s = run.now + (now - self._changed_at if is_live else 0.0)
        if run.over_at is not None and not is_live:
            now_s = run.over_at
        return Seen(run=run, state=state, now_s=now_s, driver=_driver_in_words(holder) if is_live else "")

    def _look_at_picture(self) -> ShownRun | None:
        if self._pictures.newest() is None:
            return None
        run = self._pictures.usable(self._look_at_lease(self._clock()))
        self.at_end = run is not None
        return run

    def _read(self, limit_s: float | None) -> ShownRun:
        """From the journal; while that lasts an old picture is better than none."""
        began = self._clock()
        if self._follower is None:
            self._follower = RunFollower(self._folder)
        was_at_end = self.at_end
        while True:
            count = self._follower.state.num_records
            run = self._follower.look(SLICE)
            self.at_end = run.num_records - count < SLICE
            if self.at_end or (limit_s is not None and self._clock() - began > limit_s):
                break
        if self.at_end:
            if not was_at_end:
                leave_picture(self._folder, run, self._look_at_lease(self._clock()))
            return run
        return self._pictures.newest() or run

    def _look_at_lease(self, now: float) -> Holder | None:
        if self._lease_at is None or now - self._lease_at > LEASE_S:
            self._lease_at = now
            self._holder = holder_of(self._folder, host=self._host)
        return self._holder


def _driver_in_words(holder: Holder | None) -> str:
    if holder is None:
        return ""
    record = holder.record
    job = f", job {record.job_id}" if record.job_id else ""
    return f"driver on {record.host}{job}" + (f": {record.remark}" if record.remark else "")


class Orders:
    """What the keys can do besides looking. Each answers in words and may raise HpcschedError; `hpcsched watch` hands
    over those of the other commands."""

    def __init__(
        self,
        *,
        explain: Callable[[int], str],
        logs: Callable[[int], str],
        stop: Callable[[int | None], str],
        extend: Callable[[str], str],
    ) -> None:
        self.explain = explain
        self.logs = logs
        self.stop = stop
        self.extend = extend


class _Work:
    """One order at a time in a thread, so that the view goes on."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._thread: threading.Thread | None = None

    def do(self, what: str, call: Callable[[], str], *, pane: bool) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._ui.message = "the order before is still under way"
            return
        self._ui.message = f"{what} ..."

        def run() -> None:
            try:
                answer = call()
            except HpcschedError as error:
                self._ui.message = str(error)
                return
            if pane:
                self._ui.pane, self._ui.pane_top, self._ui.message = answer, 0, ""
            else:
                self._ui.message = answer

        self._thread = threading.Thread(target=run, daemon=True, name="hpcsched-watch-order")
        self._thread.start()

    def wait(self, limit_s: float) -> None:
        if self._thread is not None:
            self._thread.join(limit_s)


class Control:
    """Keys to changes of the Ui, and to orders."""

    def __init__(self, ui: Ui, orders: Orders) -> None:
        self.ui = ui
        self._orders = orders
        self.work = _Work(ui)
        self._then: Callable[[str], None] | None = None

    def press(self, key: str, seen: Seen) -> bool:
        """False: the person wants to go."""
        ui = self.ui
        if ui.prompt is not None:
            self._answer(key)
            return True
        if ui.message:
            ui.message = ""
        step = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}.get(key)
        if step is not None:
            if ui.pane is None:
                ui.chosen = max(0, ui.chosen + step)
            else:
                ui.pane_top += step
            return True
        if key == "q" and ui.pane is None:
            return False
        if key in ("escape", "q", "enter") and ui.pane is not None:
            ui.pane = None
            return True
        if key == "x":
            self._ask('extend the deadline by (such as "30m"):', self._extend)
        elif key == "S":
            self._ask("stop the whole run? (y/n)", self._stop_run)
        elif key in ("e", "l", "s", "enter"):
            trials = ordered(seen.run)
            if not trials:
                ui.message = "there is no trial yet"
                return True
            trial = int(trials[min(ui.chosen, len(trials) - 1)].trial_id)
            if key == "s":
                self._ask(f"stop trial {trial}? (y/n)", lambda answer: self._stop(trial, answer))
            elif key == "l":
                self.work.do(f"logs of trial {trial}", lambda: self._orders.logs(trial), pane=True)
            else:
                self.work.do(f"explaining trial {trial}", lambda: self._orders.explain(trial), pane=True)
        return True

    def _ask(self, question: str, then: Callable[[str], None]) -> None:
        self.ui.prompt, self.ui.answer, self._then = question, "", then

    def _answer(self, key: str) -> None:
        ui = self.ui
        if key == "enter" or (key in "yn" and "(y/n)" in (ui.prompt or "")):
            then, answer = self._then, ui.answer if key == "enter" else key
            ui.prompt, ui.answer, self._then = None, "", None
            if then is not None:
                then(answer.strip())
        elif key == "escape":
            ui.prompt, ui.answer, self._then = None, "", None
        elif key == "backspace":
            ui.answer = ui.answer[:-1]
        elif len(key) == 1 and key.isprintable() and len(ui.answer) < 40:
            ui.answer += key

    def _extend(self, answer: str) -> None:
        if answer:
            self.work.do(f"extending by {answer}", lambda: self._orders.extend(answer), pane=False)

    def _stop(self, trial: int, answer: str) -> None:
        if answer == "y":
            self.work.do(f"stopping trial {trial}", lambda: self._orders.stop(trial), pane=False)

    def _stop_run(self, answer: str) -> None:
        if answer == "y":
            self.work.do("stopping the run", lambda: self._orders.stop(None), pane=False)


def watch(folder: RunFolder, orders: Orders, console: Console, keys: Keys) -> None:
    """Until `q`. Raises as RunFollower.look."""
    watcher, ui = Watcher(folder), Ui(show_keys=keys.is_there)
    control = Control(ui, orders)
    ascii_only = not _has_blocks(console)
    with keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            seen = watcher.look()
            if seen.run.num_records:
                width, height = console.size
                live.update(frame(seen, ui, width, height, ascii_only=ascii_only), refresh=True)
            for key in keys.read(REFRESH_S if watcher.at_end else 0.0):
                if not control.press(key, seen):
                    control.work.wait(1.0)
                    return


def once(folder: RunFolder, console: Console) -> None:
    """One frame of everything, as long as it takes; for files and pipes."""
    seen = Watcher(folder).look(limit_s=None)
    picture = frame(seen, Ui(show_keys=False), console.width, None, ascii_only=not _has_blocks(console))
    console.print(picture, soft_wrap=True)


def _has_blocks(console: Console) -> bool:
    try:
        "▁━·…".encode(console.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
