"""A sampler that goes on inside an epoch at another world size, without repeating or skipping a sample.

All epochs laid end to end make one endless stream of samples; epoch e is a permutation drawn from (seed, e). A global
step takes the next `global batch` samples of the stream and deals them to the ranks; the state is one number, how many
samples of the stream have been trained on. It is the same on every rank and means the same at any world size. What
is left of an epoch when less than a global batch remains is not dropped: the next pass begins with it. So over the stream
every sample comes exactly once an epoch, and every batch is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from hpcsched.errors import TrialError
from hpcsched.runtime.meter import Meter

_T = TypeVar("_T")
_END = object()


class ElasticSampler(Sampler[list[int]]):
    """Yields this rank's batches (lists of indices) of one pass over the data; give it as `batch_sampler`.

    Give `batch_size` (samples a rank and step: the global batch grows with the world) or `global_batch_size` (the
    same at any world size, so that a trial's results hardly depend on how many ranks it had).

    What counts is what was trained on, not what a DataLoader's workers have fetched ahead: iterate as
    ``for batch in sampler.over(loader)``, or over `sampler.batches()` when there is no loader.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        meter: Meter | None = None,
    ) -> None:
        if (batch_size is None) == (global_batch_size is None):
            raise TrialError("sampler: give either batch_size (a rank) or global_batch_size")
        total = global_batch_size if global_batch_size is not None else (batch_size or 0) * world_size
        if num_samples < 1 or total < world_size:
            raise TrialError(
                f"sampler: {num_samples} samples in global batches of {total} over {world_size} ranks: each rank needs at least one sample a step"
            )
        self._num_samples = num_samples
        self._global_batch = total
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._shuffle = shuffle
        self._meter = meter
        self._consumed = 0
        self._pass_ends: int | None = None
        self._cached: tuple[int, torch.Tensor] | None = None

    @property
    def num_consumed(self) -> int:
        """Samples of the stream that were trained on, over all ranks and epochs."""
        return self._consumed

    @property
    def epoch(self) -> int:
        return self._consumed // self._num_samples

    @property
    def global_batch_size(self) -> int:
        return self._global_batch

    def __len__(self) -> int:
        """Steps left in this pass."""
        return (self._end_of_pass() - self._consumed) // self._global_batch

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of this pass; moves nothing (a loader may run ahead)."""
        start = self._consumed
        for step in range(len(self)):
            yield self._deal(start + step * self._global_batch)

    def batches(self) -> Iterator[list[int]]:
        """The rest of this pass, each batch counted as it is handed out."""
        return self.over(self)

    def over(self, loader: Iterable[_T]) -> Iterator[_T]:
        """The batches of `loader` (whose batch_sampler this is), each counted as it is handed out."""
        self._pass_ends = self._end_of_pass()
        meter = self._meter
        if meter is not None:
            meter.asks()
        batches = iter(loader)
        while (batch := next(batches, _END)) is not _END:
            self._consumed += self._global_batch
            if meter is None:
                yield batch  # type: ignore[misc]  # not _END
            else:
                meter.got(self._global_batch)
                yield batch  # type: ignore[misc]  # not _END
                meter.asks()
        if meter is not None:
            meter.got(0)
        self._pass_ends = None

    def state_dict(self) -> dict[str, Any]:
        # The pass's end is kept too: a restored pass ends where the interrupted one would have.
        return {
            "consumed": self._consumed,
            "pass_ends": self._pass_ends,
            "num_samples": self._num_samples,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises TrialError when the state is of other data or another seed."""
        if (state["num_samples"], state["seed"]) != (self._num_samples, self._seed):
            raise TrialError(
                f"sampler: the checkpoint is of {state['num_samples']} samples with seed {state['seed']}, "
                f"this one has {self._num_samples} with seed {self._seed}"
            )
        self._consumed = state["consumed"]
        self._pass_ends = state["pass_ends"]

    def _end_of_pass(self) -> int:
        """Where the pass ends: at the end of the first epoch that leaves room for a step."""
        end = (self.epoch + 1) * self._num_samples if self._pass_ends is None else self._pass_ends
        while end - self._consumed < self._global_batch:
            end += self._num_samples
        return end

    def _deal(self, start: int) -> list[int]:
        share, extra = divmod(self._global_batch, self._world_size)
        first = start + self._rank * share + min(self._rank, extra)
        return [self._sample(place) for place in range(first, first + share + (self._rank < extra))]

    def _sample(self, place: int) -> int:
        epoch, offset = divmod(place, self._num_samples)
        if not self._shuffle:
            return offset
        if self._cached is None or self._cached[0] != epoch:
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
            self._cached = (epoch, torch.randperm(self._num_samples, generator=generator))
        return int(self._cached[1][offset])
