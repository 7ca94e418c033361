"""The best checkpoint stands before the deadline, whatever is late. Full counts with --long.

Faults tried on the code: the reserve by the p90 of all saves alone, and a DRAIN timer that moves only by a tenth (a leader is lost
whose saves had become slower); no reserve at all; a shortened deadline that does not move the DRAIN timer.
"""

from __future__ import annotations

import json

import pytest

from tests.faults import deadline


@pytest.mark.timeout(3600)
def test_the_best_checkpoint_stands_before_the_deadline(
    capsys: pytest.CaptureFixture[str], long_run: bool
) -> None:
    runs, real = (1000, 20) if long_run else (100, 2)
    code = deadline.main(["--runs", str(runs), "--real", str(real), "--json", "--seed", "0"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert json.loads(captured.out) == {"runs": runs + real, "missed": 0}


def test_a_leader_whose_saves_had_become_slower_is_saved_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Found by 1,000 runs: three saves of 2.0, 2.2 and 3.3 s, and the last one took 4.6 s."""
    assert deadline.main(["--runs", "1", "--seed", "454", "--json"]) == 0, capsys.readouterr().err
