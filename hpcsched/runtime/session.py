"""The life of a rank, whatever its ranks talk by; nothing here imports torch or MPI.

`Session` is what a trial is: its facts, its loop, its reports, when it saves and how it ends. How its ranks agree and what
a checkpoint is made of is left to `hpcsched.runtime.trial` (torch) and `hpcsched.runtime.mpi` (mpi4py).

Every rank decides nothing alone: whether to save or leave is one broadcast, so all ranks do it at the same boundary, and
no collective is ever entered by some of them only.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hpcsched import progress
from hpcsched.errors import CheckpointError, LostCheckpointError, TrialError
from hpcsched.launchspec import RestorePoint
from hpcsched.runfolder import RunFolder
from hpcsched.runtime.budget import SaveBudget, SaveOutcome, verdict_wait_s
from hpcsched.runtime.config import Config
from hpcsched.runtime.driverline import DriverLine, Line, NoDriver
from hpcsched.runtime.meter import Beat, Meter
from hpcsched.runtime.metrics import read_metrics
from hpcsched.runtime.place import Place
from hpcsched.wire import CheckpointTrouble, Leaving, RankHello, Report, SavedCheckpoint

log = logging.getLogger(__name__)

_T = TypeVar("_T")
ITERATIONS_ALONE = 10
_WHY_CHARACTERS = 2000
_SAVE, _LEAVE = 1, 2
_ALONE_S = 30.0


class Session(ABC):
    """One rank's view of its trial."""

    def __init__(
        self,
        place: Place,
        line: Line,
        *,
        defaults: dict[str, Any],
        max_iterations: int | None,
        seed: int | None,
        setup_s: dict[str, float],
    ) -> None:
        launch = place.launch
        self._place = place
        self._launch = launch
        self._line = line
        self._config = Config(defaults if launch is None else defaults | launch.config)
        alone = ITERATIONS_ALONE if max_iterations is None else max_iterations
        self._max_iterations = alone if launch is None else launch.max_iterations
        self._seed = (0 if seed is None else seed) if launch is None else launch.seed
        self._setup_s = setup_s
        self._made_at = time.monotonic()
        self._iteration = 0 if launch is None or launch.restore is None else launch.restore_iteration
        """Iterations that are done."""
        self._restored_iteration = self._iteration
        self._lost: list[tuple[str, str]] = []
        """Checkpoints that could not be used, and why."""
        self._inside = False
        self._iteration_began = 0.0
        self._iteration_s = 0.0
        self._reported = False
        self._num_reports = 0
        self._said_unreported = False
        self._budget = SaveBudget(share=0.05 if launch is None else launch.checkpoint_budget)
        self._saved_iteration: int | None = None
        self._num_bytes = 0
        self._num_failed_saves = 0
        """In a row, until now."""
        self._over = False
        self._left_early = False
        self._failed = False
        self._looping = False
        slot = progress.Slot(None if launch is None else os.environ.get(progress.VARIABLE), place.local_rank)
        slot.phase(progress.Phase.SETUP)
        self._slot = slot
        self._meter = Meter(slot)
        self._beat: Beat | None = None

    # ---- facts

    @property
    def config(self) -> Config:
        """Hyperparameters by name."""
        return self._config

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def world_size(self) -> int:
        """Ranks of this incarnation, one a GPU; another one after each resize."""
        return self._place.world_size

    @property
    def local_rank(self) -> int:
        return self._place.local_rank

    @property
    def seed(self) -> int:
        """Of this trial: the same on every rank and in every incarnation."""
        return self._seed

    @property
    def max_iterations(self) -> int:
        """R."""
        return self._max_iterations

    @property
    def iteration(self) -> int:
        """Iterations that are done, over all incarnations."""
        return self._iteration

    @property
    def trial_id(self) -> int | None:
        """None outside of hpcsched."""
        return None if self._launch is None else self._launch.trial_id

    @property
    def incarnation(self) -> int | None:
        return None if self._launch is None else self._launch.incarnation

    @property
    def left_early(self) -> bool:
        """After the loop: True when the trial was asked to leave and will go on later (or not at all), so that work
        meant for the finished model is not worth doing."""
        return self._left_early

    # ---- what the script does

    def __iter__(self) -> Iterator[int]:
        """Numbers of the iterations to do, from 1; after a restore from where it was. Ends at `max_iterations`, or for
        all ranks at the same boundary when the driver asks. A `break` ends the trial as completed: do it on all ranks."""
        if self._looping:
            raise TrialError("a trial has one loop: `for iteration in trial` was begun a second time")
        self._begin()
        if self._at_boundary(within=False):
            return
        while self._iteration < self._max_iterations:
            self._inside = True
            self._reported = False
            self._iteration_began = time.monotonic()
            self._meter.began(self._iteration + 1)
            yield self._iteration + 1
            self._meter.at_boundary()
            self._end_iteration()
            if self._at_boundary(within=False):
                return
        self._finish("completed")

    def report(self, *unnamed: Any, **metrics: Any) -> None:
        """Tell the driver this iteration's metrics (numbers, or tensors of one element), once an iteration and on every
        rank, or on rank 0 alone: rank 0's count, so average over ranks before. NaN and infinities are passed on as such.

        Waits for the driver's word at most 2 % of the last iteration (0.2 to 5 s). Raises TrialError when called
        outside of the loop, twice in an iteration, with something that is no number, or without the experiment's metric
        the first time.
        """
        if unnamed:  # other tools take a dict
            raise TrialError(
                "trial.report() takes metrics by name: trial.report(loss=..., accuracy=...), or trial.report(**metrics) for a dict"
            )
        if not self._inside:
            raise TrialError(
                "trial.report() outside of the loop: call it once in each iteration of `for iteration in trial`"
            )
        if self._reported:
            raise TrialError(
                f"trial.report() was called twice in iteration {self._iteration + 1}: give all metrics in one call"
            )
        values, problems = read_metrics(metrics)
        launch = self._launch
        if launch is not None and self._num_reports == 0 and launch.metric not in values:
            raise TrialError(
                f"trial.report() gave {', '.join(sorted(values)) or 'nothing'}, but the experiment decides on {launch.metric!r}: "
                f"report it, or name another one in experiment.toml ([experiment] metric)"
            )
        self._reported = True
        self._num_reports += 1
        self._iteration_s = time.monotonic() - self._iteration_began
        report = Report(
            trial_id=0 if launch is None else launch.trial_id,
            incarnation=0 if launch is None else launch.incarnation,
            seq=self._num_reports,
            training_iteration=self._iteration + 1,
            metrics=values,
            time_this_iter_s=self._iteration_s,
            extra=self._meter.take(self._iteration_s, self._communication_share()),
            problems=problems,
            unread=self._config.unread if self._num_reports == 1 else (),
        )
        wait_s = 0.0
        if launch is not None:
            wait_s = verdict_wait_s(
                self._iteration_s, least_s=launch.verdict_wait_min_s, most_s=launch.verdict_wait_max_s
            )
        self._meter.at_boundary()
        self._line.ask(report, wait_s)
        self._meter.began(self._iteration + 1)

    def boundary(self) -> None:
        """Inside a long iteration, on every rank, after a step: a place where the trial may leave. Then it saves and
        ends the process with exit code 0; the next incarnation does this iteration again, with the sampler where it was."""
        if not self._inside:
            raise TrialError("trial.boundary() outside of the loop")
        self._meter.at_boundary()
        if self._at_boundary(within=True):
            raise SystemExit(0)
        self._meter.began(self._iteration + 1)

    # ---- before the loop

    def _first_usable(self, read: Callable[[Path], _T]) -> tuple[RestorePoint, _T] | None:
        """What to go on from: the first checkpoint that is whole and ours; None: from scratch. Collective, as `read` is, which
        raises LostCheckpointError on every rank alike. What is passed over is said: nothing is lost silently."""
        launch = self._launch
        assert launch is not None, "only a trial of an experiment restores"
        found: tuple[RestorePoint, _T] | None = None
        for point in launch.restore_points:
            try:
                found = point, read(Path(point.path))
                break
            except LostCheckpointError as error:
                self._lost.append((point.path, str(error)[:_WHY_CHARACTERS]))
                log.error("hpcsched: cannot go on from iteration %d: %s", point.training_iteration, error)
        self._iteration = self._restored_iteration = 0 if found is None else found[0].training_iteration
        if self._lost:
            whence = (
                "from scratch" if found is None else f"from iteration {self._iteration} ({found[0].path})"
            )
            log.error("hpcsched: the trial goes on %s", whence)
        return found

    # ---- between iterations

    def _begin(self) -> None:
        if self._launch is not None and not self._is_tracking:
            raise TrialError(
                "trial.track(model=..., optimizer=...) was not called before the loop: "
                "a trial that is paused, resized or best must have a checkpoint"
            )
        self._looping = True
        launch = self._launch
        if launch is None:
            return
        self._setup_s["prepare"] = time.monotonic() - self._made_at - self._setup_s.get("restore", 0.0)
        self._line.say(
            RankHello(
                trial_id=launch.trial_id,
                incarnation=launch.incarnation,
                pid=os.getpid(),
                world_size=self.world_size,
                setup_s=dict(self._setup_s),
                restored_iteration=self._iteration,
                state_bytes=self._state_bytes(),
                lost=tuple(self._lost),
            )
        )

    def _end_iteration(self) -> None:
        if not self._reported:
            self._iteration_s = time.monotonic() - self._iteration_began
            if not self._said_unreported and self.rank == 0:
                self._said_unreported = True
                log.warning("hpcsched: iteration %d ended without trial.report()", self._iteration + 1)
        self._inside = False
        self._iteration += 1
        self._budget.trained_s += self._iteration_s

    def _at_boundary(self, *, within: bool) -> bool:
        """All ranks agree what to do and do it. True: leave now."""
        launch = self._launch
        if launch is None:
            return False
        verdict = 0
        reason = None
        if self.rank == 0:
            reason = self._line.must_leave()
            if reason is not None:
                verdict = _LEAVE
            elif not within and self._saving_pays():
                verdict = _SAVE
        if self.world_size > 1:
            verdict = self._broadcast(verdict)
        if verdict == _LEAVE:
            self._finish("preempted", why=reason or "", within=within)
            return True
        if verdict == _SAVE:
            self._save_and_go_on()
        return False

    def _saving_pays(self) -> bool:
        if self._iteration >= self._max_iterations or self._iteration == 0 or self._budget.trained_s == 0.0:
            return False  # the last one is saved anyway
        if self._is_saving:
            return False
        self._note_ended_save()
        return self._budget.is_due(self._num_bytes)

    def _save_and_go_on(self) -> None:
        """Collective: in the background where that is safe, else now."""
        self._wait_for_save()  # of this rank: rank 0's has ended, or it had not asked for another
        self._note_ended_save()
        self._budget.began()  # and the next try, should it fail, when one would be due again
        if not self._begin_checkpoint(self._checkpoint_folder()):
            self._save(within=False)

    def _checkpoint_folder(self) -> Path:
        launch = self._launch
        assert launch is not None, "only a trial of an experiment saves"
        return RunFolder(Path(launch.run_dir)).checkpoint(
            launch.trial_id, launch.incarnation, self._iteration
        )

    def _save(self, *, within: bool) -> None:
        """Now. Collective. A failure is told and survived: older checkpoints are whole and training goes on."""
        launch = self._launch
        assert launch is not None
        self._wait_for_save()
        self._note_ended_save()
        if not within and self._iteration == self._restored_iteration:
            return  # nothing was done since the checkpoint that we came from
        if self._saved_iteration == self._iteration:
            return  # within: its name is taken by the exact state at the iteration's end, which scores refer to
        self._budget.began()
        try:
            save_s, num_bytes = self._write_checkpoint(self._checkpoint_folder(), within)
            outcome = SaveOutcome(self._iteration, save_s, num_bytes)
        except CheckpointError as error:
            outcome = SaveOutcome(self._iteration, problem=str(error))
        self._tell_save(outcome)
        self._note_save(outcome)

    def _tell_save(self, outcome: SaveOutcome) -> None:
        """To the driver, as soon as it has ended; also called by the thread that saves."""
        launch = self._launch
        assert launch is not None
        ids = {"trial_id": launch.trial_id, "incarnation": launch.incarnation}
        if outcome.problem:
            self._num_failed_saves += 1
            if self._num_failed_saves == 1:  # the same line after each iteration would hide all others
                log.error(
                    "hpcsched: checkpoint of iteration %d failed, older ones are whole: %s",
                    outcome.training_iteration,
                    outcome.problem,
                )
            self._line.say(
                CheckpointTrouble(
                    **ids,
                    training_iteration=outcome.training_iteration,
                    why=outcome.problem[:_WHY_CHARACTERS],
                )
            )
            return
        if self._num_failed_saves:
            log.error(
                "hpcsched: checkpoint of iteration %d is complete, after %d that failed",
                outcome.training_iteration,
                self._num_failed_saves,
            )
            self._num_failed_saves = 0
        self._line.say(
            SavedCheckpoint(
                **ids,
                training_iteration=outcome.training_iteration,
                save_s=outcome.save_s,
                num_bytes=outcome.num_bytes,
                blocked_s=outcome.blocked_s,
            )
        )

    def _note_save(self, outcome: SaveOutcome) -> None:
        if not outcome.problem:
            self._saved_iteration = outcome.training_iteration
            self._num_bytes = outcome.num_bytes
            self._budget.saved(outcome.save_s, outcome.blocked_s)

    def _note_ended_save(self) -> None:
        outcome = self._take_ended_save()
        if outcome is not None:
            self._note_save(outcome)

    # ---- the end

    def _finish(self, how: str, *, why: str = "", within: bool = False, early: bool = False) -> None:
        """Save, then say goodbye. Collective; once. `early`: the script has left the loop by itself."""
        if self._over:
            return
        self._over = True
        self._inside = False
        self._meter.left()
        if self._iteration >= self._max_iterations:
            how = "completed"  # asked to leave at its very end
        self._left_early = how == "preempted"
        launch = self._launch
        if launch is None:
            return
        if how == "completed" and self._num_reports == 0 and self._iteration > self._restored_iteration:
            raise TrialError(
                f"the trial ended after {self._iteration} iterations and never called trial.report({launch.metric}=...)"
            )
        self._save(within=within)
        self._line.say(
            Leaving(
                trial_id=launch.trial_id,
                incarnation=launch.incarnation,
                how="completed" if how == "completed" else "preempted",
                training_iteration=self._iteration,
                why=why,
                early=early,
            )
        )
        self._line.flush()  # what comes after the loop may be `os._exit`: the last checkpoint would never be heard of

    def _watch_the_end(self) -> None:
        """However the script ends, the driver hears of it. The order at exit: uncaught exception, then `_at_exit`."""
        former = sys.excepthook

        def on_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failed = True
            former(kind, error, trace)
            self._say_failed(kind, error, trace)

        sys.excepthook = on_uncaught
        atexit.register(self._at_exit)
        self._beat = Beat(self._slot, self._num_collectives)

    def _say_failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        launch = self._launch
        if launch is None:
            return
        text = "".join(traceback.format_exception(kind, error, trace, limit=-6))
        self._line.say(
            Leaving(
                trial_id=launch.trial_id,
                incarnation=launch.incarnation,
                how="failed",
                training_iteration=self._iteration,
                why=text[-_WHY_CHARACTERS:],
            )
        )

    def _at_exit(self) -> None:
        if not self._failed and self._looping and not self._over:
            # The loop was left by `break` (or return, or sys.exit): the script has ended by its own will.
            if self._inside and self._reported:
                self._end_iteration()
            try:
                if self.world_size > 1:
                    # Did all ranks leave? One that went alone must not wait for the others as long as the group does.
                    self._wait_for_all(_ALONE_S)
                self._finish("completed", early=True)
            except BaseException:
                sys.excepthook(*sys.exc_info())
        self._line.close()
        self._meter.left()
        if self._beat is not None:
            self._beat.close()
        if self._failed:
            # Other ranks may be waiting in a collective with us; tearing groups down could wait for them.
            sys.stdout.flush()
            sys.stderr.flush()
            self._abandon()
            os._exit(1)
        self._leave_groups()
        # The interpreter's last collections walk all of torch: 0.85 s of CPU a rank, 0.15 s without them (measured).
        gc.freeze()
        gc.disable()

    # ---- what the ranks talk by, and what a checkpoint is made of

    @property
    @abstractmethod
    def _is_tracking(self) -> bool:
        """Something is tracked."""

    @abstractmethod
    def _broadcast(self, number: int) -> int:
        """Rank 0's number, on every rank."""

    @abstractmethod
    def _wait_for_all(self, limit_s: float) -> None:
        """Returns once every rank is here; raises when one is not after so long."""

    @abstractmethod
    def _write_checkpoint(self, folder: Path, within: bool) -> tuple[float, int]:
        """Save what is tracked; seconds and bytes. Collective; raises CheckpointError on every rank alike."""

    # In the background, where the ranks can; else training waits for each save.

    def _begin_checkpoint(self, folder: Path) -> bool:  # noqa: ARG002 - of those that can
        """Take hold of what is tracked and begin to save it in the background. False: that is not safe here. Collective."""
        return False

    @property
    def _is_saving(self) -> bool:
        """A save is under way in the background, as far as this rank knows."""
        return False

    def _wait_for_save(self) -> None:  # noqa: B027 - nothing to wait for where nothing is done in the background
        """Until none is under way."""

    def _take_ended_save(self) -> SaveOutcome | None:
        """How the last one in the background has ended, once."""
        return None

    # What can be measured of the ranks' talk.

    def _num_collectives(self) -> int:
        """Calls so far in which ranks wait for each other; called by another thread."""
        return 0

    def _communication_share(self) -> float | None:
        """Share of a step in which the ranks did nothing but talk, as last measured; None: unknown."""
        return None

    def _state_bytes(self) -> int:
        """About what rank 0 has to write of the first checkpoint; 0: not known."""
        return 0

    @abstractmethod
    def _leave_groups(self) -> None:
        """At the very end, when all is well."""

    @abstractmethod
    def _abandon(self) -> None:
        """Before this process ends at once because it has failed."""


def line_of(place: Place) -> Line:
    """Rank 0 speaks to the driver, or prints where there is none."""
    if place.launch is None or place.rank != 0:
        return NoDriver(print if place.rank == 0 and place.launch is None else lambda _text: None)
    return DriverLine(place.launch)


def ignore_signals() -> None:
    """The channel and SIGKILL decide when a rank ends: a Ctrl-C or scancel reaches all processes of a step at once, and
    a rank that died of it half-way through a checkpoint would take the others' goodbye with it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
