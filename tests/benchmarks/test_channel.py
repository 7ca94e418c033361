"""From a report to its reply: nothing is dropped, on a good disk, a slow one, and through a stall. Full load with --long.

Times are printed, not asserted: they are the machine's (`python -m tests.benchmarks.channel`)."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import channel

pytestmark = pytest.mark.alone

SMALL = ["--ranks", "48", "--rate", "150", "--seconds", "3", "--json"]
FULL = ["--ranks", "1024", "--rate", "2000", "--seconds", "120", "--json"]


def measured(capsys: pytest.CaptureFixture[str], args: list[str]) -> dict[str, float]:
    code = channel.main(args)
    captured = capsys.readouterr()
    result: dict[str, float] = json.loads(captured.out.splitlines()[-1])
    with capsys.disabled():
        print(f"\nchannel {' '.join(args)}: {result}")
    assert code == 0, captured.out + captured.err
    assert result["dropped"] == 0
    assert result["trials_lost"] == 0
    assert result["journal_complete"]
    return result


@pytest.mark.timeout(900)
@pytest.mark.parametrize("disk", [[], ["--sync-ms", "50"]])
def test_every_report_is_answered_and_in_the_journal(
    capsys: pytest.CaptureFixture[str], disk: list[str], long_run: bool
) -> None:
    result = measured(capsys, (FULL if long_run else SMALL) + disk)
    assert set(result) >= {"median_ms", "p99_ms", "dropped", "rss_mb_start", "rss_mb_end"}
    if disk:  # a fast one may sync each report of so few
        assert result["syncs"] < result["reports"], "a sync is for a group"


@pytest.mark.timeout(900)
def test_a_stall_of_the_disk_loses_nothing_and_heartbeats_go_on(
    capsys: pytest.CaptureFixture[str], long_run: bool
) -> None:
    stall_s = 10.0 if long_run else 2.0
    result = measured(capsys, [*(FULL if long_run else SMALL), "--stall-s", str(stall_s)])
    seconds = 120 if long_run else 3
    trials = 1024 if long_run else 48
    assert result["max_ms"] >= 1000.0 * stall_s / 2, "there was a stall"
    assert result["heartbeats_answered"] >= 0.8 * seconds * trials
