"""SIGKILL of the driver at random points: `python -m tests.faults.driver_kill --runs 300 --simulated --json [--seed S]`.

Prints {"runs", "resumed", "lost_results", "double_held", "other_best"}: runs that came to their end, answered results that the
journal does not hold, atoms that the log shows with two trials at once, and runs whose best trial is another one than
without the crash. Exit code 0 when every run was resumed and the others are 0.

Simulated: the core over the simulated world, a real journal cut at any byte, the driver's own replay; one to three
kills a run. Each run is done twice: with the time lost taken out of the clock, for the best trial; and as it is, with crashes,
hangs, lost nodes, slow saves and silent nodes besides, for the invariants. Without `--simulated`: real drivers, supervisors and
ranks (light trials) on this computer, SIGKILL at a random moment.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from hpcsched.core.enums import ExperimentState
from hpcsched.core.settings import (
    AshaSettings,
    FifoSettings,
    HyperSchedSettings,
    PolicySettings,
    RasdaSettings,
    Settings,
    TimeoutSettings,
)
from hpcsched.eventlog.replay import replay
from hpcsched.runfolder import RunFolder
from hpcsched.sim.faults import FaultSettings
from hpcsched.sim.machine import simulated_machine
from hpcsched.sim.request import NO_TIMEOUTS
from hpcsched.sim.world import WorldSettings
from tests.support.lives import (
    LostError,
    Scenario,
    check_acknowledged,
    double_holdings,
    live,
    restores_what_is_not_there,
)


@dataclass
class Tally:
    runs: int = 0
    resumed: int = 0
    lost_results: int = 0
    double_held: int = 0
    other_best: int = 0
    complaints: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, int]:
        return {
            "runs": self.runs, "resumed": self.resumed, "lost_results": self.lost_results, "double_held": self.double_held,
            "other_best": self.other_best,
        }  # fmt: skip

    @property
    def good(self) -> bool:
        return self.resumed == self.runs and not (self.lost_results or self.double_held or self.other_best)


EXACT: tuple[PolicySettings, ...] = (FifoSettings(), AshaSettings(), AshaSettings(stopping=True))
ROUGH: tuple[PolicySettings, ...] = (
    *EXACT,
    RasdaSettings(),
    HyperSchedSettings(),
    HyperSchedSettings(entrance="reversible", keep_paused=True, protect_leader=True, shrink_pays=True),
)


def exact_scenario(seed: int, policy: PolicySettings) -> Scenario:
    """A checkpoint after each iteration, which costs nothing: all that a crash costs is time."""
    rng = Random(f"exact {seed}")
    return Scenario(
        seed=seed,
        settings=Settings(
            policy=policy, grace_period=1, max_iterations=rng.choice([9, 27]), reduction_factor=3, timeouts=NO_TIMEOUTS
        ),
        machine=simulated_machine(rng.choice([2, 4, 7])),
        deadline_s=None,
        num_trials=rng.randrange(8, 24),
        world=WorldSettings(start_up_s=rng.choice([0.0, 0.7]), save_s=0.0, save_budget=1.0),
    )  # fmt: skip


def rough_scenario(seed: int, policy: PolicySettings) -> Scenario:
    """Everything that the simulated world can do to a run."""
    rng = Random(f"rough {seed}")
    return Scenario(
        seed=seed,
        settings=Settings(
            policy=policy, grace_period=1, max_iterations=rng.choice([9, 27, 81]), reduction_factor=3,
            timeouts=TimeoutSettings(start_s=20.0, silence_s=15.0, preempt_grace_s=8.0, kill_wait_s=3.0),
        ),
        machine=simulated_machine(rng.choice([4, 8, 12])),
        deadline_s=rng.uniform(40.0, 120.0),
        num_trials=rng.randrange(8, 40),
        world=WorldSettings(
            start_up_s=rng.uniform(0.0, 2.0), save_s=rng.uniform(0.0, 0.5), save_budget=rng.choice([None, 0.05, 0.5]),
            verdict_delay_s=rng.choice([0.0, 0.05]), boundary_s=rng.choice([None, 0.3]), kill_s=0.2,
        ),
        faults=FaultSettings(
            crash_rate=rng.choice([0.0, 0.01]), out_of_memory=0.2, hang_rate=rng.choice([0.0, 0.005]), refuse=0.05,
            refuse_s=2.0, launch_fail=0.02, never_start=0.02, late_exit=0.05, late_exit_s=6.0, bad_metric=0.02,
            repeat_report=0.02, lost_report=0.02, save_fail=0.05, unproven=0.2, unproven_s=9.0,
            node_rate=rng.choice([0.0, 0.005]), node_back_s=10.0,
        ),
    )  # fmt: skip


def simulated(runs: int, seed: int, tally: Tally) -> None:
    for number in range(seed, seed + runs):
        tally.runs += 1
        rng = Random(f"kill {number}")
        try:
            with tempfile.TemporaryDirectory() as folder:
                _exact(number, Path(folder), rng, tally)
                _rough(number, Path(folder), rng, tally)
            tally.resumed += 1
        except LostError as error:
            tally.lost_results += 1
            tally.complaints.append(f"seed {number}: {error}")
        except Exception:
            tally.complaints.append(f"seed {number}: {traceback.format_exc(limit=-4)}")


def _exact(number: int, folder: Path, rng: Random, tally: Tally) -> None:
    scenario = exact_scenario(number, EXACT[number % len(EXACT)])
    whole = live(scenario, RunFolder(folder / "whole"), [], rng)
    num = len(whole.acknowledged)
    broken = live(scenario, RunFolder(folder / "broken"), _kills(rng, num), rng)
    _check(broken.folder, number, tally)
    check_acknowledged(broken, broken.folder)
    assert broken.num_lives > 1
    assert broken.state is ExperimentState.FINISHED
    if whole.best != broken.best:
        tally.other_best += 1
        tally.complaints.append(
            f"seed {number}: the best is {broken.best}, without the crash {whole.best} ({scenario.settings.policy})"
        )


def _rough(number: int, folder: Path, rng: Random, tally: Tally) -> None:
    scenario = rough_scenario(number, ROUGH[number % len(ROUGH)])
    lives = live(scenario, RunFolder(folder / "rough"), _kills(rng, 600), rng, lossless=False)
    _check(lives.folder, number, tally)
    check_acknowledged(lives, lives.folder)
    assert lives.state in (ExperimentState.FINISHED, ExperimentState.FAILED), lives.state


def _kills(rng: Random, num_events: int) -> list[int]:
    return sorted({rng.randrange(1, num_events) for _ in range(rng.choice([1, 1, 2, 3]))})


def _check(folder: RunFolder, number: int, tally: Tally) -> None:
    wrong = double_holdings(folder)
    tally.double_held += len(wrong)
    tally.complaints += [f"seed {number}: {line}" for line in wrong]
    others = restores_what_is_not_there(folder)
    assert not others, others
    replay(folder)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.driver_kill", description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    tally = Tally()
    began = time.monotonic()
    if given.simulated:
        simulated(given.runs, given.seed, tally)
    else:
        from tests.faults.real_kills import real

        real(given.runs, given.seed, tally)
    for complaint in tally.complaints:
        print(complaint, file=sys.stderr)
    result: dict[str, Any] = tally.as_json()
    if given.json:
        print(json.dumps(result))
    else:
        print(
            ", ".join(f"{name} {value}" for name, value in result.items()),
            f"({time.monotonic() - began:.0f} s)",
        )
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
