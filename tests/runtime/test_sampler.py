"""The elastic sampler, by counting: whatever the world sizes, batch sizes and interruptions, over the stream every sample
comes exactly once an epoch, and all ranks take as many steps."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from hpcsched.errors import TrialError
from hpcsched.runtime.sampler import ElasticSampler


@settings(max_examples=150, deadline=None)
@given(
    num_samples=st.integers(1, 60),
    pieces=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 6), st.booleans(), st.integers(0, 12)),
        min_size=1,
        max_size=8,
    ),
    shuffle=st.booleans(),
)
def test_no_sample_is_repeated_or_skipped_at_any_world_size(
    num_samples: int, pieces: list[tuple[int, int, bool, int]], shuffle: bool
) -> None:
    """Each piece is an incarnation: world size, batch size, whether it is a global one, and steps until it leaves."""
    seen: list[int] = []
    state = None
    for world_size, batch_size, is_global, num_steps in pieces:
        size = {"global_batch_size": batch_size * world_size} if is_global else {"batch_size": batch_size}
        ranks = [
            ElasticSampler(num_samples, rank=rank, world_size=world_size, seed=3, shuffle=shuffle, **size)  # type: ignore[arg-type]
            for rank in range(world_size)
        ]
        if state is not None:
            for sampler in ranks:
                sampler.load_state_dict(state)
        taken = 0
        while taken < num_steps:
            assert len({len(sampler) for sampler in ranks}) == 1
            assert len(ranks[0]) >= 1
            for dealt in zip(*(sampler.batches() for sampler in ranks), strict=True):
                assert all(len(batch) == batch_size for batch in dealt)
                seen += [sample for batch in dealt for sample in batch]
                taken += 1
                if taken == num_steps:
                    break
        states = [sampler.state_dict() for sampler in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
    whole, rest = divmod(len(seen), num_samples)
    for epoch in range(whole):
        assert sorted(seen[epoch * num_samples : (epoch + 1) * num_samples]) == list(range(num_samples))
    assert max(Counter(seen[whole * num_samples :]).values(), default=0) <= 1
    assert rest == len(seen[whole * num_samples :])


@given(total=st.integers(5, 40), world_size=st.integers(1, 5))
def test_a_global_batch_is_dealt_as_evenly_as_it_can_be(total: int, world_size: int) -> None:
    dealt = [
        next(ElasticSampler(200, global_batch_size=total, rank=rank, world_size=world_size).batches())
        for rank in range(world_size)
    ]
    sizes = [len(batch) for batch in dealt]
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 1


def test_the_order_is_another_each_epoch_and_the_same_for_the_same_seed() -> None:
    def epochs(seed: int) -> list[list[int]]:
        sampler = ElasticSampler(30, global_batch_size=30, seed=seed)
        return [next(sampler.batches()) for _ in range(3)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    assert len({tuple(epoch) for epoch in epochs(1)}) == 3


def test_a_loader_that_runs_ahead_does_not_move_the_state() -> None:
    sampler = ElasticSampler(40, global_batch_size=4)
    loader = DataLoader(TensorDataset(torch.arange(40)), batch_sampler=sampler)
    pulled = iter(loader)
    for _ in range(5):
        next(pulled)
    assert sampler.num_consumed == 0
    seen = []
    for number, (batch,) in enumerate(sampler.over(loader), 1):
        assert sampler.num_consumed == 4 * number
        seen += batch.tolist()
    assert sorted(seen) == list(range(40))


def test_a_state_of_other_data_is_refused() -> None:
    state = ElasticSampler(40, batch_size=4).state_dict()
    with pytest.raises(TrialError, match="40 samples with seed 0"):
        ElasticSampler(41, batch_size=4).load_state_dict(state)


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 1, "global_batch_size": 1}, {"global_batch_size": 3}, {"batch_size": 0}]
)
def test_sizes_that_leave_a_rank_without_a_sample_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(TrialError):
        ElasticSampler(10, world_size=4, **options)  # type: ignore[arg-type]
