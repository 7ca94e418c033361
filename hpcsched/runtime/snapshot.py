"""The state of a trial at one instant, and who writes which part of it.

Theory. A save has two halves: to take hold of the state, which training must wait for, and to write it, which takes most of
the time and needs nothing but what was taken. `take` does the first half. With `Buffers` it copies, into memory that the
next snapshot uses again (page-locked where the state lies on a GPU), so that training may go on at once while a thread
writes; without, it refers to the live tensors, for a save that training waits for.

What all ranks hold alike (a DDP model, its optimizer) is dealt out: each tensor is copied and written by one rank, so that the
copies of a node's ranks take the memory of one state, not of as many as there are ranks. Shards (DTensors) are written by
who has them. The deal is computed by every rank for itself from the names and sizes, which are the same everywhere;
`Snapshot.deal` lets the ranks see that they are.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from hpcsched.runtime.tracked import Tracked
from hpcsched.runtime.trees import join

MODEL_FILE_LIMIT = 16 << 30
"""Bytes; of a larger state no plain model is gathered on rank 0."""


class Snapshot(msgspec.Struct, frozen=True):
    tensors: dict[str, torch.Tensor]
    """By key: those that this rank writes."""
    skeletons: dict[str, Any]
    """What is no tensor, by name (see `trees`)."""
    plain: Any | None
    """Rank 0: the model's plain state dict, where it fits; else None."""
    deal: str
    """Digest of what was dealt out: equal on all ranks, or something would be written by nobody."""


