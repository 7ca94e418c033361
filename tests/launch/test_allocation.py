"""What is read of an allocation, and what is said when Slurm does not answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcsched.errors import AllocationError, CommandError
from hpcsched.launch.allocation import parse_slurm_time, read_allocation, read_ends_at, why_over
from tests.support.slurmsays import Answer, SlurmSays

FIXTURES = Path(__file__).parent.parent / "topology" / "fixtures"
SEEN = FIXTURES / "slurm-22.05"

ENVIRON = {
    "SLURM_JOB_ID": "30001",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_NODELIST": "n[1-4]",
    "SLURMD_NODENAME": "n1",
}


def table(**changes: Answer) -> dict[str, Answer]:
    answers: dict[str, Answer] = {
        "srun --version": "slurm-wlm 22.05.8\n",
        "scontrol show job": (SEEN / "show-job-unequal.txt").read_text(),
        "scontrol show node": (SEEN / "show-node.txt").read_text(),
        "scontrol show topology": (SEEN / "show-topology.txt").read_text(),
        "scontrol batch_script": "#!/bin/bash\n#SBATCH -N4 --no-kill  # outlive a node\nexec hpcsched run x\n",
        "squeue %e": "1796019681\n",
    }
    return {words.replace("_", " "): answer for words, answer in changes.items()} | answers


def refused(stderr: str, code: int | None = 1) -> CommandError:
    return CommandError(("x",), code, "", stderr)


def test_outside_of_slurm_there_is_no_allocation_and_nothing_is_asked() -> None:
    slurm = SlurmSays({})
    assert read_allocation({}, slurm) is None
    assert slurm.asked == []


def test_a_job_is_read_whole() -> None:
    found = read_allocation(ENVIRON | {"SLURM_CLUSTER_NAME": "box"}, SlurmSays(table()))
    assert found is not None
    assert (found.job_id, found.cluster, found.partition, found.version) == ("30001", "box", "gpu", (22, 5))
    assert found.nodes == ("n1", "n2", "n3", "n4"), (
        "all nodes of the job, also from inside a step of one node"
    )
    assert (found.ends_at, found.time_limit_s) == (1796019681.0, 93840.0)
    assert [(g.node, g.gpus.num if g.gpus else None, g.num_cpus, g.memory_mb) for g in found.grants] == [
        ("n1", 4, 2, 16000),
        ("n2", 4, 2, 16000),
        ("n3", 2, 2, 16000),
        ("n4", 1, 2, 16000),
    ]
    assert found.switches["n3"] == ("spine", "leaf2")
    assert (found.driver_node, found.no_kill, found.num_restarts) == ("n1", True, 0)
    assert found.warnings == ()


def test_times_are_asked_for_in_unix_seconds_and_the_users_formats_are_dropped() -> None:
    slurm = SlurmSays(table())
    read_allocation(
        ENVIRON | {"SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative", "SLURM_CONF": "/etc/x"}, slurm
    )
    for _, env in slurm.asked:
        assert "SQUEUE_FORMAT" not in env
        assert (env["SLURM_TIME_FORMAT"], env["LC_ALL"], env["SLURM_CONF"]) == ("%s", "C", "/etc/x")


def test_when_nothing_answers_the_environment_is_used_and_each_gap_is_said_once() -> None:
    found = read_allocation(ENVIRON, SlurmSays({}))
    assert found is not None
    assert found.nodes == ("n1", "n2", "n3", "n4")
    assert (found.ends_at, found.version, found.grants, found.no_kill) == (None, None, (), None)
    assert len(found.warnings) == len(set(found.warnings))
    for word in ("Slurm version", "what the job holds", "the nodes", "the switches", "the end of job 30001"):
        assert sum(word in warning for warning in found.warnings) == 1, word


@pytest.mark.parametrize("why", [refused("slurm_load_jobs error: Unable to contact slurm controller (connect failure)"), refused("", None)])  # fmt: skip
def test_a_controller_that_is_away_is_asked_once(why: CommandError) -> None:
    slurm = SlurmSays({"srun --version": "slurm 24.11.5", "scontrol": why, "squeue": why})
    found = read_allocation(ENVIRON, slurm)
    assert found is not None and found.nodes == ("n1", "n2", "n3", "n4")
    assert [argv[0] for argv, _ in slurm.asked] == ["srun", "scontrol"]
    assert sum("controller does not answer" in warning for warning in found.warnings) == 1


def test_only_the_first_part_of_a_heterogeneous_job_is_used_and_it_is_said() -> None:
    found = read_allocation(ENVIRON | {"SLURM_HET_SIZE": "2"}, SlurmSays(table()))
    assert found is not None
    assert found.warnings == ("this is a heterogeneous job: only its first component is used",)


def test_json_of_24_11_fills_in_when_the_text_names_no_gpus() -> None:
    answers = table() | {
        "scontrol show job": "JobId=4711 JobName=x\n   JobState=RUNNING\n   NodeList=jwb[0001-0002]\n",
        "squeue --json": (FIXTURES / "slurm-24.11/squeue.json").read_text(),
        "scontrol show node": "",
    }
    found = read_allocation({"SLURM_JOB_ID": "4711"}, SlurmSays(answers))
    assert found is not None
    assert found.nodes == ("jwb0001", "jwb0002")
    assert [grant.gpus.ids for grant in found.grants if grant.gpus] == [(0, 1, 2, 3), (1, 3)]


def test_a_node_that_is_down_is_left_out() -> None:
    nodes = (SEEN / "show-node.txt").read_text().replace("State=MIXED", "State=MIXED*", 1)
    found = read_allocation(ENVIRON, SlurmSays(table() | {"scontrol show node": nodes}))
    assert found is not None
    assert found.nodes == ("n2", "n3", "n4")
    assert found.warnings == ("Slurm says that n1 is down: left out",)


def test_the_environment_of_a_job_that_is_over_is_refused() -> None:
    over = (SEEN / "show-job-unequal.txt").read_text().replace("JobState=RUNNING", "JobState=TIMEOUT")
    with pytest.raises(AllocationError, match=r"job 30001, but that job is TIMEOUT"):
        read_allocation(ENVIRON, SlurmSays(table() | {"scontrol show job": over}))


def test_without_any_list_of_nodes_it_says_why() -> None:
    with pytest.raises(AllocationError, match=r"no list of nodes.*Invalid job id"):
        read_allocation({"SLURM_JOB_ID": "7"}, SlurmSays({"scontrol show job": refused("slurm_load_jobs error: Invalid job id specified")}))  # fmt: skip


@pytest.mark.parametrize(("text", "end"), [("NONE", (None, True)), ("1796019681", (1796019681.0, True)), ("INVALID", (None, False)), ("", (None, False))])  # fmt: skip
def test_the_end_is_known_none_or_unknown(text: str, end: tuple[float | None, bool]) -> None:
    assert read_ends_at("1", {}, SlurmSays({"squeue %e": text})) == end


def test_the_last_task_of_a_job_array_reads_itself_among_all_tasks() -> None:
    """It has the array's id for its own, and asked for that Slurm tells of each task."""
    mine = (SEEN / "show-job-unequal.txt").read_text()
    other = mine.replace("JobId=30001", "JobId=30002").replace("n[1-4]", "n9").replace("RUNNING", "COMPLETED")
    answers = {
        "scontrol show job": f"{other}\n{mine}",
        "squeue %e": "1796019999\n1796019681\n",
        "squeue": "30002 1796019999\n30001 1796019681\n",
    }
    found = read_allocation(ENVIRON, SlurmSays(answers))
    assert found is not None
    assert found.nodes == ("n1", "n2", "n3", "n4")
    assert found.ends_at == 1796019681.0
    assert why_over("30001", {}, SlurmSays(answers)) is None


