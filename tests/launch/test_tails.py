"""What the end of a log says about memory; the lines are as the programs print them."""

from __future__ import annotations

import pytest

from hpcsched.launch.tails import tells_out_of_memory


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
        "n1:100:200 [0] include/alloc.h:197 NCCL WARN Cuda failure 2 'out of memory'",
        "n1:100:200 [0] include/alloc.h:185 NCCL WARN Cuda failure 'out of memory'",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ",
    ],
)
def test_a_lack_of_memory_is_told_by_the_words_of_who_lacked_it(line: str) -> None:
    assert tells_out_of_memory(f"Traceback (most recent call last):\n{line}")


@pytest.mark.parametrize(
    "line",
    [
        "n1:100:200 [0] NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Segmentation fault. ",
        "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly",
    ],
)
def test_other_ends_are_no_lack_of_memory(line: str) -> None:
    assert not tells_out_of_memory(line)
