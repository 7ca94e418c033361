from __future__ import annotations

import errno
import threading
import time

import pytest

from hpcsched.driver.keeper import CLOSE_S, Chore, Keeper
from hpcsched.errors import LaunchError

LIMIT_S = 10.0


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/run/driver.json"), "/run/driver.json: No such file or directory"),
        (OSError("odd"), "odd"),
        (LaunchError("squeue does not answer"), "squeue does not answer"),
    ],
)  # fmt: skip
def test_trouble_says_what_was_tried_on_which_file_and_what_follows_once(error: Exception, why: str) -> None:
    said: list[str] = []
    third, works = threading.Event(), threading.Event()
    calls = 0

    def do() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            third.set()
        if calls < 4:
            raise error
        works.set()

    chore = Chore("x", "write into driver.json", "`hpcsched status` does not say so", 0.01, do)
    keeper = Keeper([chore], said.append)
    keeper.start()
    assert third.wait(LIMIT_S)
    assert works.wait(LIMIT_S)
    keeper.close()
    assert said == [
        f"could not write into driver.json: {why}; it is tried again every 0.01 s, and until then `hpcsched status` does not say so"
    ]


def test_chores_that_are_stuck_hold_up_the_end_once_and_not_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """As all of them are when the file system does not answer: after a SIGTERM there is no time for that."""
    now_s = 0.0

    class Stuck:
        def join(self, timeout: float) -> None:
            nonlocal now_s
            now_s += timeout

    keeper = Keeper([], lambda _: None)
    monkeypatch.setattr(keeper, "_threads", [Stuck() for _ in range(6)])
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    keeper.close()
    assert now_s == CLOSE_S
