"""`log.h5` is made from the journal by a child, every so often and at the end, so that a crash in HDF5, a full disk or a
slow file system cannot hurt the run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from hpcsched.runfolder import RunFolder

FIRST_S = 60.0
"""From the beginning to the first seal."""
SHARE = 0.05
"""At most this share of the time is spent on sealing."""
LIMIT_S = 600.0


class Sealer:
    """One child at a time. Thread-safe."""

    def __init__(self, folder: RunFolder, *, python: str = sys.executable) -> None:
        self._argv = (python, "-m", "hpcsched.eventlog.seal", str(folder.root))
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._closing = False
        self._next_at = time.monotonic() + FIRST_S

    def now_and_then(self) -> None:
        """Seal when it is time to. Blocks while it does: for a thread that has nothing else to do."""
        began = time.monotonic()
        if began < self._next_at:
            return
        self._run(LIMIT_S, last=False)
        took = time.monotonic() - began
        self._next_at = time.monotonic() + max(FIRST_S, took / SHARE)

    def finish(self, limit_s: float) -> str | None:
        """The last seal; one that is under way is ended first (it would put an older log in place). What went wrong."""
        with self._lock:
            self._closing = True
            child = self._child
        if child is not None:
            child.kill()
            child.wait()
        return self._run(limit_s, last=True)

    def _run(self, limit_s: float, *, last: bool) -> str | None:
        try:
            with self._lock:
                if self._closing and not last:
                    return None
                self._child = child = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            try:
                _, errors = child.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                return f"it took longer than {limit_s:g} s"
            finally:
                with self._lock:
                    self._child = None
        except OSError as error:
            return str(error)
        return None if child.returncode == 0 else errors.strip()[-500:] or f"exit code {child.returncode}"
