from __future__ import annotations

import os
import queue
import resource
from pathlib import Path

import pytest

from hpcsched.launch.launcher import StepEnded, StepRefused
from hpcsched.launch.local import LocalLauncher
from hpcsched.launch.openfiles import MOST, raise_soft_limit
from hpcsched.launchspec import Channel, SpareSpec
from hpcsched.runfolder import RunFolder
from tests.support.openfiles import limit_of, soft_limit
from tests.support.worlds import fake_world


def test_a_driver_takes_what_it_may_and_no_more_than_is_sane() -> None:
    with soft_limit(200) as hard:
        assert raise_soft_limit(os.environ, most=300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        assert raise_soft_limit(os.environ, most=300) == (), "it is high enough"
        raise_soft_limit(os.environ)
        assert limit_of(os.getpid()) == (min(hard, MOST) if hard >= 0 else MOST)


def test_where_trials_could_not_have_their_own_limit_it_stays() -> None:
    with soft_limit(200):
        assert raise_soft_limit({"PATH": "/nonexistent"}) == ()
        assert limit_of(os.getpid()) == 200


@pytest.mark.parametrize("found", [True, False])
def test_a_supervisor_on_this_machine_has_the_users_limit(tmp_path: Path, found: bool) -> None:
    notices: queue.SimpleQueue[object] = queue.SimpleQueue()
    program = tmp_path / "program"
    if found:
        program.write_text("#!/bin/sh\nulimit -Sn\nulimit -Hn\nexit 1\n")
        program.chmod(0o700)
    with soft_limit(200) as hard:
        prefix = raise_soft_limit(os.environ, most=300)
        launcher = LocalLauncher(RunFolder(tmp_path), notify=notices.put, python=str(program), prefix=prefix)
        launcher.start_spare(SpareSpec(0, "here", Channel((), "", ""), str(tmp_path), ()))
        notice = notices.get(timeout=20.0)
    if found:
        assert isinstance(notice, StepEnded)
        assert notice.stderr_tail.split() == ["200", str(hard) if hard >= 0 else "unlimited"]
    else:
        assert isinstance(notice, StepRefused), "as without the words before it"
        assert "No such file or directory" in notice.why


def test_an_srun_has_the_users_limit_and_hands_it_on(tmp_path: Path) -> None:
    with fake_world(tmp_path / "run") as world, soft_limit(200):
        launcher = world.launcher(prefix=raise_soft_limit(os.environ, most=300))
        spec = world.spec(
            "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])", {"n1": [0]}
        )
        launcher.start(spec)
        assert world.driver.one(StepEnded).returncode == 0
        assert world.driver.rank_log(spec, 0).split() == ["200"]
