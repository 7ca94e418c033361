"""What one call of `run_experiment` is asked for, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hpcsched.core.enums import ExperimentState
from hpcsched.runfolder import RunFolder


class Request(msgspec.Struct, frozen=True):
    """What the command line (or `hpcsched.start`) asks for."""

    target: Path
    """An experiment file, or with `resume` also a run folder."""
    run_dir: Path | None = None
    overrides: dict[str, Any] = {}
    """Dotted keys of the experiment file, such as {"experiment.deadline": "60s"}."""
    resume: bool = False


class Result(msgspec.Struct, frozen=True):
    state: ExperimentState
    exit_code: int
    folder: RunFolder
    best: dict[str, Any] | None
    why: str = ""
    scaling: str = ""
    """What was measured of throughput and restarts, beside what was assumed."""
    is_told: bool = False
    """The ending has been printed already, by a driver that ran on a node."""


def best_facts(folder: RunFolder) -> dict[str, Any] | None:
    """What `best/best.json` says; None where there is no best model yet."""
    file = folder.best / "best.json"
    try:
        facts: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return facts
