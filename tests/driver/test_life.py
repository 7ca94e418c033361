"""One call of `run_experiment`, as far as it comes without starting anything."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from hpcsched.driver import life
from hpcsched.driver.request import Request
from hpcsched.errors import RunFolderError
from hpcsched.eventlog.lease import Lease, acquire
from hpcsched.runfolder import RunFolder
from tests.support.smallest import smallest


def test_who_comes_in_the_same_moment_as_another_ends_and_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(smallest(experiment='deadline = "60s"'))
    folder = RunFolder(tmp_path / "run")

    def overtaken(folder: RunFolder, *, job_id: str = "") -> Lease:
        folder.lease.unlink(missing_ok=True)
        lease = acquire(folder, job_id=job_id)
        theirs = msgspec.structs.replace(lease.record, pid=lease.record.pid + 1, host="elsewhere")
        folder.lease.write_bytes(msgspec.json.encode(theirs))
        return lease

    ended: list[object] = []
    monkeypatch.setattr(life, "acquire", overtaken)
    monkeypatch.setattr(life, "end_orphans", lambda *given: ended.append(given) or [])
    monkeypatch.setattr(life, "is_local", lambda *_: True)
    for _ in range(2):  # the second time there may be something left of an earlier driver
        with pytest.raises(RunFolderError, match="on elsewhere and not this driver"):
            life.run_experiment(Request(file, run_dir=folder.root), environ=dict(os.environ))
    assert not ended
    assert not list(folder.keys.iterdir())
    assert b"elsewhere" in folder.lease.read_bytes(), "the other one's folder stands"
