"""Values and arithmetic of the runtime: place, budget, verdict wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.errors import TrialError
from hpcsched.runtime.budget import SaveBudget, verdict_wait_s
from hpcsched.runtime.place import claim, find_place, process_age_s
from tests.support.groups import launch, place_of

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}


def test_a_script_alone_is_one_rank() -> None:
    place = find_place({})
    assert (place.rank, place.world_size, place.launch, place.rendezvous) == (0, 1, None, False)


def test_under_torchrun_its_ranks_are_ours() -> None:
    place = find_place(TORCHRUN)
    assert (place.rank, place.world_size, place.local_rank, place.launch, place.rendezvous) == (
        1,
        2,
        1,
        None,
        True,
    )


@pytest.mark.parametrize(
    "changes",
    [{"RANK": "2"}, {"RANK": "-1"}, {"WORLD_SIZE": "two"}, {"HPCSCHED_LAUNCH": "/nowhere/launch.json"}],
)
def test_an_environment_that_makes_no_sense_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(TrialError):
        find_place(TORCHRUN | changes)
    with pytest.raises(TrialError):
        find_place({"RANK": "0"})
    with pytest.raises(TrialError, match="by hand"):
        find_place({"HPCSCHED_LAUNCH": "launch.json"})


def test_a_rank_is_one_process_and_joins_once(tmp_path: Path) -> None:
    environ = {"HOME": "/"}
    alone, rank = place_of(None), place_of(launch(tmp_path))
    claim(alone, environ, 7)
    claim(alone, environ, 7)
    assert environ == {"HOME": "/"}, "a script alone may do as it likes"
    claim(rank, environ, 7)
    with pytest.raises(TrialError, match=r"call hpcsched\.trial\(\) once"):
        claim(rank, environ, 7)
    with pytest.raises(TrialError, match=r"rank 0 is process 7, .*if __name__ =="):
        claim(rank, environ, 8)


@pytest.mark.parametrize(
    ("iteration_s", "wait_s"), [(0.0, 0.2), (10.0, 0.2), (50.0, 1.0), (250.0, 5.0), (9999.0, 5.0)]
)
def test_the_verdict_is_awaited_two_percent_of_an_iteration(iteration_s: float, wait_s: float) -> None:
    assert verdict_wait_s(iteration_s, least_s=0.2, most_s=5.0) == pytest.approx(wait_s)


def test_a_save_is_due_when_it_costs_less_than_its_share() -> None:
    budget = SaveBudget(share=0.05)
    assert not budget.is_due(0)
    budget.trained_s = 2.1
    assert budget.is_due(0)  # 0.1 s assumed, 0.105 s allowed
    assert not budget.is_due(10**9)
    budget.saved(4.0)
    budget.trained_s = 80.0
    assert not budget.is_due(0)
    budget.trained_s = 80.1
    assert budget.is_due(0)


def test_the_age_of_this_process_is_read_where_there_is_proc(tmp_path: Path) -> None:
    assert process_age_s() >= 0.0
    assert process_age_s(proc=tmp_path) == 0.0
    (tmp_path / "self").mkdir()
    fields = ["0"] * 50
    fields[19] = "5000"
    (tmp_path / "self/stat").write_text("7 (a ) b) " + " ".join(fields))
    (tmp_path / "uptime").write_text("60.00 1.0")
    assert 9.0 <= process_age_s(proc=tmp_path) <= 60.0
