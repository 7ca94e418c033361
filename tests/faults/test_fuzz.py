"""Hostile bytes: 20,000 inputs, a million with --long; and what they found, each as a test of its own."""

from __future__ import annotations

import pytest

from hpcsched.launch.nodelist import MOST_NAMES, expand_nodelist
from hpcsched.topology.links import parse_topo_matrix
from tests.faults import fuzz


@pytest.mark.timeout(3600)
def test_no_input_crashes_hangs_or_takes_all_memory(
    capsys: pytest.CaptureFixture[str], long_run: bool
) -> None:
    code = fuzz.main(["--inputs", str(1_000_000 if long_run else 20_000), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err + captured.out


@pytest.mark.parametrize(
    "text",
    [
        "n[0-999999999]",
        "n[0-65535]x[0-65535]",
        "a,n[1-9999999999999],b",
        "n[0-40000],m[0-40000]",
        "n[1-0-99999999]",
        "n[0-990-999999999]",
    ],
)
def test_a_node_list_of_billions_is_none(text: str) -> None:
    """It was expanded: minutes, and 12 GB."""
    assert expand_nodelist(text) == ()


@pytest.mark.parametrize("digits", [7, 9, 400])
def test_a_number_of_many_digits_behind_a_range_is_none(digits: int) -> None:
    """An AssertionError of ClusterShell's (found by a million inputs)."""
    assert expand_nodelist("n[1-4,7]" + "9" * digits + ",m3") == ()
    assert expand_nodelist("n[1-2]00") == ("n100", "n200")


def test_a_node_list_of_a_large_cluster_is_one() -> None:
    assert len(expand_nodelist(f"n[1-{MOST_NAMES}]")) == MOST_NAMES
    assert expand_nodelist("r[1-2]n[01-02],m7") == ("m7", "r1n01", "r1n02", "r2n01", "r2n02")


@pytest.mark.parametrize("header", ["GPU0 GPU2", "GPU0 GPU0 GPU3", "GPU0 GPU10"])
def test_a_matrix_whose_columns_are_not_its_rows_is_none(header: str) -> None:
    """A KeyError."""
    rows = "\n".join(f"GPU{gpu} X NV4 NV4 0-3" for gpu in range(2))
    assert parse_topo_matrix(f"        {header}\n{rows}\n") is None
