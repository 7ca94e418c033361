"""Where things lie in a run folder (mode 0700). The only place that spells these names."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


def neat(path: Path) -> Path:
    """Absolute, and without ".." where that leads to the same place (behind a symbolic link it may not); links stay as they are
    spelled, for the real path may not exist on other nodes."""
    whole = path.absolute()
    if ".." not in whole.parts:
        return whole
    shorter = Path(os.path.normpath(whole))
    return shorter if os.path.realpath(shorter) == os.path.realpath(whole) else whole


class RunFolder(msgspec.Struct, frozen=True):
    """Paths inside one run folder; creates nothing."""

    root: Path

    @property
    def experiment(self) -> Path:
        return self.root / "experiment.toml"

    @property
    def start(self) -> Path:
        return self.root / "start.json"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def lease(self) -> Path:
        return self.root / "driver.json"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    def order_keys(self, life: int) -> Path:
        """Of those who may give this driver life orders, and of its endpoint for them."""
        return self.keys / str(life) / "orders"

    @property
    def setup(self) -> Path:
        return self.root / "setup.json"

    @property
    def log(self) -> Path:
        return self.root / "log.h5"

    @property
    def machine(self) -> Path:
        return self.root / "machine.json"

    @property
    def profile(self) -> Path:
        return self.root / "profile.json"

    @property
    def picture(self) -> Path:
        return self.root / "picture.json"

    @property
    def trials(self) -> Path:
        return self.root / "trials"

    @property
    def best(self) -> Path:
        return self.root / "best"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def control(self) -> Path:
        return self.root / "control"

    @property
    def spares(self) -> Path:
        return self.root / "spares"

    def spare_file(self, number: int) -> Path:
        return self.spares / f"{number}.json"

    def segment(self, life: int) -> Path:
        return self.journal / f"{life:04d}.jsonl"

    def incarnation(self, trial_id: int, incarnation: int) -> Path:
        return self.trials / str(trial_id) / str(incarnation)

    def launch_file(self, trial_id: int, incarnation: int) -> Path:
        return self.incarnation(trial_id, incarnation) / "launch.json"

    def checkpoint(self, trial_id: int, incarnation: int, training_iteration: int) -> Path:
        return self.incarnation(trial_id, incarnation) / f"checkpoint-{training_iteration}"

    def rank_log(self, trial_id: int, incarnation: int, rank: int) -> Path:
        return self.incarnation(trial_id, incarnation) / f"rank-{rank}.log"

    def supervisor_log(self, trial_id: int, incarnation: int, node: str) -> Path:
        return self.incarnation(trial_id, incarnation) / f"supervisor-{node}.log"
