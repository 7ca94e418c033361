"""The child that makes log.h5."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from hpcsched.driver.sealer import Sealer
from hpcsched.runfolder import RunFolder
from tests.support.runs import a_run


def test_the_last_seal_makes_the_log_and_says_nothing(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run")
    folder.log.unlink(missing_ok=True)
    assert Sealer(folder).finish(60.0) is None
    assert folder.log.exists()


def test_a_seal_that_fails_says_why(tmp_path: Path) -> None:
    trouble = Sealer(RunFolder(tmp_path / "nothing")).finish(60.0)
    assert trouble is not None
    assert "journal" in trouble


def stuck_python(tmp_path: Path) -> str:
    """In place of the interpreter: says that it is there and sleeps for ever."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport pathlib, time\npathlib.Path({str(tmp_path / 'there')!r}).touch()\ntime.sleep(600)\n"
    )
    script.chmod(0o755)
    return str(script)


def test_a_seal_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    assert (
        Sealer(RunFolder(tmp_path), python=stuck_python(tmp_path)).finish(0.2) == "it took longer than 0.2 s"
    )


def test_the_last_seal_ends_one_that_is_under_way(tmp_path: Path) -> None:
    """Else the older log could be put in place after the newer one."""
    sealer = Sealer(RunFolder(tmp_path), python=stuck_python(tmp_path))
    sealer._next_at = 0.0
    thread = threading.Thread(target=sealer.now_and_then)
    thread.start()
    while not (tmp_path / "there").exists():
        pass
    assert sealer.finish(0.2) is not None
    thread.join(10.0)
    assert not thread.is_alive()
