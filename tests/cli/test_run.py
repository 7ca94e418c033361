"""What `hpcsched run` says and returns once a run is over."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from hpcsched.cli.run import command
from hpcsched.core.enums import ExperimentState
from hpcsched.driver import life
from hpcsched.runfolder import RunFolder


def test_the_outcome_stands_when_the_run_folder_was_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = life.Result(
        ExperimentState.FAILED, 1, RunFolder(tmp_path / "gone"), best=None, why="the deadline has passed"
    )
    monkeypatch.setattr(life, "run_experiment", lambda *_, **__: over)
    with pytest.raises(typer.Exit) as left:
        command(tmp_path / "experiment.toml")
    assert left.value.exit_code == 1
    told = capsys.readouterr()
    assert "failed: the deadline has passed" in told.out
    assert "no picture of the run" in told.err
