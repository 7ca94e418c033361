"""Stands in for nvidia-ml-py: put this folder on PYTHONPATH. The machine is the JSON file that FAKE_NVML names:

{"devices": [{"uuid": "GPU-a", "used_mb": 1, "processes": [[PID, MB], ...]}, ...], "broken": "library" | "processes" | "hangs"}

A device with "error": NUMBER (of nvmlReturn_t) is none that a handle can be had of; by UUID, a lost one (15) spoils all others.
Names and what they return are those of nvidia-ml-py 12.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int, text: str = "") -> None:
        super().__init__(text or f"code {value}")
        self.value = value


def _state() -> dict[str, Any]:
    state: dict[str, Any] = json.loads(Path(os.environ["FAKE_NVML"]).read_text())
    return state


def nvmlInit() -> None:  # noqa: N802 - the library's name
    if _state().get("broken") == "library":
        raise NVMLError(18, "Driver/library version mismatch")
    if _state().get("broken") == "hangs":
        time.sleep(3600)


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:  # noqa: N802
    devices = _state()["devices"]
    if not 0 <= index < len(devices):
        raise NVMLError(2, "Invalid Argument")
    if "error" in devices[index]:
        raise NVMLError(devices[index]["error"])
    return dict(devices[index])


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return len(_state()["devices"])


def nvmlDeviceGetHandleByUUID(uuid: str) -> dict[str, Any]:  # noqa: N802
    for device in _state()["devices"]:
        if device.get("error") == 15 or ("error" in device and device["uuid"] == uuid):
            raise NVMLError(device["error"])
        if device["uuid"] == uuid:
            return dict(device)
    raise NVMLError(6, "Not Found")


def nvmlDeviceGetUUID(handle: dict[str, Any]) -> str:  # noqa: N802
    return str(handle["uuid"])


def nvmlDeviceGetMemoryInfo(handle: dict[str, Any]) -> SimpleNamespace:  # noqa: N802
    return SimpleNamespace(total=80 << 30, used=handle.get("used_mb", 0) << 20)


def nvmlDeviceGetComputeRunningProcesses(handle: dict[str, Any]) -> list[SimpleNamespace]:  # noqa: N802
    if _state().get("broken") == "processes":
        raise NVMLError(3, "Not Supported")
    return [
        SimpleNamespace(pid=pid, usedGpuMemory=None if mb is None else mb << 20)
        for pid, mb in handle.get("processes", [])
    ]


def nvmlSystemGetProcessName(pid: int) -> str:  # noqa: N802
    return f"/usr/bin/program-{pid}"
