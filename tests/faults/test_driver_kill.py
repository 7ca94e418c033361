"""The driver dies at any instant; nothing is lost. Full counts with --long.

Faults tried on the code: `_resumed` without `_unreserve` (a run is not resumed), a reader that drops the last whole record (lost), a
resume that does not give back the live trials' atoms (double held), a trial that goes on from its last result and not its
last checkpoint (restores what is not there).
"""

from __future__ import annotations

import json

import pytest

from tests.faults import driver_kill


def test_simulated_drivers_are_killed_and_resumed(capsys: pytest.CaptureFixture[str], long_run: bool) -> None:
    runs = 300 if long_run else 30
    code = driver_kill.main(["--runs", str(runs), "--simulated", "--json", "--seed", "0"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert json.loads(captured.out) == {
        "runs": runs, "resumed": runs, "lost_results": 0, "double_held": 0, "other_best": 0
    }  # fmt: skip


@pytest.mark.timeout(3600)
def test_real_drivers_are_killed_and_resumed(capsys: pytest.CaptureFixture[str], long_run: bool) -> None:
    runs = 30 if long_run else 3
    code = driver_kill.main(["--runs", str(runs), "--json", "--seed", "1"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert json.loads(captured.out)["resumed"] == runs
