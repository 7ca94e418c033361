"""What the driver does with large files: `best/` is made, checkpoints that nobody needs are deleted. In threads of their own.

Theory. Where the file system has hard links `best/` is made in milliseconds, else by a copy, and then a large model on a slow disk
takes a minute; so does deleting. The loop must not wait for either: verdicts and the deadline do not. Two rules keep the files right:

- Of the bests that wait only the newest is made. One that cannot be made (a full disk) is tried again until it can, or a newer one
  has come, or the run ends.
- A checkpoint is not deleted while `best/` is made of it.

What had not been done when a driver died is done by the next life (`Loop.redo`).
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hpcsched.driver.best import publish_best
from hpcsched.errors import HpcschedError
from hpcsched.runfolder import RunFolder

RETRY_S = 10.0
"""From one try to the next of a best that could not be made."""


class _Best(msgspec.Struct):
    source: Path
    facts: dict[str, Any]
    failed: bool = False


class _Unfinished(msgspec.Struct, frozen=True):
    """What saves have left behind in here."""

    incarnation: Path


class Filing:
    """`say` is called with what the user should know, from a thread of ours; `still_ours`: no other driver has taken over the run folder."""

    def __init__(
        self,
        folder: RunFolder,
        say: Callable[[str], None],
        *,
        still_ours: Callable[[], bool],
        publish: Callable[[RunFolder, Path, dict[str, Any], Callable[[], bool]], None] = publish_best,
        retry_s: float = RETRY_S,
    ) -> None:
        self._folder = folder
        self._say = say
        self._still_ours = still_ours
        self._publish_best = publish
        self._retry_s = retry_s
        self._condition = threading.Condition()
        self._wanted: _Best | None = None
        """The newest best that is not made yet."""
        self._source: Path | None = None
        """`best/` is being made of it."""
        self._next_try = 0.0
        self._doomed: deque[Path | _Unfinished] = deque()
        self._deleting = False
        self._has_complained = False
        self._closing = False
        self._dropped = False
        self._threads: list[threading.Thread] = []

    def publish(self, source: Path, facts: dict[str, Any]) -> None:
        """Have `best/` hold this checkpoint (`best.publish_best` says what `facts` are)."""
        with self._condition:
            if not self._dropped:
                self._wanted = _Best(source, facts)
                self._next_try = 0.0
                self._awake()

    def delete(self, path: Path) -> None:
        """A folder that nobody needs any more; one that cannot be deleted stays, one that is not there is no matter."""
        self._doom(path)

    def tidy(self, incarnation: Path) -> None:
        """Delete what saves that were killed have left in this folder: nothing reads it, and it would never be deleted else."""
        self._doom(_Unfinished(incarnation))

    def close(self, limit_s: float) -> bool:
        """Finish what is to be done, with a last try of what could not be; False: not all of it was done within the limit."""
        end = time.monotonic() + limit_s
        with self._condition:
            self._closing = True
            self._next_try = 0.0
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._condition:
            return self._wanted is None and not self._doomed and not self._deleting

    def drop(self) -> None:
        """Begin nothing more: the run folder is another driver's."""
        with self._condition:
            self._wanted = None
            self._doomed.clear()
            self._closing = self._dropped = True
            self._condition.notify_all()

    def _doom(self, what: Path | _Unfinished) -> None:
        with self._condition:
            if not self._dropped:
                self._doomed.append(what)
                self._awake()

    def _awake(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=target, name=f"filing-{name}", daemon=True)
                for name, target in (("best", self._publish_all), ("delete", self._delete_all))
            ]
            for thread in self._threads:
                thread.start()
        self._condition.notify_all()

    def _publish_all(self) -> None:
        while True:
            with self._condition:
                while self._wanted is None or time.monotonic() < self._next_try:
                    if self._wanted is None and self._closing:
                        return
                    self._condition.wait(None if self._wanted is None else self._next_try - time.monotonic())
                best, is_last = self._wanted, self._closing
                self._source = best.source
            error: OSError | HpcschedError | None = None
            try:
                self._publish_best(self._folder, best.source, best.facts, self._still_ours)
            except (OSError, HpcschedError) as caught:  # `still_ours` may not be able to tell
                error = caught
            with self._condition:
                self._source = None
                is_newest = self._wanted is best
                if is_newest and error is None:
                    self._wanted = None
                wait_s = self._retry_s if is_newest and not self._closing else 0.0
                self._next_try = time.monotonic() + wait_s
                self._condition.notify_all()
            if error is not None and is_newest and not best.failed:
                self._say(f"best/ could not be updated, the old one stands: {error}")
            elif error is None and best.failed:
                self._say("best/ has been updated now")
            best.failed = error is not None
            if is_last and is_newest:
                return

    def _delete_all(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._closing if not self._doomed else self._doomed[0] != self._source
                )
                if not self._doomed:
                    return
                doomed = self._doomed.popleft()
                self._deleting = True
            paths = self._in(doomed.incarnation) if isinstance(doomed, _Unfinished) else [doomed]
            for path in paths:
                shutil.rmtree(path, ignore_errors=True)
            with self._condition:
                self._deleting = False

    def _in(self, incarnation: Path) -> list[Path]:
        try:
            return list(incarnation.glob("checkpoint-*.tmp-*"))
        except OSError as error:  # a network file system that was away (ESTALE, EIO)
            if not self._has_complained:
                self._has_complained = True
                self._say(f"unfinished checkpoints may stay behind: {error}")
            return []
