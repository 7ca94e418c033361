"""A minute (half an hour with --long) in which everything fails at random."""

from __future__ import annotations

import json

import pytest

from tests.faults import soak


@pytest.mark.timeout(3600)
def test_nothing_is_left_after_a_while_of_everything_failing(
    capsys: pytest.CaptureFixture[str], long_run: bool
) -> None:
    code = soak.main(["--minutes", "30" if long_run else "1", "--json", "--seed", "100"])
    captured = capsys.readouterr()
    assert code == 0, captured.out + captured.err
    seen = json.loads(captured.out)
    assert seen["runs"] >= 1
    assert seen["rss_mb_last"] <= 1.5 * seen["rss_mb_first"] + 20.0
