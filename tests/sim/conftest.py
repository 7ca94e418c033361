"""Recorded data that lies beside a checkout, where it is there; tests that need it skip aloud else."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def _shared(*parts: str) -> Path:
    for start in (ROOT / "shared", ROOT.parent / "shared"):
        if (found := start.joinpath(*parts)).is_dir():
            return found
    pytest.skip(f"recorded data {'/'.join(parts)} is not here: it lies in shared/ in or beside the checkout")


@pytest.fixture(scope="session")
def algoperf() -> Path:
    """Recorded learning curves."""
    return _shared("data", "curves")


@pytest.fixture(scope="session")
def original() -> Path:
    """The 2020 program's runs in virtual time."""
    return _shared("data", "hypersched-original", "virtual")
