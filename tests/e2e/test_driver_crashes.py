"""The driver dies by SIGKILL at several moments; `--resume` goes on from the journal and loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import PreemptReason
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header
from tests.support.e2e import Job, Run, light_job, wait_until

LONG = {"step_s": 0.15}


def long_job(folder: Path, **options: object) -> Job:
    configs = [LONG | {"height": 0.5 + 0.05 * number, "do": "daemon"} for number in range(6)]
    return light_job(
        folder, configs, **{"deadline": "10m", "max_iterations": 12, "policy": "asha"} | options  # type: ignore[arg-type]
    )  # fmt: skip


def results(run: Run) -> list[tuple[int, int, int]]:
    return [
        (event.trial_id, event.incarnation, event.training_iteration)
        for event in run.events(ev.ResultReported)
    ]


def check_resumed(first: Run, second: Run, before: list[tuple[int, int, int]]) -> None:
    """Nothing acknowledged is lost, incarnations go on, no new one starts before the old ones are gone."""
    after = results(second)
    assert after[: len(before)] == before, "an acknowledged result is lost"
    launches = [(action.trial_id, action.incarnation) for action in second.actions(act.StartTrial)]
    assert len(set(launches)) == len(launches), "an incarnation number was used twice"
    for trial_id in {trial for trial, _ in launches}:
        numbers = [incarnation for trial, incarnation in launches if trial == trial_id]
        assert numbers == sorted(numbers)
    headers = [record for record in read_journal(second.folder) if isinstance(record, Header)]
    assert [header.life for header in headers] == list(range(1, len(headers) + 1))
    assert len({(header.began_at, header.experiment) for header in headers}) == 1
    deadlines = {
        event.deadline_s for event in second.events(ev.ExperimentBegan) + second.events(ev.ExperimentResumed)
    }
    assert len(deadlines) == 1, "the deadline is still the deadline"


@pytest.mark.parametrize(
    "moment", ["begun", "running", "leaving", pytest.param("starting", marks=pytest.mark.long)]
)
def test_a_killed_driver_is_resumed_and_loses_nothing(tmp_path: Path, moment: str) -> None:
    job = long_job(tmp_path)
    first = job.start()
    match moment:
        case "begun":
            first.waits_for(ev.ExperimentBegan)
        case "starting":
            first.waits_for(act.StartTrial, 3)
        case "running":
            first.waits_for(act.PublishBest, 2)
        case "leaving":
            first.waits_for(act.PreemptTrial)
    first.kill()
    assert first.status["state"] == "suspended"
    before = results(first)
    unfinished = first.folder.incarnation(0, 1) / "checkpoint-99.tmp-0123abcd"
    unfinished.mkdir(parents=True, exist_ok=True)
    second = job.start(resume=True)
    assert second.ends() == 0
    check_resumed(first, second, before)
    second.check()
    if moment != "begun":  # else no trial of that number was known to the first life
        assert not unfinished.exists(), "what a save that was killed had left is deleted"
    if moment != "begun":  # the first ranks may not have been there
        assert "ended what an earlier driver had left" in second.err
    assert second.status["trials"]["failed"] == 0


@pytest.mark.parametrize("moment", ["asked to leave", "starting again"])
def test_a_driver_that_is_killed_in_a_resize_gives_no_gpu_twice(tmp_path: Path, moment: str) -> None:
    job = light_job(
        tmp_path, [LONG | {"height": 0.3 + 0.1 * number} for number in range(3)], policy="hypersched", deadline="40s",
        max_iterations=2187, scheduler='entrance = "reversible"\nkeep_paused = true\n', extra='[scaling]\nassume = "linear"\n',
    )  # fmt: skip
    first = job.start()
    grown = first.waits_for(act.PreemptTrial, reason=PreemptReason.RESIZE)
    if moment == "starting again":
        first.waits_for(act.StartTrial, trial_id=grown.trial_id, incarnation=grown.incarnation + 1)
    first.kill()
    before = results(first)
    second = job.start(resume=True)

    def trains_on_several() -> bool:
        wide = {
            (action.trial_id, action.incarnation)
            for action in second.actions(act.StartTrial)
            if len(action.placement.atoms) > 1
        }
        return any(each[:2] in wide for each in results(second)[len(before) :])

    wait_until(trains_on_several, lambda: f"it trains on several atoms\n{second.told()}")
    second.signal(signal.SIGINT)
    assert second.ends() == 75
    check_resumed(first, second, before)
    second.check()


def test_a_driver_that_is_killed_at_its_very_end_is_resumed_to_that_end(tmp_path: Path) -> None:
    """After the decision to finish, before the last word and the seal."""
    job = light_job(tmp_path, [{}, {"do": "hang after leaving"}], max_iterations=2, deadline="10m", extra='[timeouts]\npreempt_grace = "3s"\n')  # fmt: skip
    first = job.start()
    first.waits_for(act.FinishExperiment)
    first.kill()
    first.folder.log.unlink(missing_ok=True)  # not sealed between times either
    marks = {"HPCSCHED_RUN_DIR": str(first.folder.root)}
    with subprocess.Popen(["sleep", "600"], env=os.environ | marks, start_new_session=True) as spare:
        try:
            second = job.start(resume=True)
            assert second.ends() == 0
            assert spare.wait(timeout=10.0) == -signal.SIGKILL
        finally:
            spare.kill()
    second.check()
    assert second.status["state"] == "finished"


def test_a_driver_that_is_killed_twice_is_resumed_twice(tmp_path: Path) -> None:
    job = long_job(tmp_path, policy="fifo")
    run = job.start()
    run.waits_for(act.PublishBest, 1)
    run.kill()
    for num in (8, 16):
        before = results(run)
        run = job.start(resume=True)
        run.waits_for(ev.ResultReported, num)
        run.kill()
        check_resumed(run, run, before)
    before = results(run)
    run = job.start(resume=True)
    assert run.ends() == 0
    check_resumed(run, run, before)
    run.check()


def test_the_deadline_is_wall_time_across_a_crash(tmp_path: Path) -> None:
    job = light_job(tmp_path, [LONG] * 4, deadline="11s", max_iterations=100_000)
    first = job.start()
    first.waits_for(act.PublishBest, 2)
    first.kill()
    time.sleep(1.0)
    second = job.start(resume=True)
    assert second.ends() == 0
    second.check()
    header = next(record for record in read_journal(second.folder) if isinstance(record, Header))
    assert second.status["best"]["saved_s"] <= 11.0
    assert time.time() - header.began_at >= 11.0 - 1.0


def test_a_resume_after_the_deadline_finishes_with_what_stands(tmp_path: Path) -> None:
    job = light_job(tmp_path, [LONG] * 4, deadline="6s", max_iterations=100_000)
    first = job.start()
    first.waits_for(act.PublishBest, 2)
    first.kill()
    header = next(record for record in read_journal(first.folder) if isinstance(record, Header))
    wait_until(lambda: time.time() - header.began_at > 6.5, "the deadline has passed")
    second = job.start(resume=True)
    assert second.ends() == 0
    second.check()
    assert second.status["state"] == "finished"
    assert len(second.actions(act.StartTrial)) == 4, "nothing was started after the deadline"


def test_a_run_that_has_ended_is_not_run_again(tmp_path: Path) -> None:
    job = light_job(tmp_path, [{"height": 0.5}], max_iterations=2)
    first = job.start()
    assert first.ends() == 0
    first.check()
    text = first.folder.segment(1).read_bytes()
    second = job.start(resume=True)
    assert second.ends() == 0
    assert "ended" in second.out
    assert first.folder.segment(1).read_bytes() == text
    assert not first.folder.segment(2).exists()
    second.check()


def test_two_drivers_on_one_run_folder(tmp_path: Path) -> None:
    job = light_job(tmp_path, [LONG] * 2, deadline="10m", max_iterations=100_000)
    first = job.start()
    first.waits_for(ev.ResultReported, 2)
    second = job.start()
    assert second.ends() == 2
    third = job.start(resume=True)
    assert third.ends() == 2
    assert "in use by another driver" in third.err
    assert str(first.process.pid) in third.err
    num = len(first.events(ev.ResultReported))
    first.waits_for(ev.ResultReported, num + 2)
    first.signal(signal.SIGTERM)
    assert first.ends() == 75
    first.check()


def test_a_stopped_driver_that_wakes_after_another_took_over_stops_itself(tmp_path: Path) -> None:
    """Its lease is made to look old and from another host, as after a minute's stop on a second host."""
    job = light_job(tmp_path, [LONG] * 2, deadline="10m", max_iterations=100_000)
    first = job.start()
    first.waits_for(act.PublishBest)
    first.signal(signal.SIGSTOP)
    try:
        lease = json.loads(first.folder.lease.read_text())
        first.folder.lease.write_text(json.dumps(lease | {"host": "elsewhere"}))
        os.utime(first.folder.lease, (time.time() - 60, time.time() - 60))
        second = job.start(resume=True)
        num = len(first.events(ev.ResultReported))
        second.waits_for(ev.ResultReported, num + 3)
    finally:
        first.signal(signal.SIGCONT)
    assert first.ends() not in (0, 75)
    assert "taken over" in first.err
    num = len(second.events(ev.ResultReported))
    second.waits_for(ev.ResultReported, num + 3)
    second.signal(signal.SIGTERM)
    assert second.ends() == 75
    second.check()


