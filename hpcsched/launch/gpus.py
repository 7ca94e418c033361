"""What NVML says of the promised GPUs before ranks start on them: which they are, and whether somebody else is there.

Only looked at where the extra `gpu` (nvidia-ml-py) is installed and the driver's library answers; whatever NVML cannot or will
not tell (other vendors, containers without it, virtual GPUs) is left out and never stops a launch. A GPU that NVML says is lost
does: no rank could work on it. Names of calls: NVML API reference, "Device Queries". MIG instances are asked by their UUID, as whole
GPUs are.
"""

from __future__ import annotations

import contextlib
import pwd
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcsched.launch.devices import MismatchError
from hpcsched.topology.facts import is_mig

LIMIT_S = 10.0
"""Longest wait for NVML: a node without persistence mode wakes its GPUs first."""
SETTLE_S = 3.0
"""The memory of a process that has just ended may be shown for so long."""
AGAIN_S = 0.1
MUCH_MB = 1024
"""Memory in use that nobody is named for: more than the driver's own."""
SERVERS = ("nvidia-cuda-mps",)
"""How the names of processes begin that belong to the node, not to a user: of nvidia-cuda-mps-server and -control the kernel
shows no more than that (proc(5), /proc/PID/comm: 15 characters)."""
_MB = 1 << 20
_NOT_FOUND, _IS_LOST, _RESET_REQUIRED = 6, 15, 16
"""Of nvmlReturn_t."""
_BROKEN = {
    _IS_LOST: "has fallen off the bus or cannot be reached (NVML: GPU is lost)",
    _RESET_REQUIRED: "has to be reset (NVML: reset required)",
}


class Stranger(msgspec.Struct, frozen=True):
    """A process on a GPU."""

    pid: int
    name: str
    memory_mb: int | None

    def __str__(self) -> str:
        memory = "some memory" if self.memory_mb is None else f"{self.memory_mb} MiB"
        return f"process {self.pid} ({self.name}) holds {memory}"


class Gpu(msgspec.Struct, frozen=True):
    """One device as NVML shows it; None: it does not say."""

    name: str
    """In CUDA_VISIBLE_DEVICES."""
    uuid: str | None
    used_mb: int | None = None
    processes: tuple[Stranger, ...] | None = None
    broken: str = ""
    """Why nothing can run on it; "": NVML knows no reason."""
    missing: bool = False
    """NVML knows no device of that UUID; it takes no shortened ones, which CUDA does."""


