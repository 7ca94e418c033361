"""Ours beside the 2020 program, on the same trials: `python -m analysis.parity [--data DIR] [--seeds N] [--json]`.

The original's scheduler objects were driven in virtual time on 20 seeds of its own synthetic workload: the trials of a
seed, in order, and what was reached are recorded (`hypersched-original/virtual`). Here our `hypersched` and `asha` get the
same trials. Only the noise of a learning curve (0.005, one number an iteration) is drawn anew. A step at one atom takes
0.1, a start or resize 0.001 and the restart cost; r = 5, R = 500, eta = 4.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from hpcsched.core.settings import AshaSettings, HyperSchedSettings, PolicySettings, ScalingSettings, Settings
from hpcsched.sim.options import SimulationTable
from hpcsched.sim.request import NO_TIMEOUTS
from hpcsched.sim.sweep import RunRequest, perform_all
from hpcsched.sim.world import WorldSettings

DATA = Path(__file__).parent.parent / "shared" / "data" / "hypersched-original" / "virtual"
BESIDE = Path(__file__).parent.parent.parent / "shared" / "data" / "hypersched-original" / "virtual"

START_UP_S = 0.001
TOLERANCE = 0.02


class Cell(NamedTuple):
    """What the original was run on."""

    atoms: int
    deadline_s: float
    restart_cost_s: float
    policy: str
    scaling: str


class CellResult(msgspec.Struct, frozen=True):
    """Means over the seeds."""

    cell: Cell
    ours: float
    original: float
    our_trials: float
    original_trials: float
    explanation: str

    @property
    def difference(self) -> float:
        return self.ours - self.original


EXPLANATIONS: dict[Cell, str] = {}
"""Why a mean differs by more than 0.02: the named difference in behaviour."""


def settings_of(policy: PolicySettings, scaling: str) -> Settings:
    """The original's constants; sizes are free and nobody saves, as there."""
    return Settings(
        policy=policy,
        grace_period=5,
        max_iterations=500,
        reduction_factor=4,
        multiple_of=1,
        num_trials=None,
        request_ahead=False,
        scaling=ScalingSettings(assume=scaling),  # type: ignore[arg-type]  # one of the three words
        timeouts=NO_TIMEOUTS,
        save_at_deadline=False,
    )


POLICIES: dict[str, PolicySettings] = {"asha": AshaSettings(), "hypersched": HyperSchedSettings()}


def read_original(folder: Path) -> dict[Cell, dict[int, dict[str, str]]]:
    """Rows of results.csv by cell and seed."""
    cells: dict[Cell, dict[int, dict[str, str]]] = {}
    with (folder / "results.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            cell = Cell(
                int(row["atoms"]),
                float(row["deadline"]),
                float(row["restart_cost"]),
                row["policy"],
                row["scaling"].lower(),
            )
            cells.setdefault(cell, {})[int(row["seed"])] = row
    return cells


def request_of(cell: Cell, seed: int, folder: Path, policy: PolicySettings | None = None) -> RunRequest:
    """Our run of one cell and seed."""
    return RunRequest(
        label=cell.policy,
        settings=settings_of(POLICIES[cell.policy] if policy is None else policy, cell.scaling),
        table=SimulationTable(
            scaling=cell.scaling,  # type: ignore[arg-type]  # one of the three words
            world=WorldSettings(start_up_s=START_UP_S + cell.restart_cost_s),
            atoms_per_node=cell.atoms,
        ),
        num_atoms=cell.atoms,
        deadline_s=cell.deadline_s,
        seed=seed,
        configs_file=folder / f"seed-{seed:02d}.jsonl",
    )


def compare(folder: Path, num_seeds: int = 20, num_workers: int | None = None) -> list[CellResult]:
    """Every cell of results.csv; both sides over the first `num_seeds` seeds."""
    original = read_original(folder)
    requests = [
        request_of(cell, seed, folder)
        for cell, rows in original.items()
        for seed in sorted(rows)
        if seed < num_seeds
    ]
    runs = iter(perform_all(requests, num_workers=num_workers))
    results = []
    for cell, rows in original.items():
        seeds = [seed for seed in sorted(rows) if seed < num_seeds]
        ours = [next(runs) for _ in seeds]
        results.append(
            CellResult(
                cell=cell,
                ours=fmean(run.best_metric or 0.0 for run in ours),
                original=fmean(float(rows[seed]["best"]) for seed in seeds),
                our_trials=fmean(run.trials_started for run in ours),
                original_trials=fmean(int(rows[seed]["trials"]) for seed in seeds),
                explanation=EXPLANATIONS.get(cell, ""),
            )
        )
    return results


def find_data() -> Path | None:
    """The recorded runs of the original, where they lie beside this checkout; None: nowhere."""
    return next((folder for folder in (DATA, BESIDE) if (folder / "results.csv").is_file()), None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.parity", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data", type=Path, default=None, help="folder of results.csv and seed-NN.jsonl")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    folder = options.data or find_data()
    if folder is None or not (folder / "results.csv").is_file():
        print("analysis.parity: no results.csv of the original here; say where with --data", file=sys.stderr)
        return 2
    results = compare(folder, options.seeds, options.jobs)
    if options.json:
        print(json.dumps([_as_json(result) for result in results]))
    else:
        print("atoms  deadline  restart  policy      scaling   ours   original   diff  trials (original)")
        for result in results:
            cell = result.cell
            mark = f"  {result.explanation}" if abs(result.difference) > TOLERANCE else ""
            print(
                f"{cell.atoms:5d} {cell.deadline_s:9g} {cell.restart_cost_s:8g}  {cell.policy:10s}  {cell.scaling:8s}"
                f" {result.ours:.3f}    {result.original:.3f}  {result.difference:+.3f}"
                f"  {result.our_trials:5.1f} ({result.original_trials:.1f}){mark}"
            )
    worst = min(result.difference for result in results)
    return 0 if worst >= -TOLERANCE else 1


def _as_json(result: CellResult) -> dict[str, Any]:
    return {
        **result.cell._asdict(),
        "ours": result.ours,
        "original": result.original,
        "our_trials": result.our_trials,
        "original_trials": result.original_trials,
        "explanation": result.explanation,
    }


if __name__ == "__main__":
    raise SystemExit(main())
