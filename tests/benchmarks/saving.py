"""What a checkpoint costs the training, written in the background and not: `python -m tests.benchmarks.saving [--json]`.

Two trials of one rank in this process, with real checkpoints on a real disk, take turns: each trains for a while and
reports, and a save is due after every report. Prints, as medians::

    {"megabytes": of the checkpoint,
     "waits_s": {"now": training waits for the whole save, "background": for the copy of the state},
     "ratio": the second by the first,
     "save_s": {"now", "background"}: from its begin until it is complete,
     "slower": steps while a background save writes, by steps while nothing does (in time; 1 is no difference)}

All numbers are of this machine, now: compare those of one run with each other.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from torch import nn

from hpcsched.wire import SavedCheckpoint
from tests.support.groups import HeardLine, launch, make_trial


class Turn:
    """One of the two trials."""

    def __init__(self, folder: Path, megabytes: float, *, background: bool) -> None:
        self.line = HeardLine()
        spec = launch(folder, checkpoint_budget=1e9, checkpoint_background=background, max_iterations=10**6)
        self.trial = make_trial(spec, self.line)
        # Weights and momentum, and the plain model beside them: three times the weights are written.
        width = max(16, round((megabytes * 1e6 / 4 / 3) ** 0.5))
        self.net = nn.Linear(width, width, bias=False)
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=1e-3, momentum=0.9)
        self.trial.track(model=self.net, optimizer=self.sgd)
        self.iterations = iter(self.trial)
        next(self.iterations)
        self.small = torch.ones(64, 64)

    def train(self, num_steps: int) -> float:
        """Seconds a step; the first changes every weight."""
        self.net(torch.ones(1, self.net.in_features)).sum().backward()
        self.sgd.step()
        began = time.monotonic()
        for _ in range(num_steps):
            (self.small @ self.small).sum().item()
        return (time.monotonic() - began) / num_steps

    def report(self) -> float:
        """Seconds until training goes on."""
        self.trial.report(accuracy=0.0)
        began = time.monotonic()
        next(self.iterations)
        return time.monotonic() - began

    @property
    def save_s(self) -> float:
        self.trial._wait_for_save()
        saved = self.line.of(SavedCheckpoint)[-1]
        assert isinstance(saved, SavedCheckpoint)
        return saved.save_s

    @property
    def num_bytes(self) -> int:
        return int(self.line.of(SavedCheckpoint)[-1].num_bytes)


def measure(folder: Path, megabytes: float, repeat: int) -> dict[str, object]:
    now = Turn(folder / "now", megabytes, background=False)
    aside = Turn(folder / "aside", megabytes, background=True)
    num_steps = 2000
    waits: dict[str, list[float]] = {"now": [], "background": []}
    saves: dict[str, list[float]] = {"now": [], "background": []}
    slower = []
    for turn in range(repeat + 1):
        now.train(1)
        waited_now = now.report()
        saved_now = now.save_s
        quiet_s = aside.train(num_steps)
        waited_aside = aside.report()
        busy_s = aside.train(num_steps)
        saved_aside = aside.save_s
        if turn == 0:
            continue  # imports, and the first touch of the copies' memory
        waits["now"].append(waited_now)
        waits["background"].append(waited_aside)
        saves["now"].append(saved_now)
        saves["background"].append(saved_aside)
        slower.append(busy_s / quiet_s)
    waits_s = {name: round(median(found), 5) for name, found in waits.items()}
    return {
        "megabytes": round(now.num_bytes / 1e6, 1),
        "waits_s": waits_s,
        "ratio": round(waits_s["background"] / waits_s["now"], 4),
        "save_s": {name: round(median(found), 5) for name, found in saves.items()},
        "slower": round(median(slower), 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.saving")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--megabytes", default="10,100,400", help="sizes of checkpoints")
    parser.add_argument("--repeat", type=int, default=5, help="medians of so many")
    options = parser.parse_args(arguments)
    found = []
    for megabytes in map(float, options.megabytes.split(",")):
        with tempfile.TemporaryDirectory(prefix="saving-", dir=Path.cwd()) as folder:
            found.append(measure(Path(folder), megabytes, options.repeat))
    if options.json:
        print(json.dumps(found))
        return 0
    for row in found:
        waits_s, save_s = row["waits_s"], row["save_s"]
        assert isinstance(waits_s, dict)
        assert isinstance(save_s, dict)
        print(
            f"{row['megabytes']} MB: training waits {waits_s['now']:.3f} s for a save, {waits_s['background']:.3f} s for one in the "
            f"background (ratio {row['ratio']}), which is complete after {save_s['background']:.3f} s; steps meanwhile take "
            f"{row['slower']} times as long"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
