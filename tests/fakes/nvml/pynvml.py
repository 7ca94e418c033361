"""Stands in for nvidia-ml-py: put this folder on PYTHONPATH. The machine is the JSON file that FAKE_NVML names:

{"devices": [{"uuid": "GPU-a", "used_mb": 1, "processes": [[PID, MB], ...]}, ...], "broken": "library" | "processes" | "hangs"}

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
    pass


def _state() -> dict[str, Any]:
    state: dict[str, Any] = json.loads(Path(os.environ["FAKE_NVML"]).read_text())
    return state


def nvmlInit() -> None:  # noqa: N802 - the library's name
    if _state().get("broken") == "library":
        raise NVMLError("Driver/library version mismatch")
    if _state().get("broken") == "hangs":
        time.sleep(3600)


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:  # noqa: N802
    devices = _state()["devices"]
    if not 0 <= index < len(devices):
        raise NVMLError("Invalid Argument")
    return dict(devices[index])


def nvmlDeviceGetHandleByUUID(uuid: str) -> dict[str, Any]:  # noqa: N802
    for device in _state()["devices"]:
        if device["uuid"] == uuid:
            return dict(device)
    raise NVMLError("Not Found")


def nvmlDeviceGetUUID(handle: dict[str, Any]) -> str:  # noqa: N802
    return str(handle["uuid"])


def nvmlDeviceGetMemoryInfo(handle: dict[str, Any]) -> SimpleNamespace:  # noqa: N802
    return SimpleNamespace(total=80 << 30, used=handle.get("used_mb", 0) << 20)


def nvmlDeviceGetComputeRunningProcesses(handle: dict[str, Any]) -> list[SimpleNamespace]:  # noqa: N802
    if _state().get("broken") == "processes":
        raise NVMLError("Not Supported")
    return [
        SimpleNamespace(pid=pid, usedGpuMemory=None if mb is None else mb << 20)
        for pid, mb in handle.get("processes", [])
    ]


def nvmlSystemGetProcessName(pid: int) -> str:  # noqa: N802
    return f"/usr/bin/program-{pid}"
