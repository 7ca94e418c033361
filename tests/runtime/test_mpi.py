"""Checkpoints of MPI trials: whole or not there, and believed only when they are ours. (Real ranks: tests/launch/test_mpi.py.)"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcsched.errors import CheckpointError, TrialError
from hpcsched.runtime.mpi import (
    ARRAYS,
    MANIFEST,
    MpiManifest,
    _join,
    _split,
    read_checkpoint,
    write_checkpoint,
)
from tests.support.groups import file_size_limit

CONFIG = {"alpha": 0.5}


def manifest(state: dict[str, Any]) -> MpiManifest:
    return MpiManifest(1, 3, 2, 4, False, 2, CONFIG, state, "")


def saved(folder: Path, tree: Any) -> Path:
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    state = {"solver": _split(tree, "solver", arrays)}
    target = folder / "checkpoint-4"
    write_checkpoint(target, arrays, manifest(state))
    return target


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    tree = {
        "field": np.arange(6.0).reshape(2, 3),
        "step": np.int64(4),
        "list": [1, 0.1, "x", None, True],
        "worst": math.inf,
        "deep": {"mask": np.array([True, False])},
    }
    found, arrays = read_checkpoint(saved(tmp_path, tree), CONFIG)
    back = _join(found.state["solver"], arrays)
    assert np.array_equal(back["field"], tree["field"])
    assert back["deep"]["mask"].tolist() == [True, False]
    assert (back["step"], back["list"], back["worst"]) == (4, [1, 0.1, "x", None, True], math.inf)
    assert found.training_iteration == 4


def test_what_would_need_a_pickle_is_refused_by_name() -> None:
    with pytest.raises(TrialError, match="solver/thing: a object cannot be put into a checkpoint"):
        _split({"thing": object()}, "solver", {})
    with pytest.raises(TrialError, match="an array of Python objects"):
        _split(np.array([object()]), "solver", {})


@pytest.mark.parametrize("name", [ARRAYS, MANIFEST])
def test_an_altered_or_open_or_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path, {"field": np.zeros(9)})
    file = folder / name
    data = file.read_bytes()
    file.write_bytes(data[:-3])
    with pytest.raises(CheckpointError, match=r"altered|unreadable"):
        read_checkpoint(folder, CONFIG)
    file.write_bytes(data)
    file.chmod(0o622)
    with pytest.raises(CheckpointError, match="others can write it"):
        read_checkpoint(folder, CONFIG)
    file.unlink()
    with pytest.raises(CheckpointError, match="not complete"):
        read_checkpoint(folder, CONFIG)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="another configuration"):
        read_checkpoint(saved(tmp_path, {}), {"alpha": 0.6})


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    with file_size_limit(2000), pytest.raises(OSError, match="File too large"):
        saved(tmp_path, {"field": np.random.default_rng(0).normal(size=1000)})
    assert list(tmp_path.iterdir()) == []
