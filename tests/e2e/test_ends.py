"""However a run ends, nothing is left behind, the log is whole and equal in replay, and the exit code says what happened."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import PreemptReason
from tests.support.e2e import Job, light_job, wait_until

LONG = {"step_s": 0.2}
"""Never done before the deadline."""


def endless(folder: Path, **options: object) -> Job:
    """Four trials at a time that train until somebody ends them; each has a child of its own."""
    configs = [LONG | {"height": 0.9 - 0.1 * number, "do": "daemon"} for number in range(4)]
    return light_job(folder, configs, **{"deadline": "10m", "max_iterations": 100_000} | options)  # type: ignore[arg-type]


def test_the_deadline_ends_the_run_with_the_best_checkpoint_written_before_it(tmp_path: Path) -> None:
    run = endless(tmp_path, deadline="8s").start()
    assert run.ends() == 0
    run.check()
    status = run.status
    assert status["state"] == "finished"
    assert status["best"]["saved_s"] <= status["deadline_s"] == 8.0
    assert status["finished_s"] <= 8.0 + 0.5  # a timer fires a moment after it is due


def test_ctrl_c_saves_everything_and_suspends(tmp_path: Path) -> None:
    run = light_job(tmp_path, [LONG | {"save": "leave"}] * 4, deadline="10m", max_iterations=100_000).start()
    for trial_id in range(4):
        run.waits_for(ev.ResultReported, 2, trial_id=trial_id)
    run.signal(signal.SIGINT)
    assert run.ends() == 75
    assert "--resume" in run.out
    run.check()
    assert run.status["state"] == "suspended"
    assert {outcome for trial in run.outcomes().values() for outcome in trial} == {"preempted"}
    saved = {event.trial_id for event in run.events(ev.CheckpointSaved)}
    assert saved == {0, 1, 2, 3}, "everybody was to save"


def test_ctrl_c_twice_ends_now(tmp_path: Path) -> None:
    """The trials would never leave by themselves."""
    job = light_job(tmp_path, [LONG | {"do": "ignore"}] * 4, deadline="10m", max_iterations=100_000)
    run = job.start()
    for trial_id in range(4):
        run.waits_for(ev.ResultReported, 3, trial_id=trial_id)
    run.signal(signal.SIGINT)
    run.waits_for(act.PreemptTrial, 4, reason=PreemptReason.DEADLINE)
    run.signal(signal.SIGINT)
    assert run.ends() == 75
    run.check()
    assert run.status["state"] == "suspended"


def test_sigterm_ends_now_and_the_checkpoints_stay_whole(tmp_path: Path) -> None:
    run = endless(tmp_path).start()
    run.waits_for(act.PublishBest, 3)
    run.signal(signal.SIGTERM)
    assert run.ends(30.0) == 75
    run.check()


@pytest.mark.parametrize("warning", [signal.SIGUSR1, pytest.param(signal.SIGUSR2, marks=pytest.mark.long)])
def test_a_warning_saves_everything_and_finishes_the_experiment(
    tmp_path: Path, warning: signal.Signals
) -> None:
    """Span "allocation": the allocation's end is the experiment's."""
    run = light_job(tmp_path, [LONG | {"save": "leave"}] * 4, deadline="10m", max_iterations=100_000).start()
    run.waits_for(ev.ResultReported, 4)
    run.signal(warning)
    assert run.ends() == 0
    run.check()
    assert run.status["state"] == "finished"


def test_a_warning_suspends_a_chain(tmp_path: Path) -> None:
    job = light_job(tmp_path, [LONG] * 4, deadline="10m", max_iterations=100_000, experiment='span = "chain"')
    run = job.start()
    run.waits_for(ev.ResultReported, 4)
    run.signal(signal.SIGUSR1)
    assert run.ends() == 75
    run.check()
    again = job.start(resume=True)
    again.waits_for(ev.ResultReported, 12)
    again.signal(signal.SIGTERM)
    assert again.ends() == 75
    again.check()


def test_a_signal_while_the_first_trials_start_leaves_nothing_behind(tmp_path: Path) -> None:
    run = endless(tmp_path).start()
    run.waits_for(act.StartTrial, 4)
    run.signal(signal.SIGINT)
    assert run.ends() == 75
    run.check(best=False)


def test_an_experiment_whose_trials_all_crash_fails_early_with_the_end_of_a_log(tmp_path: Path) -> None:
    run = light_job(tmp_path, [{"do": "crash", "at": 0}] * 12).start()
    assert run.ends() == 1
    run.check(best=False)
    assert run.status["state"] == "failed"
    assert len(run.outcomes()) < 12, "it was to give up after the first four"
    assert "the script breaks in iteration 0" in run.out


def test_a_metric_that_is_never_reported_fails_the_experiment_and_names_it(tmp_path: Path) -> None:
    run = light_job(tmp_path, [{"do": "other metric"}] * 12).start()
    assert run.ends() == 1
    run.check(best=False)
    assert run.status["state"] == "failed"
    assert "accuracy" in run.out
    assert "loss" in run.out


def test_hypersched_pauses_some_and_grows_another(tmp_path: Path) -> None:
    configs = [{"height": 0.3 + 0.05 * number} for number in range(9)]
    run = light_job(
        tmp_path, configs, policy="hypersched", deadline="30s", max_iterations=2187,
        scheduler='entrance = "reversible"\nkeep_paused = true\n', extra='[scaling]\nassume = "linear"\n',
    ).start()  # fmt: skip
    run.waits_for_size(2)
    run.signal(signal.SIGUSR1)
    assert run.ends() == 0
    run.check()
    counts = run.status["counts"]
    assert counts["paused"] >= 1
    assert counts["resized_up"] >= 1
    assert counts["failed"] == 0


# ---- from another shell


def test_stop_from_another_shell_ends_one_trial_and_then_the_run(tmp_path: Path) -> None:
    run = endless(tmp_path).start()
    run.waits_for(ev.ResultReported, 4)
    told = run.command("stop", str(run.job.run_dir), "2")
    assert told.returncode == 0, told.stderr
    run.waits_for(ev.TrialExited, trial_id=2)
    told = run.command("stop", str(run.job.run_dir))
    assert told.returncode == 0, told.stderr
    assert run.ends() == 0
    run.check()
    assert run.states()[2] == "stopped"
    assert run.status["state"] == "finished"


def test_a_trial_that_ignores_the_request_to_leave_is_killed(tmp_path: Path) -> None:
    job = light_job(
        tmp_path, [LONG | {"do": "ignore"}, LONG], deadline="10m", max_iterations=100_000,
        extra='[timeouts]\npreempt_grace = "1s"\n',
    )  # fmt: skip
    run = job.start()
    run.waits_for(ev.ResultReported, 3, trial_id=0)
    assert run.command("stop", str(job.run_dir), "0").returncode == 0
    run.waits_for(ev.TrialExited, trial_id=0)
    assert run.command("stop", str(job.run_dir)).returncode == 0
    assert run.ends() == 0
    run.check()
    assert run.outcomes()[0] == ["killed"]
    assert run.states()[0] == "stopped"
    assert "did not leave in time" in run.explain(0)


def test_extend_from_another_shell_moves_the_deadline(tmp_path: Path) -> None:
    run = endless(tmp_path, deadline="40s").start()
    run.waits_for(ev.ResultReported)
    told = run.command("extend", str(run.job.run_dir), "30m")
    assert told.returncode == 0, told.stderr
    event = run.waits_for(ev.DeadlineChanged)
    assert event.deadline_s == pytest.approx(40.0 + 1800.0)
    run.signal(signal.SIGTERM)
    assert run.ends() == 75
    run.check()
    assert run.status["deadline_s"] == pytest.approx(1840.0)


def test_the_run_goes_on_when_nobody_reads_its_output(tmp_path: Path) -> None:
    """A closed terminal: SIGHUP comes with it, which asks to end in order."""
    run = endless(tmp_path).start()
    run.waits_for(act.PublishBest)
    run.signal(signal.SIGHUP)
    assert run.ends() == 75
    run.check()


# ---- the file system


def test_a_run_folder_that_is_deleted_does_not_make_the_driver_hang(tmp_path: Path) -> None:
    run = endless(tmp_path, deadline="8s").start()
    run.waits_for(act.PublishBest)
    shutil.rmtree(run.job.run_dir, ignore_errors=True)
    assert run.ends() != 0
    wait_until(lambda: not run.leftovers(), lambda: f"nothing is left: {run.leftovers()}")
    assert "Traceback" not in run.err, run.told()


def test_best_json_says_what_status_says(tmp_path: Path) -> None:
    run = light_job(tmp_path, [{"height": 0.4}, {"height": 0.8}, {"height": 0.6}]).start()
    assert run.ends() == 0
    run.check()
    facts = json.loads((run.folder.best / "best.json").read_text())
    assert facts["config"]["height"] == 0.8
    assert facts["training_iteration"] == 4
