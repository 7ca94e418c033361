"""The srun launcher: the same tests over the fake executables (two versions) and over a real cluster, confined and not."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcsched.launch.launcher import NodesGone, StepEnded, StepRefused
from hpcsched.launch.orphans import end_orphans
from hpcsched.launch.pace import PaceLimits
from hpcsched.launch.srun import KillLimits
from hpcsched.wire import RankExited, RanksStarted, SupervisorGoodbye, SupervisorHello
from tests.support.cluster import Cluster, cluster, confined_cluster  # noqa: F401 - fixtures
from tests.support.dialogue import alive, driver_in, wait_until
from tests.support.worlds import FakeSlurm, Options, World, fake_world, real_world

WAITS = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(60)\n"
SHOWS = (
    "import os; print(os.environ['RANK'], os.environ['HPCSCHED_NODE'], os.environ['CUDA_VISIBLE_DEVICES'])"
)


@pytest.fixture(
    params=[
        "fake 22.05",
        "fake 24.11",
        pytest.param("real", marks=pytest.mark.slurm),
        pytest.param("confined", marks=pytest.mark.slurm),
    ]
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Four nodes of four GPUs."""
    if request.param.startswith("fake"):
        with fake_world(tmp_path / "run", version=request.param.removeprefix("fake ") + ".1") as made:
            yield made
    else:
        box: Cluster = request.getfixturevalue("cluster" if request.param == "real" else "confined_cluster")
        with real_world(box, tmp_path / "run") as made:
            yield made


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[World]:
    """Only the fake: what a real cluster cannot be made to do on purpose."""
    with fake_world(tmp_path / "run") as made:
        yield made


def slurm_of(world: World) -> FakeSlurm:
    assert world.slurm is not None
    return world.slurm


def test_a_trial_over_two_nodes_holds_the_very_gpus_that_it_was_given(world: World) -> None:
    """One GPU of n1 and three of n2, in one step."""
    launcher = world.launcher()
    spec = world.spec(SHOWS, {"n1": [2], "n2": [0, 1, 3]})
    launcher.start(spec)
    hellos = world.driver.wait_for(SupervisorHello, num=2)
    assert {hello.node: hello.devices for hello in hellos} == {"n1": ("2",), "n2": ("0", "1", "3")}
    assert len({hello.step_id for hello in hellos}) == 1
    world.driver.wait_for(SupervisorGoodbye, num=2)
    ended = world.driver.one(StepEnded)
    assert (ended.returncode, ended.proven_gone_nodes) == (0, ("n1", "n2"))
    said = [world.driver.rank_log(spec, rank).strip() for rank in range(4)]
    assert said == ["0 n1 2", "1 n2 0,1,3", "2 n2 0,1,3", "3 n2 0,1,3"]
    assert world.live_steps() == []


def test_many_trials_on_one_node_run_side_by_side_and_none_waits(world: World) -> None:
    """Each holds one GPU of n1; with inherited requests Slurm would run them one after the other."""
    launcher = world.launcher()
    for trial_id in range(4):
        launcher.start(world.spec(WAITS, {"n1": [trial_id]}, trial_id=trial_id))
    for trial_id in range(4):
        world.driver.one(RanksStarted, trial_id=trial_id)
    for trial_id in range(4):
        launcher.kill(trial_id, 1)
    for trial_id in range(4):
        assert world.driver.one(StepEnded, trial_id=trial_id).proven_gone_nodes == ("n1",)
    output = "".join(file.read_text() for file in world.driver.folder.root.glob("trials/*/*/srun-*.log"))
    assert "temporarily disabled" not in output


def test_killing_tells_first_and_then_proves_that_nothing_is_left(world: World) -> None:
    launcher = world.launcher()
    spec = world.spec(WAITS, {"n1": [0], "n2": [0]})
    launcher.start(spec)
    pids = [pid for started in world.driver.wait_for(RanksStarted, num=2) for pid in started.pids.values()]
    world.driver.kill(spec)
    launcher.kill(0, 1)
    world.driver.wait_for(SupervisorGoodbye, num=2)
    assert world.driver.one(StepEnded).proven_gone_nodes == ("n1", "n2")
    assert not any(alive(pid) for pid in pids)


