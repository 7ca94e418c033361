"""What a training script sees.

The life of a rank::

    trial()      who am I (environment, launch.json), join the process groups
    track(...)   name what a checkpoint holds; restores at once when there is one
    for i in trial:
        ...      train one iteration
        report(accuracy=...)    rank 0 tells the driver and waits a little for its word
      boundary   between iterations rank 0 broadcasts the verdict: go on | save | leave
    the end      a last checkpoint, the goodbye, then the groups are destroyed and the exit code is 0

All but the groups and the checkpoints is in `hpcsched.runtime.session`.
"""

from __future__ import annotations

import logging
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from hpcsched.errors import CheckpointError, TrialError
from hpcsched.runtime import checkpoint
from hpcsched.runtime.budget import SaveOutcome
from hpcsched.runtime.driverline import Line
from hpcsched.runtime.groups import Groups, count_collectives, join_groups, leave_groups
from hpcsched.runtime.memory import available_bytes
from hpcsched.runtime.place import Place, claim, find_place, process_age_s
from hpcsched.runtime.sampler import ElasticSampler
from hpcsched.runtime.saver import Saver
from hpcsched.runtime.scaling import Batch, LearningRate, Ramp, Scaling, ScalingRule, Schedule
from hpcsched.runtime.session import Session, ignore_signals, line_of
from hpcsched.runtime.snapshot import Buffers, Snapshot, expected_bytes, num_bytes_to_copy, take
from hpcsched.runtime.tracked import Tracked

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.5
"""Copies of the state of all ranks of a node take at most this share of the memory that is free there; else training waits."""


def trial(*, max_iterations: int | None = None, seed: int | None = None, **defaults: Any) -> Trial:
    """Join the trial that this process is a rank of; call it once, before the model is made.

    `defaults` are hyperparameters for a run without hpcsched (``python train.py``: one rank; ``torchrun train.py``: its
    ranks); in a trial the experiment's values take their place. So do `max_iterations` (default 10) and `seed` (0).

    Raises TrialError when the environment is inconsistent or the process group does not come together.
    """
    age_s = process_age_s()
    place = find_place(os.environ)
    claim(place, os.environ, os.getpid())
    if place.launch is not None:
        ignore_signals()
    began = time.monotonic()
    groups = join_groups(place)
    setup_s = {"imports": age_s, "group": time.monotonic() - began}
    made = Trial(
        place,
        groups,
        line_of(place),
        defaults=defaults,
        max_iterations=max_iterations,
        seed=seed,
        setup_s=setup_s,
    )
    made._watch_the_end()
    return made


