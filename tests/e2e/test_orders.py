"""Orders to a live driver from another shell: over its endpoint, as a file where that cannot be reached, and never twice."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from hpcsched.core import events as ev
from hpcsched.driver import orders
from hpcsched.driver.control import drop_order
from hpcsched.driver.orders import LiveRun, give_order, live_run
from hpcsched.errors import InputError
from hpcsched.orders import Answer, ExtendAsked, Order, StopAsked
from tests.support.e2e import Run, light_job, wait_until

LONG = {"step_s": 0.2}
CLOSED = "tcp://127.0.0.1:1"


def endless(folder: Path) -> Run:
    run = light_job(folder, [LONG, LONG], deadline="10m", max_iterations=100_000, num_atoms=2).start()
    run.waits_for(ev.ResultReported)
    return run


def unreachable(run: Run) -> LiveRun:
    """As found by somebody whose packets do not get there. (The driver writes the lease again every 5 s.)"""
    found: list[LiveRun] = []

    def is_closed() -> bool:
        lease = json.loads(run.folder.lease.read_text())
        run.folder.lease.write_text(json.dumps(lease | {"endpoints": [CLOSED]}))
        found.append(live_run(run.folder.root))
        return found[-1].record.endpoints == (CLOSED,)

    wait_until(is_closed, "driver.json names a closed port")
    return found[-1]


def test_an_order_is_answered_over_the_endpoint_and_without_one_by_a_file(tmp_path: Path) -> None:
    run = endless(tmp_path)
    root = str(run.folder.root)
    lease = json.loads(run.folder.lease.read_text())
    assert len(lease["endpoints"]) == 1
    assert lease["endpoints"][0].startswith("tcp://127.0.0.1:")
    assert run.folder.lease.stat().st_mode & 0o077 == 0

    shutil.rmtree(run.folder.control)  # no file can be left now
    told = run.command("extend", root, "30m")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("the deadline is 30m later, at "), told.stdout
    told = run.command("add", root, "height=0.5", "step_s=0.2")
    assert (told.returncode, told.stdout) == (0, "it is trial 2\n"), told.stderr
    told = run.command("stop", root, "99")
    assert told.returncode == 2
    assert "there is no trial 99; there are 0 to 2" in told.stderr
    (step,) = [step for step in run.steps() if isinstance(step.event, ev.DeadlineChanged)]
    assert step.order_id is not msgspec.UNSET, "in the journal before it is answered"

    run.folder.control.mkdir()
    answer = give_order(unreachable(run), StopAsked(0))
    assert answer is not None
    assert answer.text == "trial 0 saves and leaves; it does not run again"
    assert run.events(ev.TrialStopRequested, trial_id=0)
    with pytest.raises(InputError, match="there is no trial 99"):
        give_order(unreachable(run), StopAsked(99))
    assert not list(run.folder.control.iterdir())

    run.signal(signal.SIGTERM)
    assert run.ends() == 75
    run.check()


def test_an_order_that_comes_twice_acts_once_also_in_the_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer over the endpoint is lost, so that the same order comes as a file; then the driver dies, and it comes again."""
    run = endless(tmp_path)
    given: list[Order] = []
    answers: list[Answer | None] = []
    by_endpoint = orders._over_endpoint

    def loses_the_answer(live: LiveRun, order: Order) -> Answer | None:
        given.append(order)
        answers.append(by_endpoint(live, order))
        return None

    monkeypatch.setattr("hpcsched.driver.orders._over_endpoint", loses_the_answer)
    again = give_order(live_run(run.folder.root), ExtendAsked(1800.0))
    assert again is not None
    assert answers == [again], "both ways say the same"
    assert len(run.events(ev.DeadlineChanged)) == 1

    run.kill()
    left = drop_order(run.folder, given[0])
    run = run.job.start(resume=True)
    wait_until(lambda: not left.exists(), run.told)
    told = json.loads((run.folder.control / f"{given[0].order_id}.answer").read_text())
    assert "earlier life" in told["text"]
    assert len(run.events(ev.DeadlineChanged)) == 1
    assert run.status["deadline_s"] == pytest.approx(600.0 + 1800.0)
    run.signal(signal.SIGTERM)
    assert run.ends() == 75
    run.check()