def test_a_supervisor_that_hangs_is_ended_by_slurm(world: World) -> None:
    """Stopped supervisors hear nothing: scancel has to do it."""
    launcher = world.launcher()
    launcher.start(world.spec(WAITS, {"n1": [0], "n2": [0]}))
    supervisors = [hello.pid for hello in world.driver.wait_for(SupervisorHello, num=2)]
    pids = [pid for started in world.driver.wait_for(RanksStarted, num=2) for pid in started.pids.values()]
    for pid in supervisors:
        os.kill(pid, signal.SIGSTOP)
    launcher.kill(0, 1)
    assert world.driver.one(StepEnded).proven_gone_nodes == ("n1", "n2")
    assert not any(alive(pid) for pid in [*supervisors, *pids])


def test_a_rank_that_crashes_ends_the_step_on_all_its_nodes(world: World) -> None:
    launcher = world.launcher()
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(9)\ntime.sleep(600)"
    launcher.start(world.spec(script, {"n1": [0], "n2": [0]}))
    assert world.driver.one(RankExited, rank=1).code == 9
    ended = world.driver.one(StepEnded)
    assert ended.returncode != 0
    assert ended.proven_gone_nodes == ("n1", "n2")


def test_kill_answers_also_when_all_is_over_and_when_nothing_was_launched(world: World) -> None:
    launcher = world.launcher()
    launcher.start(world.spec("pass", {"n1": [0]}))
    world.driver.one(StepEnded)
    launcher.kill(0, 1)
    assert len(set(world.driver.wait_for(StepEnded, num=2))) == 1
    launcher.kill(5, 1)
    assert world.driver.one(StepEnded, trial_id=5).proven_gone_nodes == ()


def test_the_next_driver_life_finds_and_ends_what_a_dead_one_left(world: World) -> None:
    """Both processes of srun are killed: the ranks run on."""
    launcher = world.launcher()
    launcher.start(world.spec(WAITS, {"n1": [0], "n3": [1]}))
    hellos = world.driver.wait_for(SupervisorHello, num=2)
    pids = [pid for started in world.driver.wait_for(RanksStarted, num=2) for pid in started.pids.values()]
    run = launcher._lives[0, 1].runs[0]
    assert run.process is not None
    second = [
        pid
        for pid in children_of(run.process.pid)
        if "srun" in command_of(pid) and pid_group(pid) == run.process.pid
    ]
    for pid in [*second, run.process.pid]:
        os.kill(pid, signal.SIGKILL)
    run.process.wait()
    assert all(alive(pid) for pid in pids)
    found = end_orphans(world.driver.folder, world.allocation.job_id, world.env)
    assert any(hellos[0].step_id in line for line in found), found
    wait_until(lambda: not any(alive(pid) for pid in pids), "the ranks are gone")
    assert world.live_steps() == []


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def pid_group(pid: int) -> int:
    return os.getpgid(pid)


def test_end_orphans_leaves_other_experiments_alone(world: World, tmp_path: Path) -> None:
    launcher = world.launcher()
    launcher.start(world.spec(WAITS, {"n1": [0]}))
    started = world.driver.one(RanksStarted)
    with driver_in(tmp_path / "other") as other:
        theirs = World(world.env, world.allocation, world.nodes, world.gpus, other)
        assert end_orphans(theirs.driver.folder, theirs.allocation.job_id, theirs.env) == []
    assert alive(started.pids[0])


def test_close_leaves_nothing(world: World) -> None:
    launcher = world.launcher()
    for trial_id in range(3):
        launcher.start(world.spec(WAITS, {f"n{trial_id + 1}": [0]}, trial_id=trial_id))
    pids = [world.driver.one(RanksStarted, trial_id=trial_id).pids[0] for trial_id in range(3)]
    launcher.close()
    assert not any(alive(pid) for pid in pids)
    assert world.live_steps() == []


def test_binding_slurm_takes_what_slurm_picks(world: World) -> None:
    launcher = world.launcher(Options(binding="slurm"))
    shows = SHOWS + "\nimport time; time.sleep(600)"
    for trial_id in range(2):
        launcher.start(world.spec(shows, {"n1": [2 * trial_id, 2 * trial_id + 1]}, trial_id=trial_id))
        world.driver.one(RanksStarted, trial_id=trial_id)
        hello = world.driver.one(SupervisorHello, trial_id=trial_id)
        assert len(hello.devices) == 2


@pytest.mark.parametrize(("version", "spares"), [("21.08.5", False), ("22.05.8", True)])
def test_spares_wait_only_where_steps_share_their_gpus(tmp_path: Path, version: str, spares: bool) -> None:
    """Whatever the experiment file asks for."""
    with fake_world(tmp_path / "run", version=version) as world:
        assert world.launcher(Options(binding="overlap")).keeps_spares is spares
        assert not world.launcher(Options(binding="slurm")).keeps_spares