class Buffers:
    """CPU memory for one snapshot, used again by the next. A snapshot is over before the next is taken."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def copies(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies by the same keys; tensors that are one share one copy. Returns when all is copied."""
        fresh: dict[str, torch.Tensor] = {}
        copied: dict[tuple[Any, ...], torch.Tensor] = {}
        if any(local_of(tensor).is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()  # streams of the script's own may still write into them
        with torch.no_grad():
            for key, tensor in tensors.items():
                local = local_of(tensor)
                identity = (_address(local), local.storage_offset(), local.shape, local.stride(), local.dtype)
                copy = copied.get(identity) if local.numel() else None
                if copy is None:
                    copy = self._buffer(key, tensor)
                    local_of(copy).copy_(local, non_blocking=True)
                    copied[identity] = copy
                fresh[key] = copy
        if any(local_of(tensor).is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        self._held = fresh
        return fresh

    def _buffer(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        local = local_of(tensor)
        held = self._held.get(key)
        if (
            held is not None
            and type(held) is _kind_of(tensor)
            and (held.shape, held.dtype, local_of(held).shape) == (tensor.shape, tensor.dtype, local.shape)
        ):
            return held
        made = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
        if not isinstance(tensor, DTensor):
            return made
        # `DTensor.from_local` would move it to the mesh's device; this is how torch's own asynchronous save does it.
        mirror = torch.empty_like(tensor, device="cpu")
        assert isinstance(mirror, DTensor), "empty_like keeps the kind"
        mirror._local_tensor = made
        return mirror


def take(tracked: Tracked, *, rank: int, num_ranks: int, buffers: Buffers | None = None) -> Snapshot:
    """The state now. Collective where the model is sharded. Raises TrialError for state that no checkpoint can hold."""
    tensors, skeletons = tracked.state()
    only_0 = tracked.of_rank_0(tensors)
    common = {
        key: tensor
        for key, tensor in tensors.items()
        if key not in only_0 and not isinstance(tensor, DTensor)
    }
    has_plain = sum(_num_bytes(tensor) for tensor in tensors.values()) <= MODEL_FILE_LIMIT
    models = tracked.model_names if has_plain else ()
    plain_keys = {key for key in tensors if key.split("/", 1)[0] in models} if rank == 0 else set()
    # Rank 0 writes the plain model besides: the others are to take more of the rest.
    load_of_0 = sum(_num_bytes(tensor) for key, tensor in common.items() if key.split("/", 1)[0] in models)
    writer_of = deal_out({key: _num_bytes(tensor) for key, tensor in common.items()}, num_ranks, load_of_0)
    mine = {
        key: tensor
        for key, tensor in tensors.items()
        if isinstance(tensor, DTensor) or (rank == 0 if key in only_0 else writer_of[key] == rank)
    }
    gathered = tracked.gathered_models(copy=buffers is not None) if has_plain else {}
    if buffers is not None:
        needed = {
            key: tensor
            for key, tensor in tensors.items()
            if key in mine or (key in plain_keys and key.split("/", 1)[0] not in gathered)
        }
        tensors = buffers.copies(needed)
        mine = {key: tensors[key] for key in mine}
    plain = None
    if rank == 0 and models:
        whole = {
            name: gathered[name]
            if name in gathered
            else join(skeletons[name], lambda key: tensors[key].detach().cpu())
            for name in models
        }
        plain = next(iter(whole.values())) if len(whole) == 1 else whole
    words = "\n".join(f"{key} {tuple(tensor.shape)} {tensor.dtype}" for key, tensor in sorted(common.items()))
    return Snapshot(mine, skeletons, plain, hashlib.sha256(words.encode()).hexdigest())


def num_bytes_to_copy(tracked: Tracked, *, num_ranks: int) -> int | None:
    """About what `take` with buffers takes for its copies on the busiest rank, in bytes; None: something is no plain tensor and
    cannot be copied for sure."""
    tensors, _ = tracked.state()
    if any(type(tensor) not in (torch.Tensor, torch.nn.Parameter, DTensor) for tensor in tensors.values()):
        return None
    shards = sum(copy_bytes(local_of(t)) for t in tensors.values() if isinstance(t, DTensor))
    models = tracked.model_names
    plain = sum(
        _num_bytes(t) if isinstance(t, DTensor) else copy_bytes(t)
        for key, t in tensors.items()
        if key.split("/", 1)[0] in models
    )
    dealt = sum(copy_bytes(t) for t in tensors.values() if not isinstance(t, DTensor))
    return shards + plain + dealt // num_ranks


def copy_bytes(local: torch.Tensor) -> int:
    """What its buffer takes. Page-locked memory, for what lies on a GPU, comes in blocks of a power of two (torch's
    CachingHostAllocator), so that a tensor just above one takes nearly twice its size."""
    num = _num_bytes(local)
    return 1 << (num - 1).bit_length() if local.is_cuda and num else num


def expected_bytes(tracked: Tracked, *, num_ranks: int) -> int:
    """About what rank 0 will write of the first checkpoint, told before training has begun. Looks at sizes alone; not collective."""
    shards = dealt = plain = total = 0
    for tensor, num, is_model in tracked.sizes():
        total += num * _num_bytes(tensor)
        plain += is_model * _num_bytes(tensor)
        if isinstance(tensor, DTensor):
            shards += num * _num_bytes(local_of(tensor))
        else:
            dealt += num * _num_bytes(tensor)
    if total > MODEL_FILE_LIMIT:
        plain = 0
    return shards + max(plain, (plain + dealt) // num_ranks)  # the others take what rank 0 has less time for


def deal_out(num_bytes: Mapping[str, int], num_ranks: int, load_of_0: int = 0) -> dict[str, int]:
    """key -> rank: the largest first, each to who has least so far. `load_of_0`: bytes that rank 0 has to write anyway."""
    loads = [(load_of_0 if rank == 0 else 0, rank) for rank in range(num_ranks)]
    heapq.heapify(loads)
    found: dict[str, int] = {}
    for key in sorted(num_bytes, key=lambda key: (-num_bytes[key], key)):
        load, rank = heapq.heappop(loads)
        found[key] = rank
        heapq.heappush(loads, (load + num_bytes[key], rank))
    return found


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor; the tensor itself otherwise."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _kind_of(tensor: torch.Tensor) -> type[torch.Tensor]:
    return DTensor if isinstance(tensor, DTensor) else torch.Tensor


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
