"""What submitit's pickled callable does with the driver's end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hpcsched.batch.job import DriverRun
from hpcsched.errors import LaunchError


@pytest.mark.parametrize("is_chain", [True, False], ids=["chain", "allocation"])
def test_a_driver_that_suspends_a_chain_before_the_warning_is_queued_again_as_if_warned(
    tmp_path: Path, is_chain: bool
) -> None:
    driver = tmp_path / "python"
    driver.write_text("#!/bin/sh\nexit 75\n")
    driver.chmod(0o755)
    warned: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: warned.append(number))
    try:
        with pytest.raises(LaunchError, match="ended with code 75"):
            DriverRun(str(driver), ["run", "x.toml"], tmp_path / "run", chain=is_chain)()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert warned == [signal.SIGUSR2] * is_chain