# ---- failures: nodes and the controller


@pytest.mark.parametrize("kind", ["fake", pytest.param("real", marks=pytest.mark.slurm)])
def test_a_dead_node_is_told_and_the_living_ones_are_proven_gone(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The step that touched it ends everywhere; steps elsewhere run on."""
    with contextlib.ExitStack() as stack:
        if kind == "fake":
            world = stack.enter_context(fake_world(tmp_path / "run", node_fail_s=8.0))
        else:
            world = stack.enter_context(real_world(request.getfixturevalue("cluster"), tmp_path / "run"))
        launcher = world.launcher()
        launcher.start(world.spec(WAITS, {"n3": [0], "n4": [0]}))
        launcher.start(world.spec(WAITS, {"n1": [0]}, trial_id=1))
        world.driver.wait_for(RanksStarted, num=3)
        other = world.driver.one(RanksStarted, trial_id=1).pids[0]
        try:
            if world.cluster is None:
                slurm_of(world).set(dead_nodes=["n4"])
            else:
                world.cluster.kill_node("n4")
            # Slurm notices after SlurmdTimeout; the driver does not wait for that and ends the incarnation itself.
            launcher.kill(0, 1)
            world.driver.one(NodesGone, trial_id=0, limit_s=60)
            gone = {node for notice in world.driver.all_of(NodesGone, trial_id=0) for node in notice.nodes}
            assert gone == {"n3"}
            assert alive(other)
            # srun is left alone: it ends by itself, and n4 stays unproven.
            assert world.driver.one(StepEnded, trial_id=0, limit_s=120).proven_gone_nodes == ("n3",)
            assert alive(other)
            launcher.start(world.spec(WAITS, {"n4": [1]}, trial_id=2))
            refused = world.driver.one(StepRefused, trial_id=2, limit_s=90)
            assert refused.whose == "slurm"
        finally:
            if world.cluster is not None:
                launcher.close()
                world.cluster.restore_node("n4")


def test_close_does_not_wait_for_an_srun_whose_node_is_known_to_be_silent(tmp_path: Path) -> None:
    """A driver that is about to put its job back into the queue has no half a minute for it, again at each end."""
    with fake_world(tmp_path / "run", node_fail_s=1000.0) as world:
        launcher = world.launcher(
            limits=KillLimits(grace_s=0.1, scancel_s=0.2, node_s=1000.0, close_s=1000.0)
        )
        launcher.start(world.spec(WAITS, {"n3": [0], "n4": [0]}))
        world.driver.wait_for(RanksStarted, num=2)
        slurm_of(world).set(dead_nodes=["n4"])
        launcher.kill(0, 1)
        assert world.driver.one(NodesGone).nodes == ("n3",)
        launcher.close()
        assert not world.driver.all_of(StepEnded)
        slurm_of(world).set(node_fail_s=0.0)


@pytest.mark.parametrize("kind", ["fake", pytest.param("real", marks=pytest.mark.slurm)])
def test_while_the_controller_is_away_nothing_is_blamed_on_a_trial(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Running ranks go on; a launch is refused by Slurm; a kill goes through the supervisors and is proven later."""
    with contextlib.ExitStack() as stack:
        if kind == "fake":
            world = stack.enter_context(fake_world(tmp_path / "run", away_s=0.5))
        else:
            world = stack.enter_context(real_world(request.getfixturevalue("cluster"), tmp_path / "run"))
        launcher = world.launcher()
        spec = world.spec(WAITS, {"n1": [0]})
        launcher.start(spec)
        started = world.driver.one(RanksStarted)
        if world.cluster is None:
            slurm_of(world).set(controller_away=True)
        else:
            world.cluster.stop_controller()
        try:
            launcher.start(world.spec(WAITS, {"n2": [0]}, trial_id=1))
            refused = world.driver.one(StepRefused, trial_id=1, limit_s=60)
            assert refused.whose == "slurm"
            assert "Unable to confirm allocation" in refused.why
            assert alive(started.pids[0])
            world.driver.kill(spec)
            launcher.kill(0, 1)
            assert world.driver.one(SupervisorGoodbye).exits == {0: -9}
            assert not alive(started.pids[0])
        finally:
            if world.cluster is None:
                slurm_of(world).set(controller_away=False)
            else:
                world.cluster.start_controller()
        ended = world.driver.one(StepEnded, trial_id=0, limit_s=90)
        if not ended.proven_gone_nodes:
            assert world.driver.one(NodesGone, trial_id=0, limit_s=90).nodes == ("n1",)


# ---- what only the fake can be made to do


@pytest.mark.parametrize(
    ("stderr", "whose"),
    [
        ("srun: error: Unable to create step for job 77: Requested nodes are busy", "slurm"),
        (
            "srun: error: Unable to create step for job 77: Requested node configuration is not available",
            "slurm",
        ),
        (
            "srun: error: Unable to create step for job 77: Invalid Trackable RESource (TRES) specification",
            "site",
        ),
        ("srun: error: Unable to create step for job 77: More processors requested than permitted", "site"),
        ("srun: unrecognized option '--overlap'", "site"),
        ("srun: something that nobody has seen before", "trial"),
    ],
)
def test_a_refusal_says_whose_fault_it_is_and_keeps_sruns_words(fake: World, stderr: str, whose: str) -> None:
    slurm_of(fake).set(refuse=[{"stderr": stderr, "code": 1}])
    fake.launcher().start(fake.spec(WAITS, {"n1": [0]}))
    refused = fake.driver.one(StepRefused)
    assert refused.whose == whose
    assert stderr in refused.why
    assert refused.retry_after_s > 0
    assert not fake.driver.all_of(StepEnded)


def test_an_unknown_refusal_is_slurm_s_when_no_other_step_runs_either(fake: World) -> None:
    """Else an outage with words that are in no table would fail one trial after another."""
    stderr = "srun: error: something that nobody has seen before"
    slurm_of(fake).set(refuse=[{"stderr": stderr, "times": 2}])
    fake.launcher().start(fake.spec(WAITS, {"n1": [0]}))
    refused = fake.driver.one(StepRefused)
    assert refused.whose == "slurm"
    assert "an empty step does not run on n1 either" in refused.why


def test_refusals_in_a_row_are_retried_later_and_later_until_one_works(fake: World) -> None:
    launcher = fake.launcher()
    slurm_of(fake).set(refuse=[{"stderr": "Requested nodes are busy", "times": 3}])
    delays = []
    for trial_id in range(3):
        launcher.start(fake.spec(WAITS, {"n1": [0]}, trial_id=trial_id))
        delays.append(fake.driver.one(StepRefused, trial_id=trial_id).retry_after_s)
    assert delays == [2.0, 4.0, 8.0]
    launcher.start(fake.spec(WAITS, {"n1": [0]}, trial_id=3))
    fake.driver.one(RanksStarted, trial_id=3)


def test_an_srun_that_hangs_and_prints_nothing_is_ended_by_kill(fake: World) -> None:
    slurm_of(fake).set(hang=True)
    launcher = fake.launcher()
    launcher.start(fake.spec(WAITS, {"n1": [0]}))
    wait_until(lambda: slurm_of(fake).calls("srun"), "srun was called")
    launcher.kill(0, 1)
    ended = fake.driver.one(StepEnded)
    assert ended.proven_gone_nodes == ("n1",)
    assert not fake.driver.all_of(SupervisorHello)


def test_a_step_that_does_not_die_stays_unproven_until_it_does(fake: World) -> None:
    """In a task of an array, whose steps Slurm prints by another id than it was asked for."""
    slurm_of(fake).set(printed="76_1")
    limits = KillLimits(grace_s=0.1, scancel_s=0.2, srun_s=0.2, settle_s=0.3, sweep_s=0.3, node_s=0.2)
    launcher = fake.launcher(limits=limits)
    launcher.start(fake.spec(WAITS, {"n1": [0]}))
    pid = fake.driver.one(RanksStarted).pids[0]
    slurm_of(fake).set(unkillable=True, hang=True)  # nor does a sweep get through
    launcher.kill(0, 1)
    assert fake.driver.one(StepEnded).proven_gone_nodes == ()
    assert alive(pid)
    assert not fake.driver.all_of(NodesGone)
    slurm_of(fake).set(unkillable=False, hang=False)
    assert fake.driver.one(NodesGone).nodes == ("n1",)
    assert not alive(pid)


def test_a_step_that_slurm_cannot_end_is_ended_and_proven_by_a_sweep_of_its_node(fake: World) -> None:
    launcher = fake.launcher(
        limits=KillLimits(grace_s=0.1, scancel_s=0.2, srun_s=0.2, settle_s=0.3, node_s=0.2)
    )
    launcher.start(fake.spec(WAITS, {"n1": [0], "n2": [0]}))
    pids = [pid for started in fake.driver.wait_for(RanksStarted, num=2) for pid in started.pids.values()]
    slurm_of(fake).set(unkillable=True)
    launcher.kill(0, 1)
    gone = {node for notice in fake.driver.wait_for(NodesGone) for node in notice.nodes}
    assert gone == {"n1", "n2"}
    assert not any(alive(pid) for pid in pids)


def test_no_more_steps_are_under_way_than_allowed(fake: World) -> None:
    launcher = fake.launcher(pace=PaceLimits(max_creating=2, burst=100))
    slurm_of(fake).set(hang=True)
    for trial_id in range(6):
        launcher.start(fake.spec("pass", {"n1": [0]}, trial_id=trial_id))
    wait_until(lambda: len(slurm_of(fake).calls("srun")) == 2, "two are under way")
    assert launcher._pace.num_creating == 2
    slurm_of(fake).set(hang=False)
    assert {each.trial_id for each in fake.driver.wait_for(StepEnded, num=6)} == set(range(6))
    assert launcher._pace.num_creating == 0


def test_what_is_forgotten_and_over_is_kept_no_more(fake: World) -> None:
    """A run of a week has a hundred thousand incarnations."""
    launcher = fake.launcher(Options(max_steps=0))
    for trial_id in range(2):
        launcher.start(fake.spec("pass", {"n1": [0]}, trial_id=trial_id))
    launcher.forget(0, 1)
    assert set(launcher._lives) == {(0, 1), (1, 1)}, "`close` would have to end it"
    for trial_id in range(2):
        launcher.kill(trial_id, 1)
        fake.driver.one(StepEnded, trial_id=trial_id)
    assert set(launcher._lives) == {(1, 1)}
    launcher.forget(1, 1)
    assert not launcher._lives


def test_a_launch_that_does_not_get_its_turn_in_time_is_refused_and_nobody_is_to_blame(fake: World) -> None:
    """Before its core takes it for one that hangs."""
    launcher = fake.launcher(Options(max_steps=0), turn_limit_s=0.0)
    launcher.start(fake.spec("pass", {"n1": [0]}))
    refused = fake.driver.one(StepRefused)
    assert refused.whose == "slurm"
    assert "waited 0 s for its turn: 0 steps are alive, as many as may be" in refused.why
    assert not slurm_of(fake).calls("srun")


def test_an_incarnation_that_waits_for_its_turn_is_cancelled_without_an_srun(fake: World) -> None:
    launcher = fake.launcher(pace=PaceLimits(max_creating=1, burst=100))
    slurm_of(fake).set(hang=True)
    launcher.start(fake.spec("pass", {"n1": [0]}))
    wait_until(lambda: len(slurm_of(fake).calls("srun")) == 1, "the first is under way")
    launcher.start(fake.spec("pass", {"n2": [0]}, trial_id=1))
    launcher.kill(1, 1)
    assert fake.driver.one(StepEnded, trial_id=1).proven_gone_nodes == ("n2",)
    assert len(slurm_of(fake).calls("srun")) == 1


def test_when_one_of_two_steps_is_refused_the_other_one_goes_before_it_is_told(tmp_path: Path) -> None:
    nodes = {"n1": {"gpus": 2, "cpus": 16}, "n2": {"gpus": 4, "cpus": 16}}
    with fake_world(tmp_path / "run", nodes=nodes) as world:
        launcher = world.launcher()
        slurm_of(world).set(refuse=[{"stderr": "Requested nodes are busy", "calls": 2}])
        launcher.start(world.spec(WAITS, {"n1": [0], "n2": [3]}))
        refused = world.driver.one(StepRefused)
        assert refused.whose == "slurm"
        assert world.live_steps() == []
        assert {"--gres=gpu:2", "--gpus=4"} <= {
            word for call in slurm_of(world).calls("srun") for word in call["argv"]
        }


def test_what_the_job_requested_does_not_leak_into_steps(fake: World) -> None:
    launcher = fake.launcher()
    launcher.start(fake.spec("pass", {"n1": [0]}))
    fake.driver.one(StepEnded)
    (call,) = slurm_of(fake).calls("srun")
    leaked = {name for name in call["env"] if name.startswith(("SLURM_", "PMI"))}
    assert leaked == {"SLURM_JOB_ID"}


def test_an_srun_that_is_not_there_is_the_sites_problem(fake: World) -> None:
    fake.env["PATH"] = "/nonexistent"
    launcher = fake.launcher()
    launcher.start(fake.spec("pass", {"n1": [0]}))
    assert fake.driver.one(StepRefused).whose == "site"
