"""The paper's figures: every point is there, the pictures and the table are written, and the claims can come out either way."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from analysis import ablations
from hpcsched.sim.sweep import perform


def invented(score: float = 0.5) -> dict[ablations.Point, ablations.Means]:
    """Every point with the same numbers."""
    return {
        point: ablations.Means(score=score, trials=10, throughput=5, resizes=0, finished_s=10)
        for point in ablations.policies()
    }


def test_every_figure_has_its_points() -> None:
    """5: 4 atoms x 4 deadlines x 2 allocations x 2; 7: 6 cells x 11; 8: 2 x 4 x 5; 9: 9 x 2; 10: 12 x 3."""
    counts = [sum(point.figure == number for point in ablations.policies()) for number in (5, 7, 8, 9, 10)]
    assert counts == [64, 66, 40, 18, 36]


def test_a_point_runs_under_the_papers_constants() -> None:
    point = ablations.Point(10, "sqrt", 4, 10.0, "sqrt", 0.5)
    request = ablations.request_of(point, ablations.policies()[point], 3)
    assert (request.settings.grace_period, request.settings.max_iterations) == (5, 500)
    assert (request.settings.reduction_factor, request.settings.num_trials) == (4, 200)
    assert request.settings.scaling.assume == request.table.scaling == "sqrt"
    assert request.table.world.start_up_s == pytest.approx(0.501)
    assert perform(request).trials_started > 4


def test_no_profile_is_told_linear_while_the_truth_is_sqrt() -> None:
    point = ablations.Point(9, "no profile", 8, 10.0, "sqrt", 1.0)
    request = ablations.request_of(point, ablations.policies()[point], 0)
    assert request.table.scaling == "sqrt"
    assert getattr(request.settings.policy, "assume_linear", False)


def test_claims_can_fail_and_can_hold() -> None:
    """With all scores equal nothing gains from anything; what says "no worse" or "no difference" holds."""
    flat = {(claim.figure, claim.says): claim.holds for claim in ablations.claims(invented())}
    assert not flat[5, "speculative evaluation is up to 50 % better (allocation none)"]
    assert not flat[7, "0.1 explores too little and 1.0 cannot exploit"]
    assert not flat[8, "HyperSched beats ASHA wherever training scales (deadline 10)"]
    assert flat[9, "with a small delay profiling makes no difference"]
    assert flat[10, "at 20 % of the deadline there is no resize and all scalings coincide"]
    resized = {
        point: msgspec.structs.replace(means, resizes=1.0) if point.delay_s == 2.0 else means
        for point, means in invented().items()
    }
    changed = {(claim.figure, claim.says): claim.holds for claim in ablations.claims(resized)}
    assert not changed[10, "at 20 % of the deadline there is no resize and all scalings coincide"]


def test_figures_and_tables_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the analysis extra")
    files = ablations.draw(invented(), tmp_path, ["svg", "png"])
    assert sorted(file.name for file in files) == sorted(
        f"figure-{number}.{ending}" for number in (5, 7, 8, 9, 10) for ending in ("svg", "png")
    )
    assert all(file.stat().st_size > 5_000 for file in files)
    ablations.write_results(invented(), tmp_path / "results.csv")
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 1 + 224
    table = ablations.as_markdown(ablations.claims(invented()), 1)
    assert table.count("\n| ") == len(ablations.claims(invented())) + 1
