"""What an iteration spends its time on, and where this rank is: two looks at the clock a batch, one a second besides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hpcsched.progress import Phase, Slot

BEAT_S = 1.0
"""How often the number of collectives is written down."""


class Meter:
    """Sums of this iteration. `asks` and `got` frame each batch; `began` and `ended` the iteration."""

    def __init__(self, slot: Slot, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._slot = slot
        self._clock = clock
        self._asked_at: float | None = None
        self._data_wait_s = 0.0
        self._num_samples = 0
        self._told_at = clock()
        """Until when time has been accounted for."""
        self._overhead_s = 0.0
        self._boundary_at: float | None = None

    # ---- what happens

    def asks(self) -> None:
        """For a batch."""
        self._asked_at = self._clock()
        self._slot.phase(Phase.DATA)

    def got(self, num_samples: int) -> None:
        """A batch of so many samples, over all ranks; 0: there are no more."""
        if self._asked_at is not None:
            self._data_wait_s += self._clock() - self._asked_at
            self._asked_at = None
        self._num_samples += num_samples
        self._slot.phase(Phase.COMPUTE)
        self._slot.step()

    def began(self, iteration: int) -> None:
        """The script goes on, with this iteration (from 1)."""
        now = self._clock()
        if self._boundary_at is not None:
            self._overhead_s += now - self._boundary_at
            self._boundary_at = None
        self._slot.iteration(iteration)
        self._slot.phase(Phase.COMPUTE)

    def at_boundary(self) -> None:
        """The script is done with an iteration, or calls us inside of it; `began` ends this."""
        self._boundary_at = self._clock()
        self._slot.phase(Phase.BOUNDARY)

    def left(self) -> None:
        self._slot.phase(Phase.LEFT)

    # ---- what is reported

    def take(self, iteration_s: float, communication: float | None) -> dict[str, float]:
        """Of the iteration that took so long, to go with its result; counts anew from here.

        samples_per_s (over all ranks) and data_wait (share of the iteration) where a sampler of the trial was used,
        communication as given, and overhead: the share of the time since the last report that the runtime took for itself.
        """
        now = self._clock()
        found: dict[str, float] = {}
        if self._num_samples and iteration_s > 0:
            found["samples_per_s"] = self._num_samples / iteration_s
            found["data_wait"] = min(1.0, self._data_wait_s / iteration_s)
        if communication is not None:
            found["communication"] = communication
        if now > self._told_at:
            found["overhead"] = min(1.0, self._overhead_s / (now - self._told_at))
        self._told_at = now
        self._data_wait_s = self._overhead_s = 0.0
        self._num_samples = 0
        return found


class Beat:
    """A thread that writes down once a second how many collectives this rank has entered: also while its script is inside one."""

    def __init__(self, slot: Slot, count: Callable[[], int]) -> None:
        self._slot = slot
        self._count = count
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if slot.is_read:
            self._thread = threading.Thread(target=self._run, name="hpcsched-beat", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Returns once the thread has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            self._slot.collectives(self._count())