class Trial(Session):
    """One rank's view of its trial. Made by `hpcsched.trial()`."""

    def __init__(
        self,
        place: Place,
        groups: Groups,
        line: Line,
        *,
        defaults: dict[str, Any],
        max_iterations: int | None,
        seed: int | None,
        setup_s: dict[str, float],
    ) -> None:
        super().__init__(
            place, line, defaults=defaults, max_iterations=max_iterations, seed=seed, setup_s=setup_s
        )
        self._groups = groups
        self._tracked = Tracked()
        self._opened: tuple[Path, checkpoint.Manifest] | None = None
        """What this incarnation goes on from."""
        self._has_looked = False
        self._saver = Saver(groups.device, self._tell_save)
        self._buffers: Buffers | None = None
        """Once it is known that saves in the background are safe."""
        self._may_copy: bool | None = None

    @property
    def device(self) -> torch.device:
        """This rank's own: "cuda:LOCAL_RANK", or the CPU."""
        return self._groups.device

    def sampler(
        self,
        num_samples: int,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        shuffle: bool = True,
    ) -> ElasticSampler:
        """A batch sampler for this rank that goes on inside an epoch at another world size. Track it."""
        return ElasticSampler(
            num_samples,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            rank=self.rank,
            world_size=self.world_size,
            seed=self._seed,
            shuffle=shuffle,
            meter=self._meter,
        )

    def scaling(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        batch_size: int,
        schedule: Schedule | None = None,
        batch: Literal["per_rank", "global"] = "per_rank",
        learning_rate: Literal["sqrt", "linear", "none"] = "sqrt",
        ramp: Literal["geometric", "additive", "half", "none"] = "geometric",
        rule: ScalingRule | None = None,
    ) -> Scaling:
        """What becomes of batch and learning rate at this world size (see `hpcsched.runtime.scaling`). Track it, take its
        `global_batch_size` for the sampler, and call its `step()` after each epoch. `rule`, when given, says it all."""
        if rule is None:
            rule = ScalingRule(Batch(batch), LearningRate(learning_rate), Ramp(ramp))
        return Scaling(
            optimizer, batch_size=batch_size, num_ranks=self.world_size, rule=rule, schedule=schedule
        )

    def track(self, **objects: Any) -> None:
        """Name what a checkpoint holds (models, optimizers, schedulers, samplers, anything with `state_dict` and
        `load_state_dict`), and restore it at once when this incarnation goes on from a checkpoint. Collective.

        A checkpoint that is missing or damaged is passed over, and said: the trial goes on from its next older one, or from
        scratch. Raises TrialError for an object without state, CheckpointError when the checkpoint is not ours alone, of
        another configuration or of other objects.
        """
        if self._looping:
            raise TrialError("trial.track() after the loop has begun: what is tracked must be known before")
        self._tracked.add(objects)
        if self._launch is None or self._launch.restore is None or not objects:
            return
        began = time.monotonic()
        if not self._has_looked:
            self._has_looked = True
            self._opened = self._open_checkpoint(self._launch.config)
        if self._opened is not None:
            folder, manifest = self._opened
            checkpoint.restore(folder, manifest, self._tracked, objects, group=self._groups.saves)
        self._setup_s["restore"] = self._setup_s.get("restore", 0.0) + time.monotonic() - began

    def _open_checkpoint(self, config: dict[str, Any]) -> tuple[Path, checkpoint.Manifest] | None:
        group = self._groups.saves
        found = self._first_usable(lambda folder: checkpoint.read_whole(folder, group=group))
        if found is None:
            return None
        point, manifest = found
        folder = Path(point.path)
        checkpoint.refuse_another(folder, manifest, config=config)
        if manifest.training_iteration != point.training_iteration:
            raise CheckpointError(
                f"{folder}: of iteration {manifest.training_iteration}, expected {point.training_iteration}"
            )
        return folder, manifest

    # ---- Session

    @property
    def _is_tracking(self) -> bool:
        return bool(self._tracked)

    def _broadcast(self, number: int) -> int:
        word = torch.tensor([number], dtype=torch.int64)
        dist.broadcast(word, src=0, group=self._groups.verdicts)
        return int(word.item())

    def _wait_for_all(self, limit_s: float) -> None:
        self._saver.wait()  # it uses the same group
        dist.monitored_barrier(self._groups.saves, timeout=timedelta(seconds=limit_s))

    def _write_checkpoint(self, folder: Path, within: bool) -> tuple[float, int]:
        began = time.monotonic()
        # Nobody trains meanwhile: nothing is copied.
        snapshot = take(self._tracked, rank=self.rank, num_ranks=self.world_size)
        saved = self._write(folder, snapshot, self._iteration, within)
        return time.monotonic() - began, saved.num_bytes

    def _begin_checkpoint(self, folder: Path) -> bool:
        if self._may_copy is None:
            self._may_copy = self._all_may_copy()
            self._buffers = Buffers() if self._may_copy else None
        if self._buffers is None:
            return False
        began = time.monotonic()
        iteration = self._iteration
        snapshot: Snapshot | Exception
        try:
            snapshot = take(self._tracked, rank=self.rank, num_ranks=self.world_size, buffers=self._buffers)
        except (RuntimeError, MemoryError) as error:  # no memory for the copies: all ranks shall know
            snapshot = error
        blocked_s = time.monotonic() - began

        def save() -> SaveOutcome:
            saved = self._write(folder, snapshot, iteration, within=False)
            return SaveOutcome(iteration, time.monotonic() - began, saved.num_bytes, blocked_s)

        self._saver.begin(iteration, save)
        return True

    def _all_may_copy(self) -> bool:
        """Every rank may save in the background. Collective."""
        launch = self._launch
        assert launch is not None, "only a trial of an experiment saves"
        why = "[checkpoint] background is off"
        if launch.checkpoint_background:
            why = self._why_not_copy() or ""
        if why and launch.checkpoint_background:
            log.warning("hpcsched: training waits for each checkpoint: %s", why)
        word = torch.tensor([int(not why)], dtype=torch.int64)
        dist.all_reduce(word, op=dist.ReduceOp.MIN, group=self._groups.verdicts)
        return bool(word.item())

    def _why_not_copy(self) -> str | None:
        num_bytes = num_bytes_to_copy(self._tracked, num_ranks=self.world_size)
        if num_bytes is None:
            return "what is tracked holds a kind of tensor that cannot be copied for sure"
        num_bytes *= self._place.num_local_ranks
        available = available_bytes()
        if available is not None and num_bytes > MEMORY_SHARE * available:
            return (
                f"copies of its state would take {num_bytes / 2**30:.1f} GiB of the "
                f"{available / 2**30:.1f} GiB that are free on this node"
            )
        return None

    def _write(
        self, folder: Path, snapshot: Snapshot | Exception, iteration: int, within: bool
    ) -> checkpoint.Saved:
        launch = self._launch
        assert launch is not None, "only a trial of an experiment saves"
        return checkpoint.save(
            folder,
            snapshot,
            trial_id=launch.trial_id,
            incarnation=launch.incarnation,
            training_iteration=iteration,
            within_iteration=within,
            config=launch.config,
            group=self._groups.saves,
        )

    def _num_collectives(self) -> int:
        """Entered in all groups but that of the saves, which a thread uses while training goes on."""
        return count_collectives(self._groups.saves)

    def _communication_share(self) -> float | None:
        return self._tracked.communication_share()

    def _state_bytes(self) -> int:
        return expected_bytes(self._tracked, num_ranks=self.world_size)

    @property
    def _is_saving(self) -> bool:
        return self._saver.is_busy

    def _wait_for_save(self) -> None:
        self._saver.wait()

    def _take_ended_save(self) -> SaveOutcome | None:
        return self._saver.take_ended()

    def _leave_groups(self) -> None:
        self._saver.wait()
        leave_groups()
        del self._groups  # the last reference to two of them: torch joins their threads

    def _abandon(self) -> None:
        """Groups are left as they are: to tear them down could wait for ranks that wait for us."""
