"""Whether this process may be forked: not after it has started threads, and not after it has touched CUDA.

"Touched" is less than a context: `torch.cuda.is_available()` and `device_count()` initialize the driver (cuInit) and leave
`torch.cuda.is_initialized()` False, and in a fork of that process CUDA works no more (CUDA C++ Programming Guide; PyTorch,
"Multiprocessing best practices", poison fork). So the driver itself is asked, and so is torch, in a fork.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

DRIVER = "libcuda.so.1"
NOT_INITIALIZED, STUB = 3, 34
"""CUresult: the driver's answer to whatever is asked before cuInit, and the answer of what is no driver (a toolkit's stub of it)."""
TOUCHED = (
    "what was preloaded has touched CUDA, which then works in no process that is forked: let the modules that [trial] preload names ask "
    "nothing of CUDA while they are imported (is_available, device_count, get_device_name, a tensor on a GPU), or name them no more"
)


def why_cold() -> str | None:
    """Why this process may not be forked, or None."""
    torch = sys.modules.get("torch")
    # CUDA comes first: its driver starts threads, too, which would say less about what to do.
    if driver_answer() not in (None, NOT_INITIALIZED, STUB):
        return TOUCHED
    if torch is not None and torch.cuda.is_initialized():
        return TOUCHED
    num_threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208  (names are all that is wanted)
    if num_threads > 1:
        return f"what was preloaded has started {num_threads - 1} threads"
    if torch is not None and fork_is_poisoned(torch):
        return TOUCHED
    return None


def driver_answer() -> int | None:
    """CUresult of a question that changes nothing; None: no CUDA driver is loaded in this process. Loads none."""
    try:
        driver = ctypes.CDLL(DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
    except (OSError, AttributeError):
        return None


def fork_is_poisoned(torch: Any) -> bool:
    """What torch says in a fork: it marks a process only as it is forked, and the one that was forked never. Covers ROCm, too."""
    poisoned = getattr(torch.cuda, "_is_in_bad_fork", None)
    if poisoned is None:
        return False
    child = os.fork()
    if child == 0:
        try:
            os._exit(1 if poisoned() else 0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
