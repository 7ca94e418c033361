"""What makes a process unfit to be forked; CUDA's driver and torch are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcsched.launch import forkable
from hpcsched.launch.forkable import TOUCHED
from tests.launch.test_zygote import READY_LIMIT_S, ZygoteProcess, fork_of, run, subreaper  # noqa: F401

TORCH = """
import os
made_in = os.getpid()
class cuda:
    is_initialized = staticmethod(lambda: False)
    _is_in_bad_fork = staticmethod(lambda: os.getpid() != made_in)
"""
ASKS = """
import os
from ctypes import CDLL
told = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "modules"
    made.mkdir()
    yield made


def cold(folder: Path, *modules: str) -> str | None:
    """What a zygote that has imported these says of itself."""
    zygote = ZygoteProcess(modules, {**os.environ, "PYTHONPATH": str(folder)})
    ready = zygote.poll_ready(READY_LIMIT_S)
    zygote.close()
    assert ready is not None
    return ready.cold


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(0, TOUCHED), (3, None)],
    ids=["initialized", "not initialized"],
)
def test_a_cuda_driver_that_a_module_has_initialized_makes_it_cold(
    folder: Path, answer: int, expected: str | None
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here to make a stand-in of libcuda.so.1 with")
    (folder / "driver.c").write_text(f"int cuDeviceGetCount(int *count) {{ *count = 8; return {answer}; }}\n")
    library = folder / "libcuda.so.535.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, folder / "driver.c"],
        check=True,
    )
    (folder / "touches.py").write_text(f"import ctypes\ndriver = ctypes.CDLL({str(library)!r})\n")
    assert cold(folder, "touches") == expected


@pytest.mark.parametrize(
    ("answer", "touched"), [(0, True), (4, True), (100, True), (3, False), (34, False), (None, False)]
)
def test_any_answer_of_the_driver_but_that_it_is_not_initialized_or_none_says_it_was_touched(
    answer: int | None, touched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkable, "driver_answer", lambda: answer)
    assert (forkable.why_cold() == TOUCHED) is touched


def test_what_torch_calls_a_bad_fork_makes_it_cold_before_any_rank_is_forked(folder: Path) -> None:
    (folder / "torch.py").write_text(TORCH)
    assert cold(folder, "torch") == TOUCHED


@pytest.mark.parametrize("functions", [{"_is_in_bad_fork": lambda: False}, {}])
def test_a_torch_that_was_not_touched_or_does_not_tell_poisons_no_fork(functions: dict[str, Any]) -> None:
    assert not forkable.fork_is_poisoned(SimpleNamespace(cuda=SimpleNamespace(**functions)))


def test_no_driver_is_loaded_by_asking_for_it() -> None:
    if forkable.DRIVER in Path("/proc/self/maps").read_text():
        pytest.skip("something else has loaded CUDA's driver into this process")
    assert forkable.driver_answer() is None
    assert forkable.DRIVER not in Path("/proc/self/maps").read_text()


def test_what_to_do_about_a_module_that_touches_cuda_is_told() -> None:
    assert "[trial] preload" in TOUCHED


def test_modules_ask_nvml_for_gpus_while_they_are_preloaded_and_ranks_ask_cuda(
    folder: Path,
    tmp_path: Path,
    subreaper: None,  # noqa: F811
) -> None:
    (folder / "asks.py").write_text(ASKS)
    zygote = ZygoteProcess(("asks",), {**os.environ, "PYTHONPATH": str(folder)})
    script = "import asks, os; print(asks.told, os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK'))"
    assert run(zygote, fork_of(tmp_path, script)) == 0
    zygote.close()
    assert (tmp_path / "rank-0.log").read_text() == "1 None\n"