def test_a_driver_that_is_stopped_for_a_while_goes_on_and_blames_nobody(tmp_path: Path) -> None:
    """Longer than the silence after which a supervisor counts as lost."""
    run = light_job(tmp_path, [LONG] * 2, deadline="10m", max_iterations=100_000).start()
    run.waits_for(act.PublishBest)
    run.signal(signal.SIGSTOP)
    time.sleep(7.0)
    run.signal(signal.SIGCONT)
    num = len(run.events(ev.ResultReported))
    run.waits_for(ev.ResultReported, num + 8)
    run.signal(signal.SIGTERM)
    assert run.ends() == 75
    run.check()
    assert len(run.actions(act.StartTrial)) == 2, run.told()


@pytest.mark.parametrize("what", ["supervisor", "rank"])
def test_a_killed_supervisor_or_rank_costs_one_incarnation(tmp_path: Path, what: str) -> None:
    run = light_job(tmp_path, [LONG | {"do": "daemon"}] * 2, deadline="10m", max_iterations=30).start()
    run.waits_for(ev.CheckpointSaved, 3, trial_id=1)
    victims = [
        int(line.split()[0])
        for line in run.leftovers()
        if ("launch.supervisor" in line) == (what == "supervisor") and ("light_trial" in line or "/trials/1/1/" in line)
        and environ_of(int(line.split()[0])).get("HPCSCHED_TRIAL_ID") == "1"
    ]  # fmt: skip
    assert victims
    os.kill(victims[0], signal.SIGKILL)
    assert run.ends() == 0
    run.check()
    assert run.outcomes()[0] == ["completed"]
    assert run.outcomes()[1] == ["node_failed" if what == "supervisor" else "crashed", "completed"]
    assert run.actions(act.StartTrial, trial_id=1)[1].checkpoint.training_iteration >= 2


def environ_of(pid: int) -> dict[str, str]:
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(item.decode().split("=", 1) for item in items if b"=" in item)
