"""Which spares a driver starts, and what it says of those that it does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from hpcsched.driver.sparekeeper import SpareKeeper
from hpcsched.launchspec import Channel, SpareSpec
from hpcsched.runfolder import RunFolder


class Told:
    """Stands in for the launcher, the channel and the log."""

    def __init__(self, root: Path, env: dict[str, str], **options: Any) -> None:
        self.started: list[SpareSpec] = []
        self.notes: list[str] = []
        trial = SimpleNamespace(preload=("datasets",), env=env)
        spec: Any = SimpleNamespace(trial=trial, launcher=SimpleNamespace(spares_per_node=1))
        launcher: Any = SimpleNamespace(start_spare=self.started.append)
        server: Any = SimpleNamespace(send=lambda *_: None)
        folder = RunFolder(root)
        folder.spare_file(0).parent.mkdir()
        self.keeper = SpareKeeper(
            spec,
            folder,
            launcher,
            server,
            Channel(("tcp://127.0.0.1:1",), "a", "b"),
            note=lambda text, _: self.notes.append(text),
            **{"warm": True, **options},
        )
        for now in (1.0, 2.0):
            self.keeper.keep(["n1"], now, somebody_trains=True)


def test_a_spare_is_told_the_environment_of_the_trials(tmp_path: Path) -> None:
    told = Told(tmp_path, {"LD_PRELOAD": "libjemalloc.so", "PYTORCH_ALLOC_CONF": "x:y"})
    [spec] = told.started
    assert spec.env == {"LD_PRELOAD": "libjemalloc.so", "PYTORCH_ALLOC_CONF": "x:y"}
    file = RunFolder(tmp_path).spare_file(0)
    assert msgspec.json.decode(file.read_bytes(), type=SpareSpec) == spec
    assert file.stat().st_mode & 0o777 == 0o600
    assert not told.notes


def test_why_no_spares_are_kept_for_an_environment_is_said_once(tmp_path: Path) -> None:
    told = Told(tmp_path, {"OMP_PROC_BIND": "close"})
    assert not told.started
    [note] = told.notes
    assert note.startswith("trials start cold: [trial.env] sets OMP_PROC_BIND")
