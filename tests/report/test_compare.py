"""`hpcsched compare`, and the figures as files."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import hpcsched
from hpcsched.core.settings import FifoSettings
from hpcsched.errors import InputError, RunFolderError
from hpcsched.report.compare import compare, names_of, text_of
from tests.support.e2e import hpcsched as command
from tests.support.runs import a_run, some_settings

figures = pytest.importorskip("hpcsched.report.figures")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("runs")
    a_run(base / "long", deadline_s=60.0)
    a_run(base / "fifo", deadline_s=20.0, settings=some_settings(FifoSettings()))
    return [base / "long", base / "fifo"]


def test_runs_stand_side_by_side(two: list[Path]) -> None:
    logs = [hpcsched.load(run) for run in two]
    columns = compare(logs, names_of(two))
    assert [column.run for column in columns] == ["long", "fifo"]
    assert [column.policy for column in columns] == ["hypersched", "fifo"]
    for column, log in zip(columns, logs, strict=True):
        assert log.best is not None
        assert column.best == log.best["metric"]
        assert column.num_trials == len(log.trials)
        assert column.gpu_hours == pytest.approx(4 * log.end_s / 3600)
    worse = min(columns, key=lambda column: column.best or 0.0)
    assert worse.reached_s == worse.saved_s
    assert all(
        column.reached_s is not None and column.saved_s is not None and column.reached_s <= column.saved_s
        for column in columns
    )
    lines = text_of(columns, "accuracy").split("\n")
    assert lines[0].split() == ["run", "long", "fifo"]
    assert len({len(line) for line in lines}) == 1


def test_the_command_prints_draws_and_tells_scripts(two: list[Path], tmp_path: Path) -> None:
    done = command("compare", *map(str, two), "--figure", str(tmp_path / "c.png"))
    assert done.returncode == 0, done.stderr
    assert "best accuracy" in done.stdout
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(command("compare", *map(str, two), "--json").stdout)
    assert [column["run"] for column in told] == ["long", "fifo"]
    assert command("compare", str(two[0]), "--figure", str(tmp_path / "c.gif")).returncode == 2


def test_runs_after_different_things_are_not_compared(two: list[Path], tmp_path: Path) -> None:
    logs = [hpcsched.load(run) for run in two]
    logs[1].metric = "loss"
    with pytest.raises(InputError, match="cannot be compared"):
        compare(logs, names_of(two))


def test_runs_of_the_same_name_are_told_apart() -> None:
    assert names_of([Path("/a/x/run"), Path("/b/x/run")]) == ["a/x/run", "b/x/run"]


def test_figures_are_written_in_every_format(two: list[Path], tmp_path: Path) -> None:
    written = figures.write_figures(hpcsched.load(two[0]), tmp_path / "figures")
    assert {file.name for file in written} == {
        f"{name}.{kind}" for name in figures.FIGURES for kind in ("png", "svg", "pdf")
    }
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for file in written:
        assert file.read_bytes().startswith(starts[file.suffix[1:]])
    before = {file: file.read_bytes() for file in written}
    figures.write_figures(hpcsched.load(two[0]), tmp_path / "figures")
    assert {file: file.read_bytes() for file in written} == before, "the same log gives the same bytes"


def test_a_folder_that_cannot_be_made_is_said(two: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be written"):
        figures.write_figures(hpcsched.load(two[0]), tmp_path / "file")
    assert msgspec.json.encode(compare([hpcsched.load(two[0])], ["one"]))
