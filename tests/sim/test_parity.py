"""Agreement with the 2020 program, and the statistical cases of algorithms.md section 6."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from analysis import parity
from hpcsched.core.enums import PreemptReason
from hpcsched.core.events import ResultReported, TrialStarted
from hpcsched.core.settings import AshaSettings, HyperSchedSettings, ScalingSettings
from hpcsched.sim.paper import PaperWorkload
from hpcsched.sim.simulate import SimulatedRun, simulate
from hpcsched.sim.world import WorldSettings
from tests.support.simulated import Log, paper_settings


def test_the_first_resize_is_at_the_sixth_result() -> None:
    """T19: a single trial on 4 atoms, LINEAR, a step of 0.1, start-up 0.001. Cool-down 5 is counted down by each result and
    must be below zero: the first resize is at result 6, t = 0.001 + 6 * 0.1 = 0.601, to all 4 atoms; none before."""
    log = Log()
    simulate(
        paper_settings(HyperSchedSettings(), num_trials=1),
        PaperWorkload(0),
        num_atoms=4,
        deadline_s=30.0,
        observer=log,
    )
    event, _ = log.preemptions(PreemptReason.RESIZE)[0]
    assert isinstance(event, ResultReported)
    assert event.training_iteration == 6
    assert event.time == pytest.approx(0.601, abs=1e-9)
    assert len(log.starts()[0].placement.atoms) == 1
    assert len(log.starts()[1].placement.atoms) == 4


def mean_score(
    policy: AshaSettings | HyperSchedSettings, num_seeds: int = 20
) -> tuple[float, list[SimulatedRun]]:
    runs = [
        simulate(
            paper_settings(policy, num_trials=200),
            PaperWorkload(seed),
            num_atoms=4,
            deadline_s=30.0,
        )
        for seed in range(num_seeds)
    ]
    return fmean(run.best_metric or 0.0 for run in runs), runs


def test_statistical_parity_on_the_papers_workload() -> None:
    """T29: 20 seeds, N = 4, T = 30, LINEAR: the original reaches .72 +- .05, ASHA .545 +- .05 (sd of one seed about .07, of a
    mean of 20 about .016). The reversible entrance must be at least parity less .005 and use at least 95 % of T."""
    closing, _ = mean_score(HyperSchedSettings())
    asha, _ = mean_score(AshaSettings())
    reversible, runs = mean_score(HyperSchedSettings(entrance="reversible", keep_paused=True))
    assert closing == pytest.approx(0.72, abs=0.05)
    assert asha == pytest.approx(0.545, abs=0.05)
    assert reversible >= closing - 0.005
    assert fmean(run.finished_s / 30.0 for run in runs) >= 0.95
    idle = fmean(run.atom_seconds.idle / (4 * 30.0) for run in runs)
    assert idle <= 0.05


@pytest.mark.parametrize("num_atoms", [4, 8])
def test_where_nothing_scales_allocation_changes_nothing(num_atoms: int) -> None:
    """T30: scaling NONE: s(new) (Tleft - S) / (s(cur) Tleft) = 1 - S / Tleft < 1.1, so no resize passes the test, and the run
    is the run without allocation, event for event."""
    for seed in range(4):
        logs = []
        for policy in (HyperSchedSettings(), HyperSchedSettings(allocation="none")):
            log = Log()
            run = simulate(
                paper_settings(policy, num_trials=200, scaling=ScalingSettings(assume="none")),
                PaperWorkload(seed),
                num_atoms=num_atoms,
                deadline_s=20.0,
                scaling="none",
                observer=log,
            )
            assert run.num_resizes == 0
            logs.append(log.encoded())
        assert logs[0] == logs[1]


@pytest.mark.parametrize("scaling", ["linear", "sqrt"])
def test_a_start_up_of_a_fifth_of_the_deadline_allows_no_resize(scaling: str) -> None:
    """T30: start-up 20 % of T (2 of 10 s, beside the 0.001 of every start) on the paper's figure-10 sizes: zero resizes for
    LINEAR and SQRT. (Without that 0.001 four atoms come to an exact tie, 4.8 s left and 4.8 needed, that rounding decides.)"""
    for num_atoms in (4, 8, 16):
        for seed in range(3):
            run = simulate(
                paper_settings(
                    HyperSchedSettings(),
                    num_trials=200,
                    scaling=ScalingSettings(assume=scaling),  # type: ignore[arg-type]  # one of the two words
                ),
                PaperWorkload(seed),
                num_atoms=num_atoms,
                deadline_s=10.0,
                scaling=scaling,  # type: ignore[arg-type]  # one of the two words
                world=WorldSettings(start_up_s=2.001),
            )
            assert run.num_resizes == 0


def test_set_up_times_are_what_the_world_took() -> None:
    log = Log()
    simulate(
        paper_settings(HyperSchedSettings(), num_trials=5),
        PaperWorkload(0),
        num_atoms=2,
        deadline_s=5.0,
        world=WorldSettings(start_up_s=0.25),
        observer=log,
    )
    times = [event.setup_time_s for event, _ in log.pairs if isinstance(event, TrialStarted)]
    assert times
    assert times == pytest.approx([0.25] * len(times))


@pytest.mark.parametrize("num_seeds", [3, pytest.param(20, marks=pytest.mark.long)])
def test_ours_reaches_what_the_original_reached_on_the_same_trials(original: Path, num_seeds: int) -> None:
    """Each cell of results.csv: the mean of ours at least that of the original less 0.02, and every larger difference, either
    way, has its explanation. (Seen: -0.001 to +0.007 over 20 seeds; the noise of curves is drawn anew.)"""
    results = parity.compare(original, num_seeds, num_workers=1 if num_seeds < 20 else None)
    assert len(results) == 24
    for result in results:
        assert result.difference >= -parity.TOLERANCE, result
        if abs(result.difference) > parity.TOLERANCE:
            assert result.explanation, (
                f"{result.cell}: differs by {result.difference:+.3f} and nobody says why"
            )
    assert fmean(result.difference for result in results) >= -0.005
