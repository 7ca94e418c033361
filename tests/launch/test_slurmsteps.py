"""Whether a step lives, by what Slurm prints of it: never "gone" while it does."""

from __future__ import annotations

import pytest

from hpcsched.launch import slurmsteps
from hpcsched.launch.slurmsteps import Presence, presence_of
from tests.support.slurmsays import SlurmSays

NAME = "hpcsched-0000002a.3.1.0"


def shown(step_id: str, name: str = NAME) -> str:
    return (
        f"StepId={step_id} UserId=1000 StartTime=2026-11-30T06:11:48 TimeLimit=UNLIMITED\n"
        "   State=RUNNING Partition=gpu NodeList=n[1-2]\n"
        f"   Nodes=2 CPUs=4 Tasks=2 Name={name} Network=(null)\n"
        "   SrunHost:Pid=vm:4711\n\n"
    )


@pytest.mark.parametrize("step_id", ["1235.0", None], ids=["known", "not known yet"])
@pytest.mark.parametrize(
    ("printed", "cancelled"),
    [(["1235.0"], "1235.0"), (["1234_1.0"], "1234_1.0"), (["1235.0+0", "1235.0+1"], "1235.0")],
    ids=["a job", "a task of an array", "a step of parts"],
)
def test_a_step_that_lives_is_found_however_slurm_prints_its_id(
    monkeypatch: pytest.MonkeyPatch, step_id: str | None, printed: list[str], cancelled: str
) -> None:
    slurm = SlurmSays({"scontrol show step": "".join(map(shown, printed))})
    monkeypatch.setattr(slurmsteps, "run_command", slurm)
    assert presence_of(step_id, NAME, "1235", {}) == (Presence.ALIVE, cancelled)
    assert slurm.asked[0][0][-1] == (step_id or "1235")


def test_steps_of_the_other_tasks_of_its_array_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for the id of the array, which the last task has for its own, Slurm shows step 0 of each task."""
    others = shown("1234_0.0", "hpcsched-00000001.3.1.0") + shown("1234_1.0", "hpcsched-00000002.3.1.0")
    monkeypatch.setattr(slurmsteps, "run_command", SlurmSays({"scontrol show step": others}))
    assert presence_of("1234.0", NAME, "1234", {}) == (Presence.GONE, "1234.0")
    monkeypatch.setattr(
        slurmsteps, "run_command", SlurmSays({"scontrol show step": others + shown("1234_2.0")})
    )
    assert presence_of("1234.0", NAME, "1234", {}) == (Presence.ALIVE, "1234_2.0")
