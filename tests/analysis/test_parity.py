"""The command that prints ours beside the original."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import parity

HEADER = "seed,atoms,deadline,restart_cost,policy,scaling,best,best_iter,trials,results,end\n"


def folder_with(folder: Path, best: float) -> Path:
    (folder / "results.csv").write_text(HEADER + f"0,2,3,0.0,asha,LINEAR,{best},30,20,100,3.0\n")
    lines = [f'{{"b0": {0.01 * (i % 11)}, "b1": 0.5, "b2": 0.5}}' for i in range(50)]
    (folder / "seed-00.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_it_fails_where_ours_falls_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two atoms for 3 s cannot reach 0.9: the exit code says so; against 0.01 all is well."""
    assert parity.main(["--data", str(folder_with(tmp_path, 0.9)), "--jobs", "1"]) == 1
    assert "0.900" in capsys.readouterr().out
    assert parity.main(["--data", str(folder_with(tmp_path, 0.01)), "--jobs", "1"]) == 0


def test_without_the_recorded_runs_it_says_where_to_give_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity.main(["--data", str(tmp_path)]) == 2
    assert "--data" in capsys.readouterr().err