def test_an_end_without_an_answer_is_unknown() -> None:
    assert read_ends_at("1", {}, SlurmSays({"squeue": refused("", None)})) == (None, False)


def test_dates_are_in_this_computers_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_slurm_time("2026-11-30T06:21:21") == 1796019681.0 - 9 * 3600
    finally:
        monkeypatch.undo()
        time.tzset()
    for text in ("N/A", "Unknown", "NONE", "2026-13-01T00:00:00", "", "12"):
        assert parse_slurm_time(text) is None


@pytest.mark.parametrize(
    ("environ", "script", "submit", "no_kill"),
    [
        ({}, "#SBATCH --no-kill\n", "", True),
        ({}, "#SBATCH -k\n", "", True),
        ({}, "#SBATCH --no-kill=off\n", "", False),
        ({}, "echo --no-kill\n", "", None),
        ({}, "", "   SubmitLine=sbatch -N 4 --no-kill job.sh\n", True),
        ({"SBATCH_NO_KILL": "1"}, "", "", True),
    ],
)
def test_no_kill_is_looked_for_where_it_was_said(
    environ: dict[str, str], script: str, submit: str, no_kill: bool | None
) -> None:
    answers = table() | {
        "scontrol batch_script": script,
        "scontrol show job": (SEEN / "show-job-unequal.txt").read_text().rstrip() + "\n" + submit,
    }
    found = read_allocation(ENVIRON | environ, SlurmSays(answers))
    assert found is not None
    assert found.no_kill is no_kill


def test_the_drivers_node_is_found_by_the_hosts_name_where_slurm_does_not_say() -> None:
    here = {name: value for name, value in ENVIRON.items() if name != "SLURMD_NODENAME"}
    assert (
        getattr(read_allocation(here, SlurmSays(table()), hostname="n3.cluster.org"), "driver_node", "")
        == "n3"
    )
    assert getattr(read_allocation(here, SlurmSays(table()), hostname="login1"), "driver_node", "") is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("JobId=7 JobName=x\n   JobState=CANCELLED Reason=None\n", "it is CANCELLED"),
        ("JobId=7 JobName=x\n   JobState=RUNNING Reason=None\n", None),
        ("JobId=7 JobName=x\n   JobState=PENDING Reason=BeginTime\n", None),
        (refused("slurm_load_jobs error: Invalid job id specified"), "Slurm does not know it any more"),
        (refused("slurm_load_jobs error: Unable to contact slurm controller (connect failure)"), None),
        (refused("", None), None),
        ("", None),
    ],
)
def test_a_job_is_over_only_when_slurm_says_so(answer: str, why: str | None) -> None:
    assert why_over("7", {}, SlurmSays({"scontrol show job": answer})) == why
