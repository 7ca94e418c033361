"""How much memory this process may still take: of the host, and of each cgroup that it is in."""

from __future__ import annotations

from pathlib import Path


def available_bytes(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """None where nothing can be read. Page cache counts as available, also that of a cgroup."""
    found = [number for number in (_of_host(proc), *_of_cgroups(proc, cgroups)) if number is not None]
    return min(found) if found else None


def _of_host(proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _of_cgroups(proc: Path, root: Path) -> list[int | None]:
    """What is left in the memory cgroup of this process and in all above it (cgroups(7); versions 2 and 1)."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[int | None] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, names, cache = root, ("memory.max", "memory.current"), "inactive_file"
        elif "memory" in controllers.split(","):
            base, names, cache = (
                root / "memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                "total_inactive_file",
            )
        else:
            continue
        folder = base / path.lstrip("/")
        while folder.is_relative_to(base):
            found.append(_left_in(folder, names, cache))
            if folder == base:
                break
            folder = folder.parent
    return found


def _left_in(folder: Path, names: tuple[str, str], cache: str) -> int | None:
    try:
        limit, used = ((folder / name).read_text().strip() for name in names)
        if limit == "max":
            return None
        spare = 0
        for line in (folder / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == cache:
                spare = int(value)
        return max(0, int(limit) - int(used) + spare)
    except (OSError, ValueError):
        return None
