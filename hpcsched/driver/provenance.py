"""Where a result came from: versions, commit, machine. For the journal's header and `log.h5`."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import subprocess
from pathlib import Path
from typing import Any

from hpcsched import __version__
from hpcsched.topology.machine import Machine

PACKAGES = ("torch", "numpy", "msgspec", "pyzmq", "h5py", "mpi4py")


def provenance(project: Path, machine: Machine, slurm_version: str | None) -> dict[str, Any]:
    """JSON values only. What cannot be found out is left out; nothing here may fail a run."""
    facts: dict[str, Any] = {
        "hpcsched": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "host": socket.gethostname(),
        "nodes": {node.name: list(node.gpus) for node in machine.nodes},
        "machine_source": machine.source,
    }
    if slurm_version is not None:
        facts["slurm"] = slurm_version
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = git_commit(project)
    if commit is not None:
        facts["git_commit"] = commit
    return facts


def git_commit(project: Path) -> str | None:
    """The commit of the project that holds the experiment file, "-dirty" when it has changes; None without one."""
    try:
        commit = _git(project, "rev-parse", "HEAD")
        dirty = _git(project, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("-dirty" if dirty else "")


def _git(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        ("git", "-C", str(folder), *argv),
        capture_output=True,
        check=True,
        timeout=5.0,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    return done.stdout.strip()
