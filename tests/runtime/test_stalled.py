"""A rank that stalls is told apart from one that computes: real ranks, a real gloo group, and what a supervisor and the driver make
of the marks that they leave."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcsched.driver.stalls import Stall, Stalls
from hpcsched.launch.still import Watch
from hpcsched.progress import VARIABLE, Board
from hpcsched.wire import Report
from tests.support.ranks import LIMIT_S, Stage

SCRIPT = Path(__file__).parent / "slow_trial.py"
NUM_RANKS = 3
AFTER_S = 3.0


class Observed:
    """Ranks, and their supervisor and driver as far as these watch them."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = Stage(tmp_path / "run")
        self.board = Board(NUM_RANKS)
        monkeypatch.setenv(VARIABLE, self.board.path)
        self.go = tmp_path / "go"
        self.go.mkdir()
        self.watch = Watch()
        self.stalls = Stalls(NUM_RANKS, after_s=AFTER_S)
        self.told: list[Stall] = []
        self.ranks: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        spec = self.stage.spec(
            SCRIPT,
            world_size=NUM_RANKS,
            command=(sys.executable, str(SCRIPT), str(self.go)),
            max_iterations=3,
        )
        self.ranks = self.stage.start(spec)
        self.stage.wait_for(Report)

    def look_until(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until, f"waited in vain until {what}; told {self.told}"
            time.sleep(0.3)
            now = time.monotonic()
            seen = [
                self.watch.look(rank, process.pid, self.board.mark(rank), now)
                for rank, process in enumerate(self.ranks)
                if process.poll() is None
            ]
            stall = self.stalls.heard(tuple(each for each in seen if each is not None), now)
            if stall is not None:
                self.told.append(stall)

    def close(self) -> None:
        self.stage.close()
        self.board.close()


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    made = Observed(tmp_path, monkeypatch)
    yield made
    made.close()


def test_the_rank_that_the_others_wait_for_is_named_and_ranks_that_all_compute_are_not(
    observed: Observed,
) -> None:
    observed.start()
    observed.look_until(lambda: len(observed.told) == 1, "rank 1 sleeps and that is told")
    asleep = observed.told[-1]
    assert (asleep.ranks, asleep.iteration, asleep.num_waiting) == ((1,), 2, 2)
    assert asleep.for_s >= AFTER_S
    assert "rank 1 has stalled (it uses no processor)" in asleep.text
    assert "the 2 others wait for it" in asleep.text

    observed.ranks[1].send_signal(signal.SIGSTOP)
    observed.look_until(lambda: len(observed.told) == 2, "rank 1 is stopped and that is told")
    assert observed.told[-1].ranks == (1,)
    assert "rank 1 has been stopped" in observed.told[-1].text

    observed.ranks[1].send_signal(signal.SIGCONT)
    (observed.go / "2").touch()
    observed.look_until(lambda: len(observed.told) == 3, "it goes on")
    assert observed.told[-1].over
    observed.stage.wait_for(Report)

    began = time.monotonic()
    observed.look_until(lambda: time.monotonic() > began + 3 * AFTER_S, "all have computed for a while")
    assert len(observed.told) == 3, "nobody waits for anybody"
    (observed.go / "3").touch()
    assert [process.wait(LIMIT_S) for process in observed.ranks] == [0] * NUM_RANKS
    mark = observed.board.mark(0)
    assert mark is not None
    assert (mark.iteration, mark.num_steps >= 30) == (3, True)
    extra = observed.stage.of(Report)[-1].extra
    assert extra["samples_per_s"] > 0
    assert extra.keys() == {"samples_per_s", "data_wait", "communication", "overhead"}
    assert all(0 <= extra[share] <= 1 for share in ("data_wait", "communication", "overhead"))
