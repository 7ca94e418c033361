"""How often the kernel killed a process of ours for memory: memory cgroups, version 1 and 2 (cgroups(7))."""

from __future__ import annotations

from pathlib import Path

LEVELS = 3
"""Slurm sets limits on the task, the step and the job."""


def oom_files(proc_cgroup: str, root: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Files with the counters of this process's memory cgroup and those above it. `proc_cgroup`: /proc/self/cgroup."""
    files: list[Path] = []
    for line in proc_cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, name = root, "memory.events"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.oom_control"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        files += [
            base.joinpath(*parts[:depth], name)
            for depth in range(len(parts), max(0, len(parts) - LEVELS), -1)
        ]
    return files


def count_oom_kills(files: list[Path]) -> int:
    """Sum of the `oom_kill` counters; files that cannot be read count nothing."""
    total = 0
    for file in files:
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdecimal():
                total += int(value)
    return total
