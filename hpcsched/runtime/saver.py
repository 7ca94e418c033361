"""Writes checkpoints while training goes on: a thread for each, never two at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from hpcsched.errors import CheckpointError
from hpcsched.runtime.budget import SaveOutcome


class Saver:
    """One save at a time. All methods are called by the thread that made it.

    `done` is called in the saving thread as soon as a save has ended, so that word of a checkpoint does not wait for the
    end of an iteration.
    """

    def __init__(self, device: torch.device, done: Callable[[SaveOutcome], None]) -> None:
        self._device = device
        self._done = done
        self._thread: threading.Thread | None = None
        self._ended: list[SaveOutcome] = []

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, training_iteration: int, save: Callable[[], SaveOutcome]) -> None:
        """Run `save` in a thread; what it raises is an outcome."""
        assert not self.is_busy, "one save at a time: wait() first"

        def run() -> None:
            if self._device.type == "cuda":
                torch.cuda.set_device(
                    self._device
                )  # of this thread: else torch would make a context on GPU 0
            try:
                outcome = save()
            except CheckpointError as error:
                outcome = SaveOutcome(training_iteration, problem=str(error))
            except Exception as error:  # a group that broke, memory that ran out: training may still go on
                outcome = SaveOutcome(training_iteration, problem=f"{type(error).__name__}: {error}")
            self._ended.append(outcome)
            self._done(outcome)

        # A daemon, so that a rank that fails need not wait for it; one that ends in order does wait.
        self._thread = threading.Thread(target=run, name="hpcsched-save", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until no save is under way. At most as long as the group's time-out when another rank is gone."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_ended(self) -> SaveOutcome | None:
        """The outcome of the last save, once."""
        return self._ended.pop() if self._ended else None
