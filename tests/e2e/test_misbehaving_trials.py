"""Each way in which a trial can go wrong has the outcome that the design names, and the rest of the experiment goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcsched.core import events as ev
from tests.support.e2e import Run, light_job, plain

pytestmark = pytest.mark.xdist_group("misbehaving")  # one experiment for all


@dataclass(frozen=True)
class Case:
    """A trial's config, what becomes of it, and words of its story."""

    config: dict[str, Any]
    outcomes: tuple[str, ...]
    state: str
    words: tuple[str, ...] = ()


TWICE = ("crashed", "crashed")
CASES = {
    "well": Case({"height": 0.5}, ("completed",), "completed", ("saved iteration 4",)),
    "crash": Case({"do": "crash"}, TWICE, "failed", ("the script breaks in iteration 2", "code 1")),
    "crash once": Case(
        {"do": "crash", "until": 1}, ("crashed", "completed"), "completed", ("going on from iteration 1",)
    ),
    "crash first": Case({"do": "crash", "at": 0}, TWICE, "failed", ("the script breaks in iteration 0",)),
    "hang": Case({"do": "hang"}, ("killed", "killed"), "failed", ("was silent for too long",)),
    "never starts": Case({"do": "hang", "at": 0}, ("killed", "killed"), "failed", ("did not start in time",)),
    "slow start": Case({"do": "slow start", "at": 0}, ("completed",), "completed"),
    "nan": Case({"do": "nan"}, ("completed",), "completed", ("nan",)),
    "nan always": Case(
        {"do": "nan", "at": 1},
        ("completed",),
        "completed",
        ("accuracy is nan since iteration 1; fifo has no early stop",),
    ),
    "infinite": Case({"do": "infinite"}, ("completed",), "completed", ("inf",)),
    "huge line": Case({"do": "huge line"}, ("completed",), "completed"),
    "huge line, then crash": Case({"do": "huge line, then crash"}, TWICE, "failed", ("the script breaks",)),
    "exit 0": Case({"do": "exit 0"}, TWICE, "failed", ("code 0", "without a goodbye")),
    "exit 0 first": Case({"do": "exit 0", "at": 0}, TWICE, "failed", ("code 0", "without a report")),
    "killed": Case({"do": "killed"}, TWICE, "failed", ("signal 9",)),
    "segfault": Case({"do": "segfault"}, TWICE, "failed", ("signal 11",)),
    "out of memory": Case({"do": "out of memory"}, ("out_of_memory",) * 2, "failed", ("ran out of memory",)),
    "child": Case({"do": "child"}, ("completed",), "completed"),
    "daemon": Case({"do": "daemon"}, ("completed",), "completed"),
    "child, then crash": Case({"do": "child, then crash"}, TWICE, "failed"),
    "no goodbye": Case({"do": "no goodbye"}, ("crashed",), "completed", ("without a goodbye",)),
    "report after leaving": Case({"do": "report after leaving", "height": 0.4}, ("completed",), "completed"),
    "exit 5 after leaving": Case({"do": "exit 5 after leaving"}, ("completed",), "completed"),
    "hang after leaving": Case(
        {"do": "hang after leaving"}, ("completed",), "completed", ("did not leave in time",)
    ),
    "escape": Case({"do": "escape"}, TWICE, "failed", ("RuntimeError",)),
    "huge message": Case({"do": "huge message"}, ("completed",), "completed"),
    "too large": Case({"do": "too large message"}, TWICE, "failed", ("MessageError",)),
}
NUMBER = {name: number for number, name in enumerate(CASES)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """All of them in one experiment, so that each also has the others beside it."""
    made = light_job(
        tmp_path_factory.mktemp("misbehaving"),
        [case.config for case in CASES.values()],
        deadline="10m",
        num_atoms=8,
        extra='[timeouts]\nstart = "12s"\nsilence = "4s"\npreempt_grace = "4s"\nkill_wait = "8s"\n[retries]\nfail_fast = 0\n',
    ).start()
    try:
        made.ends(180.0)
        yield made
    finally:
        made.kill()


def test_the_experiment_goes_on_to_its_end(run: Run) -> None:
    assert run.process.returncode == 0, run.told()
    run.check()
    assert run.status["state"] == "finished"


@pytest.mark.parametrize("name", CASES)
def test_a_misbehaving_trial_has_the_outcome_that_the_design_names(run: Run, name: str) -> None:
    case = CASES[name]
    trial_id = NUMBER[name]
    assert tuple(run.outcomes()[trial_id]) == case.outcomes, run.explain(trial_id)
    assert run.states()[trial_id] == case.state


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.words])
def test_the_log_tells_the_story(run: Run, name: str) -> None:
    story = plain(run.explain(NUMBER[name]))
    for words in CASES[name].words:
        assert words in story


def test_nothing_that_a_trial_prints_reaches_the_terminal(run: Run) -> None:
    told = run.out + run.err + run.explain(NUMBER["escape"])
    assert "\x1b" not in told
    assert "\x07" not in told
    assert not list(Path(run.job.folder).rglob("owned"))


def test_what_is_said_after_the_goodbye_does_not_count(run: Run) -> None:
    """The metric of 99 has no checkpoint and comes past R."""
    trial_id = NUMBER["report after leaving"]
    best = max(
        event.metric for event in run.events(ev.ResultReported, trial_id=trial_id) if event.metric is not None
    )
    assert best < 1.0


def test_a_huge_line_is_kept_in_the_rank_log_and_not_in_the_journal(run: Run) -> None:
    trial_id = NUMBER["huge line, then crash"]
    assert run.folder.rank_log(trial_id, 1, 0).stat().st_size > 20_000_000
    for event in run.events(ev.TrialExited, trial_id=trial_id):
        assert len(event.why) < 10_000
