"""`log.h5` is made from the journal by a child, every so often and at the end, so that a crash in HDF5, a full disk or a
slow file system cannot hurt the run.

From its second minute on a run has a child that reads the journal along (`hpcsched.eventlog.seal --follow`). The last seal then adds
only what came in the last seconds: a log of a million results takes half a minute from nothing, and after a SIGTERM there are some
seconds. When that child fails or hangs, the log is made from nothing by another.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time

from hpcsched.eventlog.sealorders import DONE, Order
from hpcsched.runfolder import RunFolder

FIRST_S = 60.0
"""From the beginning to the first seal."""
SHARE = 0.05
"""At most this share of the time is spent on putting logs in place."""
LIMIT_S = 600.0
NUM_TRIES = 2
"""For a last seal that somebody killed."""
KILLED = "it was killed by signal"
BUSY_LIMIT_S = 20.0
"""Longest wait of the last seal for an order under way: a child that reads along is seldom at it for a second."""


class Sealer:
    """Thread-safe; one order at a time."""

    def __init__(self, folder: RunFolder, *, python: str = sys.executable) -> None:
        self._folder = folder
        self._argv = (python, "-P", "-m", "hpcsched.eventlog.seal", str(folder.root))
        self._lock = threading.Lock()
        """Around the child: held while it works on an order."""
        self._follower: subprocess.Popen[bytes] | None = None
        self._closing = False
        self._first_at = self._publish_at = time.monotonic() + FIRST_S

    def now_and_then(self) -> None:
        """Have the child read on, and publish when it is time to. Blocks while it does: for a thread that has nothing else to do."""
        began = time.monotonic()
        if began < self._first_at:
            return
        with self._lock:
            if self._closing:
                return
            publish = began >= self._publish_at
            trouble = self._order(Order.PUBLISH if publish else Order.POLL, LIMIT_S)
            took = time.monotonic() - began
            if publish or trouble is not None:
                self._publish_at = time.monotonic() + max(FIRST_S, took / SHARE)
            if trouble is not None:  # from the beginning, but not at once again
                self._first_at = self._publish_at

    def finish(self, limit_s: float) -> str | None:
        """The last seal. What went wrong."""
        began = time.monotonic()
        self._closing = True
        is_free = self._lock.acquire(timeout=min(BUSY_LIMIT_S, limit_s / 2))
        try:
            if not is_free:
                self._kill(self._follower)  # it would put an older log in place
            elif self._follower is not None:
                trouble = self._order(Order.FINISH, max(0.0, limit_s / 2 - (time.monotonic() - began)))
                if trouble is None:
                    return None
            for _ in range(NUM_TRIES):
                trouble = self._from_nothing(limit_s - (time.monotonic() - began))
                if trouble is None or not trouble.startswith(KILLED):
                    break
            return trouble
        finally:
            if is_free:
                self._lock.release()

    def close(self) -> None:
        """Ends the child without a last order, when there is one."""
        self._closing = True
        self._kill(self._follower)

    def _order(self, order: Order, limit_s: float) -> str | None:
        """Give the child an order (and make one when there is none) and wait until it is done. What went wrong; the child is gone then."""
        try:
            child = self._follower
            if child is None:
                child = self._follower = subprocess.Popen(
                    (*self._argv, "--follow"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            if self._closing and order is not Order.FINISH:  # `finish` did not see it yet
                self._end_follower()
                return "the last seal has begun"
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(f"{order}\n".encode())
            child.stdin.flush()
            poll = select.poll()  # select() knows no descriptor above 1,023, and a driver has more
            poll.register(child.stdout, select.POLLIN)
            if poll.poll(1000.0 * limit_s) and os.read(child.stdout.fileno(), len(DONE)) == DONE:
                if order is Order.FINISH:
                    self._end_follower()
                return None
            trouble = "it did not do what it was to"
        except (OSError, ValueError) as error:  # ValueError: its pipe was closed meanwhile
            trouble = str(error)
        self._end_follower()
        return trouble

    def _end_follower(self) -> None:
        """By whoever gives the orders. (Nobody else may close its pipes: a poll of a descriptor that is closed and used again
        meanwhile waits on the wrong one.)"""
        child, self._follower = self._follower, None
        self._kill(child)
        for pipe in () if child is None else (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes

    def _kill(self, child: subprocess.Popen[bytes] | None) -> None:
        if child is not None:
            child.kill()
            child.wait()
            for file in self._folder.root.glob(f".log.h5-{child.pid}-*"):  # it had no time to
                file.unlink(missing_ok=True)

    def _from_nothing(self, limit_s: float) -> str | None:
        try:
            done = subprocess.run(
                self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                start_new_session=True, timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"it took longer than {limit_s:.1f} s"
        except OSError as error:
            return str(error)
        if done.returncode < 0:
            return f"{KILLED} {-done.returncode}"
        return None if done.returncode == 0 else done.stderr.strip()[-500:] or f"exit code {done.returncode}"
