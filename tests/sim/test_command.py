"""`hpcsched simulate` and the sweeps, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcsched.config.load import load_experiment
from hpcsched.sim.options import read_simulation
from hpcsched.sim.request import requests_of
from hpcsched.sim.sweep import perform, perform_all

ROOT = Path(__file__).parent.parent.parent
FOUR = ROOT / "jobs" / "simulation" / "paper_4atoms.toml"
TRIALS = [{"b0": 0.01 * (i % 17), "b1": 0.3, "b2": 0.1} for i in range(40)]


def command(*arguments: str | Path, code: int = 0, module: str = "hpcsched", columns: int = 160) -> str:
    """What it prints."""
    start = (
        [sys.executable, "-c", "from hpcsched.cli.main import main; main()"]
        if module == "hpcsched"
        else [sys.executable, "-m", module]
    )
    done = subprocess.run(
        [*start, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": str(columns), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout if code == 0 else done.stderr


def seed_folder(folder: Path) -> Path:
    configs = folder / "configs"
    configs.mkdir()
    for seed in (0, 7):
        lines = [json.dumps(trial) for trial in TRIALS[seed:]]
        (configs / f"seed-{seed:02d}.jsonl").write_text("\n".join(lines) + "\n")
    return configs


def test_json_has_the_names_that_others_rely_on(tmp_path: Path) -> None:
    output = command(
        "simulate", FOUR, "--policy", "hypersched", "--policy", "asha", "--configs", seed_folder(tmp_path),
        "--deadline", "4", "--atoms", "2", "--scaling", "sqrt", "--restart-cost", "0.1", "--json", "--jobs", "1",
    )  # fmt: skip
    runs = json.loads(output)["runs"]
    assert [(run["policy"], run["seed"]) for run in runs] == [
        ("hypersched", 0), ("hypersched", 7), ("asha", 0), ("asha", 7)
    ]  # fmt: skip
    for run in runs:
        assert list(run) == [
            "policy", "seed", "best_metric", "best_iteration", "best_trial_id", "trials_started", "finished_s", "atom_seconds"
        ]  # fmt: skip
        assert list(run["atom_seconds"]) == ["training", "restart", "idle"]
        assert sum(run["atom_seconds"].values()) == pytest.approx(2 * run["finished_s"])
        assert run["atom_seconds"]["restart"] >= 0.101 * run["trials_started"] * 0.9
        assert 0 < run["best_metric"] < 1
        assert 0 <= run["best_trial_id"] < run["trials_started"] <= 40


def test_a_table_and_a_figure_for_people(tmp_path: Path) -> None:
    figure = tmp_path / "comparison.svg"
    output = command(
        "simulate", FOUR, "--policy", "fifo", "--policy", "asha", "--deadline", "3s", "--figure", figure
    )
    for word in ("fifo", "asha", "score", "trials", "restarts", "idle", "4 atoms, deadline 3 s, 1 seed"):
        assert word in output
    assert figure.read_text().startswith("<?xml")


def test_a_curve_table_with_less_is_better(tmp_path: Path) -> None:
    table = tmp_path / "loss.csv"
    rows = [f"c{c},0,{k},{1.0 / k + 0.1 * c},{k}" for c in range(3) for k in range(1, 21)]
    table.write_text("config,study,step,metric,train_s\n" + "\n".join(rows) + "\n")
    output = command(
        "simulate", FOUR, "--policy", "fifo", "--workload", f"table:{table}", "--mode", "min", "--deadline", "12",
        "--atoms", "8", "--json",
    )  # fmt: skip
    (run,) = json.loads(output)["runs"]
    # Eight trials at once, a second an iteration, less the start-up of 0.001: eleven results each by 12 s.
    assert run["best_iteration"] == 11
    assert run["best_metric"] == pytest.approx(1 / 11)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "best"], "there is no policy"),
        (["--workload", "table:nowhere.csv"], "no such file"),
        (["--deadline", "soon"], "--deadline soon"),
        (["--restart-cost", "-1"], "--restart-cost -1"),
        (["--configs", "nowhere"], "no seed-NN.jsonl"),
        (["--figure", "x.bmp"], ".svg"),
        (["--figure", "nowhere/x.svg"], "no folder"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_simulated(arguments: list[str], says: str) -> None:
    assert says in command("simulate", FOUR, *arguments, code=2)


def test_an_experiment_file_without_a_simulation_table_is_the_papers_workload(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('[experiment]\nmetric = "x"\ndeadline = "2s"\n[scheduler]\npolicy = "asha"\n')
    assert json.loads(command("simulate", file, "--json"))["runs"][0]["trials_started"] > 0


def requests(num_seeds: int = 3, **given: Any) -> list[Any]:
    spec = load_experiment(FOUR)
    return requests_of(
        spec, read_simulation(spec), ["hypersched", "asha"], num_seeds=num_seeds, deadline_s=3.0, **given
    )


def test_runs_are_in_the_order_of_their_requests_on_any_number_of_processes() -> None:
    wanted = requests()
    alone = [perform(request) for request in wanted]
    assert perform_all(wanted, num_workers=2) == alone
    assert perform_all(wanted, num_workers=1) == alone


def test_a_search_that_learns_is_told(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the optuna extra is not installed")
    file = tmp_path / "tpe.toml"
    file.write_text(
        FOUR.read_text().replace(
            "[search]",
            '[search]\nsampler = "optuna"\nspace = { b0 = { uniform = [0.0, 0.5] }, b1 = { uniform = [0.0, 1.0] }, '
            "b2 = { uniform = [0.0, 1.0] } }",
        ).replace("[simulation]", '[simulation]\nconfigs = "search"\nsubmit = "when_free"')
    )  # fmt: skip
    spec = load_experiment(file)
    table = read_simulation(spec)
    learned, drawn = (
        perform(
            requests_of(spec, msgspec.structs.replace(table, configs=configs), ["asha"], deadline_s=20.0)[0]
        )
        for configs in ("search", "workload")
    )
    assert learned.trials_started > 20
    assert learned.best_metric is not None
    assert drawn.best_metric is not None
    assert learned.best_metric != drawn.best_metric


def test_a_sweep_without_mpi_runs_here(tmp_path: Path) -> None:
    output = command(
        FOUR, "--policy", "asha", "--seeds", "2", "--atoms", "2,4", "--deadlines", "1,2", "--scalings", "none", "--jobs", "1",
        module="analysis.sweep",
    )  # fmt: skip
    runs = json.loads(output)["runs"]
    assert [(run["atoms"], run["deadline_s"], run["seed"]) for run in runs] == [
        (a, t, seed) for a in (2, 4) for t in (1.0, 2.0) for seed in (0, 1)
    ]


def test_a_sweep_with_wrong_input_says_so() -> None:
    assert "4,x" in command(FOUR, "--atoms", "4,x", module="analysis.sweep", code=2)


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_table_is_whole_on_eighty_columns(seeds: int) -> None:
    text = command(
        "simulate", FOUR, "--policy", "hypersched", "--policy", "asha", "--deadline", "4", "--atoms", "2",
        "--seeds", str(seeds), "--jobs", "1", columns=80,
    )  # fmt: skip
    assert "…" not in text
    lines = text.splitlines()
    assert [line.split()[0] for line in lines if line.strip()][-2:] == ["hypersched", "asha"]
    assert ("spread" in text) == (seeds > 1)
