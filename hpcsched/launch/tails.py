"""The end of a log as people can read it, and what it says about memory and about GPUs."""

from __future__ import annotations

import re
from pathlib import Path

TAIL_BYTES = 2000
LONG_TAIL_BYTES = 16000
"""An error of CUDA that a thread of torch has met stands above the frames of C++ that it prints, some thousand bytes."""
LINE_CHARACTERS = 400
"""What is kept of a line, half of it from each end: who prints a tensor or a base64 text still sees what the error was."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|OutOfMemoryError|\bMemoryError\b|std::bad_alloc|can't allocate memory|CUDA error: out of memory"
    r"|Detected \d+ oom[-_]kill event|HIP out of memory"
    r"|CU[A-Z]+_(?:STATUS_)?ALLOC_FAILED"  # CUBLAS_STATUS_, CUDNN_STATUS_, CUFFT_, ...
    r"|Cuda failure (?:\d+ )?'out of memory'"  # NCCL
    # A worker process has no log of its own, and nobody else sends it SIGKILL while its rank lives.
    r"|DataLoader worker \(pid[^)]*\) is killed by signal: Killed"
)
_GPU_FAILED = re.compile(
    # What no script can do wrong: the texts of cudaErrorECCUncorrectable, NvlinkUncorrectable, SystemNotReady and Unknown (which is
    # what a GPU that falls off the bus may look like), and NVML's and the kernel's words. Not those that mostly are mistakes
    # of a kernel: unspecified launch failure, illegal or misaligned address, hardware stack error.
    r"uncorrectable (?:ECC error encountered|NVLink error detected(?: during the execution)?)|CUDA_ERROR_ECC_UNCORRECTABLE"
    r"|(?:CUDA error:|Error 802:|Cuda failure 802) '?system not yet initialized"
    r"|(?:CUDA|HIP) error: unknown error|Cuda failure 999 'unknown error'"
    r"|GPU has fallen off the bus|\bGPU is lost\b"
)


def clean(text: str) -> str:
    """Without terminal escapes and control characters; of a line that was drawn over (progress bars) its last form."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub("", text)


def tail_of(file: Path, num_bytes: int = TAIL_BYTES) -> str:
    """The last `num_bytes` of a file, cleaned; "" when there is none. Reads only its end, however large it is."""
    try:
        with file.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - num_bytes))
            data = log.read(num_bytes)
    except OSError:
        return ""
    text = clean(data.decode("utf-8", "replace")).strip()
    return "\n".join(_shortened(line) for line in text.split("\n"))


def _shortened(line: str) -> str:
    if len(line) <= LINE_CHARACTERS:
        return line
    half = (LINE_CHARACTERS - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


def tells_out_of_memory(text: str) -> bool:
    """The text ends as programs do that ran out of memory (host or GPU)."""
    return _OUT_OF_MEMORY.search(text) is not None


def gpu_failure_in(text: str) -> str:
    """What the text says of a GPU, or a node's GPUs, that have failed by themselves, in its own words; "": nothing."""
    match = _GPU_FAILED.search(text)
    return "" if match is None else match[0].strip()
