"""What the end of a log says about memory and GPUs; the lines are as the programs print them."""

from __future__ import annotations

import pytest

from hpcsched.launch.tails import gpu_failure_in, tells_out_of_memory


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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
            "uncorrectable ECC error encountered",
        ),
        (
            "NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'",
            "uncorrectable ECC error encountered",
        ),
        (
            "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
            "uncorrectable NVLink error detected during the execution",
        ),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). [...] Error 802: system not yet initialized",
            "Error 802: system not yet initialized",
        ),
        ("RuntimeError: CUDA error: unknown error", "CUDA error: unknown error"),
        ("n1:1:2 [0] NCCL WARN Cuda failure 999 'unknown error'", "Cuda failure 999 'unknown error'"),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", "GPU is lost"),
    ],
)
def test_a_gpu_that_fails_by_itself_is_told_by_its_words(line: str, words: str) -> None:
    assert gpu_failure_in(f"Traceback (most recent call last):\n{line}\nframe #0: c10::Error") == words


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: hardware stack error",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
        "logging: system not yet initialized",
        "ValueError: unknown error",
    ],
)
def test_a_mistake_of_a_script_is_no_failed_gpu(line: str) -> None:
    assert gpu_failure_in(line) == ""