def look(devices: Sequence[str]) -> tuple[Gpu, ...] | None:
    """All of them; None without NVML, or when it does not answer within LIMIT_S."""
    found: list[tuple[Gpu, ...]] = []

    def ask() -> None:
        with contextlib.suppress(
            Exception
        ):  # of any kind: bindings differ, and a look must not stop a launch
            import pynvml

            pynvml.nvmlInit()
            found.append(tuple(_gpu(pynvml, name) for name in devices))

    thread = threading.Thread(target=ask, name="hpcsched-nvml", daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return found[0] if found else None


def check_gpus(
    node: str,
    gpus: Sequence[str],
    devices: Sequence[str],
    *,
    promised: Sequence[str] = (),
    ours: Collection[int] = (),
    look: Callable[[Sequence[str]], tuple[Gpu, ...] | None] = look,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """UUIDs of the devices, () where unknown. Raises MismatchError when they are not what was promised, broken, or not free.

    `gpus`: their names in placements; `devices`: in CUDA_VISIBLE_DEVICES; `promised`: UUIDs that the probe saw, () where it saw
    none; `ours`: processes that do not count."""
    for _ in range(round(SETTLE_S / AGAIN_S)):
        seen = look(devices)
        if seen is None:
            return ()
        broken = {
            gpu: f"{_named(gpu, each)} {each.broken or 'is not there any more (NVML: not found)'}"
            for gpu, each in zip(gpus, seen, strict=True)
            if each.broken or (each.missing and each.name in promised)
        }
        if broken:
            raise MismatchError(
                f"{node}: {'; '.join(broken.values())}. No rank can work there; nvidia-smi on that node says more",
                tuple(broken),
            )
        taken = _taken(gpus, seen, ours)
        if not taken:
            break
        sleep(AGAIN_S)
    else:
        raise MismatchError(
            f"{node}: {'; '.join(taken.values())}. Somebody else uses what this job was given, or left it behind",
            tuple(taken),
        )
    by_uuid: dict[str, str] = {}
    for gpu, each in zip(gpus, seen, strict=True):
        if each.uuid is None:
            continue
        other = by_uuid.setdefault(each.uuid, gpu)
        if other != gpu:
            raise MismatchError(
                f"{node}: GPUs {other} and {gpu} are one and the same device, {each.uuid}: two ranks would share it",
                (other, gpu),
            )
    for gpu, each, uuid in zip(gpus, seen, promised, strict=False):
        if each.uuid is not None and uuid and each.uuid != uuid:
            raise MismatchError(
                f"{node}: GPU {gpu} was {uuid} when the machine was read and is {each.uuid} now", (gpu,)
            )
    return tuple(by_uuid) if len(by_uuid) == len(seen) else ()


def _taken(gpus: Sequence[str], seen: Sequence[Gpu], ours: Collection[int]) -> dict[str, str]:
    """GPUs that are not free -> who has them, in words."""
    taken: dict[str, str] = {}
    for gpu, each in zip(gpus, seen, strict=True):
        what = _named(gpu, each)
        if each.processes is not None:
            strangers = [
                str(process)
                for process in each.processes
                if process.pid not in ours and not process.name.startswith(SERVERS)
            ]
            if strangers:
                taken[gpu] = f"{what}: {', '.join(strangers)}"
        elif each.used_mb is not None and each.used_mb > MUCH_MB:
            taken[gpu] = f"{what}: {each.used_mb} MiB are in use already"
    return taken


def _named(gpu: str, seen: Gpu) -> str:
    return f"GPU {gpu}" + (f" ({seen.uuid})" if seen.uuid else "")


def _gpu(nvml: Any, name: str) -> Gpu:
    """An error of NVML says something of this device alone: the others are looked at all the same."""
    try:
        handle = _handle(nvml, name)
    except nvml.NVMLError as error:
        code = _code(error)
        uuid = None if name.isdecimal() else name
        return Gpu(
            name, uuid if code in _BROKEN else None, broken=_BROKEN.get(code, ""), missing=code == _NOT_FOUND
        )
    if handle is None:
        return Gpu(name, None)
    broken = ""

    def told(ask: Callable[[], Any]) -> Any:
        nonlocal broken
        try:
            return ask()
        except nvml.NVMLError as error:
            broken = broken or _BROKEN.get(_code(error), "")
            return None

    uuid = told(lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
    used = told(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used) // _MB)
    processes = told(
        lambda: tuple(
            Stranger(
                int(each.pid),
                _who(nvml, int(each.pid)),
                None if each.usedGpuMemory is None else int(each.usedGpuMemory) // _MB,
            )
            for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        )
    )
    return Gpu(name, uuid, used, processes, broken)


def _handle(nvml: Any, name: str) -> Any:
    """Of the device with this number or UUID; None where NVML cannot tell of it alone. Raises NVMLError."""
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    try:
        return _by_uuid(nvml, name)
    except nvml.NVMLError as error:
        if _code(error) != _IS_LOST:
            raise
        # Said of every UUID when *any* GPU is lost (NVML API reference, nvmlDeviceGetHandleByUUID). Those that are well are
        # found by their number; MIG instances have none.
        if is_mig(name):
            return None
        for number in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(name):
                    return handle
        raise


def _code(error: Exception) -> int:
    """nvmlReturn_t; 0: none."""
    return int(getattr(error, "value", 0))


def _by_uuid(nvml: Any, name: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(name)
    except TypeError:
        return nvml.nvmlDeviceGetHandleByUUID(name.encode())  # older bindings


def _who(nvml: Any, pid: int) -> str:
    """Program and user, as far as they can be seen from here."""
    name = "unknown"
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        with contextlib.suppress(nvml.NVMLError):
            name = Path(_text(nvml.nvmlSystemGetProcessName(pid))).name
    with contextlib.suppress(OSError, KeyError):
        name += f" of {pwd.getpwuid(Path(f'/proc/{pid}').stat().st_uid).pw_name}"
    return name


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
