"""Dialogues with a crew: what supervisors, rank 0 and the launcher say, and what the core is told."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hpcsched import wire
from hpcsched.core import events as ev
from hpcsched.core.enums import Outcome
from hpcsched.driver.crew import (
    LINGERS_AFTER_S,
    SETTLE_LIMIT_S,
    SILENT_AFTER_S,
    Crew,
    Effects,
    picked_text,
    restart_text,
)
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec, RestorePoint
from hpcsched.topology.machine import AtomId

T, I = 3, 2  # noqa: E741  (trial and incarnation)
ATOMS = {"n1": (AtomId(0), AtomId(1)), "n2": (AtomId(4),)}


def make_spec(nodes: tuple[str, ...] = ("n1",)) -> LaunchSpec:
    rank = 0
    shares = []
    for node in nodes:
        gpus = tuple(str(i) for i in range(len(ATOMS[node])))
        shares.append(
            LaunchNode(node=node, gpus=gpus, cores=(), memory_mb=None, first_rank=rank, job_gpus=gpus)
        )
        rank += len(gpus)
    return LaunchSpec(
        trial_id=T,
        incarnation=I,
        config={},
        command=("true",),
        cwd="/",
        env={},
        nodes=tuple(shares),
        master_addr="n1",
        master_port=20000,
        channel=Channel(endpoints=(), server_key_file="", client_key_file=""),
        run_dir="/",
        metric="accuracy",
        mode="max",
        max_iterations=9,
        seed=0,
        restore=None,
        restore_iteration=0,
    )


def make_crew(nodes: tuple[str, ...] = ("n1",)) -> Crew:
    return Crew(make_spec(nodes), lambda node: ATOMS[node], started_at=10.0)


def hello(node: str) -> wire.SupervisorHello:
    return wire.SupervisorHello(T, I, node=node, pid=1, step_id="7.0", devices=(), cores=())


def rank_hello() -> wire.RankHello:
    return wire.RankHello(T, I, pid=5, world_size=2, setup_s={"import": 1.0}, restored_iteration=0)


def report(seq: int, iteration: int, **metrics: float | None) -> wire.Report:
    return wire.Report(T, I, seq=seq, training_iteration=iteration, metrics=metrics, time_this_iter_s=0.5)


def goodbye(node: str, **exits: int) -> wire.SupervisorGoodbye:
    return wire.SupervisorGoodbye(
        T, I, node=node, exits={int(rank[1:]): code for rank, code in exits.items()}
    )


def ticked(crew: Crew, now: float) -> Effects:
    return crew.tick(now) or Effects()


INPUTS = (
    lambda crew, now: crew.heard(hello("n1"), now),
    lambda crew, now: crew.heard(hello("n2"), now),
    lambda crew, now: crew.heard(wire.Heartbeat(T, I, node="n1"), now),
    lambda crew, now: crew.heard(wire.Heartbeat(T, I, node="n2"), now),
    lambda crew, now: crew.heard(rank_hello(), now),
    lambda crew, now: crew.heard(report(int(now), int(now), accuracy=0.5), now),
    lambda crew, now: crew.heard(wire.Leaving(T, I, how="completed", training_iteration=9), now),
    lambda crew, now: crew.heard(wire.RankExited(T, I, node="n1", rank=1, code=0), now),
    lambda crew, now: crew.heard(wire.RankExited(T, I, node="n2", rank=2, code=3), now),
    lambda crew, now: crew.heard(goodbye("n1", r0=0, r1=0), now),
    lambda crew, now: crew.heard(goodbye("n2", r2=-9), now),
    lambda crew, now: crew.kill(now, "too late"),
    lambda crew, now: crew.refused(now + 1.0, "no room", now),
    lambda crew, now: crew.nodes_gone(("n2",), now),
)


@given(st.lists(st.tuples(st.integers(0, len(INPUTS) - 1), st.floats(0.1, 8.0)), max_size=14))
def test_a_look_is_skipped_only_where_it_would_find_nothing(story: list[tuple[int, float]]) -> None:
    quick, thorough = make_crew(("n1", "n2")), make_crew(("n1", "n2"))
    thorough._is_well = lambda now: False  # type: ignore[method-assign]
    now = 10.0
    for which, later_s in story:
        now += later_s
        assert ticked(quick, now) == ticked(thorough, now)
        assert INPUTS[which](quick, now) == INPUTS[which](thorough, now)
        assert (quick.closed, quick.settled) == (thorough.closed, thorough.settled)
    assert ticked(quick, now + SILENT_AFTER_S + 1.0) == ticked(thorough, now + SILENT_AFTER_S + 1.0)


def test_what_slurm_chose_is_told_and_what_we_chose_is_not() -> None:
    crew = make_crew(("n1", "n2"))
    assert crew.heard(hello("n1"), 11.0).picked is None
    given = msgspec.structs.replace(hello("n2"), devices=("0", "3"), uuids=("GPU-a", "GPU-b"), picked=True)
    told = crew.heard(given, 11.0).picked
    assert told == given
    assert picked_text(told) == "on n2 Slurm gave GPU 0,3 (GPU-a, GPU-b)"
    refused = msgspec.structs.replace(given, devices=())
    assert make_crew(("n2",)).heard(refused, 11.0).picked is None, "a supervisor that refuses has none"


def exited(events: list[ev.Event]) -> ev.TrialExited:
    (event,) = [event for event in events if isinstance(event, ev.TrialExited)]
    return event


def test_a_whole_life_is_started_reported_saved_and_completed() -> None:
    crew = make_crew()
    assert crew.heard(hello("n1"), 11.0).sends == [(f"{T}.{I}.sup.n1", wire.SupervisorWelcome(T, I))]
    started = crew.heard(rank_hello(), 14.0)
    assert started.events == [ev.TrialStarted(time=14.0, trial_id=T, incarnation=I, setup_time_s=4.0)]
    effects = crew.heard(report(1, 1, accuracy=0.5, loss=2.0), 15.0)
    assert effects.reply_to == 1
    assert effects.events == [
        ev.ResultReported(
            time=15.0, trial_id=T, incarnation=I, training_iteration=1, metric=0.5, time_this_iter_s=0.5
        )
    ]
    saved = crew.heard(wire.SavedCheckpoint(T, I, training_iteration=1, save_s=0.1, num_bytes=9), 15.5)
    assert saved.events == [
        ev.CheckpointSaved(
            time=15.5, trial_id=T, incarnation=I, training_iteration=1, save_time_s=0.1, num_bytes=9
        )
    ]
    assert crew.heard(wire.Leaving(T, I, how="completed", training_iteration=1), 16.0).events == []
    assert crew.heard(wire.RankExited(T, I, node="n1", rank=0, code=0), 16.1).events == []
    end = crew.heard(goodbye("n1", r0=0, r1=0), 16.2)
    assert exited(end.events).outcome is Outcome.COMPLETED
    assert exited(end.events).unproven == ()
    assert crew.settled


def test_a_report_that_comes_twice_is_judged_once_and_answered_twice() -> None:
    crew = make_crew()
    crew.heard(rank_hello(), 11.0)
    assert len(crew.heard(report(1, 1, accuracy=0.5), 12.0).events) == 1
    again = crew.heard(report(1, 1, accuracy=0.5), 12.5)
    assert again.events == []
    assert again.sends == [(f"{T}.{I}.rank0", wire.Reply(T, I, 1, None))]


def test_metrics_that_are_no_numbers_arrive_as_none_with_their_problem() -> None:
    crew = make_crew()
    crew.heard(rank_hello(), 11.0)
    seen = []
    for seq, metrics in enumerate(
        [{"loss": 1.0}, {"accuracy": None}, {"accuracy": float("inf")}, {"accuracy": float("-inf")}], start=1
    ):
        (event,) = crew.heard(report(seq, seq, **metrics), 12.0).events
        assert isinstance(event, ev.ResultReported)
        seen.append((event.metric, event.problem))
    assert seen == [(None, "missing"), (None, "nan"), (None, "inf"), (None, "-inf")]


def test_a_crashed_rank_ends_the_ranks_on_every_node() -> None:
    crew = make_crew(("n1", "n2"))
    crew.heard(hello("n1"), 11.0)
    crew.heard(hello("n2"), 11.0)
    crew.heard(rank_hello(), 12.0)
    effects = crew.heard(wire.RankExited(T, I, node="n2", rank=2, code=7, tail="boom"), 13.0)
    assert {peer for peer, message in effects.sends if isinstance(message, wire.KillRanks)} == {
        f"{T}.{I}.sup.n1",
        f"{T}.{I}.sup.n2",
    }
    assert effects.events == []
    assert crew.heard(goodbye("n2", r2=7), 13.1).events == []
    end = exited(crew.heard(goodbye("n1", r0=-9, r1=-9), 13.2).events)
    assert end.outcome is Outcome.CRASHED
    assert "rank 2 on n2 ended with code 7" in end.why
    assert "boom" in end.why


def test_ranks_that_exit_with_0_and_without_a_word_have_crashed() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    end = exited(crew.heard(goodbye("n1", r0=0, r1=0), 12.0).events)
    assert end.outcome is Outcome.CRASHED
    assert "without a report" in end.why


def test_what_breaks_after_the_goodbye_is_no_failure() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    crew.heard(rank_hello(), 12.0)
    crew.preempt("pause")
    crew.heard(wire.Leaving(T, I, how="preempted", training_iteration=4), 13.0)
    assert crew.heard(wire.RankExited(T, I, node="n1", rank=1, code=-6), 13.1).sends == []
    assert exited(crew.heard(goodbye("n1", r0=0, r1=-6), 13.2).events).outcome is Outcome.PREEMPTED


def test_a_trial_killed_after_its_goodbye_has_left_as_asked() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    crew.heard(rank_hello(), 12.0)
    crew.preempt("deadline")
    crew.heard(wire.Leaving(T, I, how="preempted", training_iteration=4), 13.0)
    crew.kill(14.0, "the deadline has passed")
    assert exited(crew.heard(goodbye("n1", r0=-9, r1=-9), 14.1).events).outcome is Outcome.PREEMPTED


def test_a_preemption_before_the_first_contact_is_told_at_the_first_contact() -> None:
    crew = make_crew()
    assert crew.preempt("resize").sends == []
    effects = crew.heard(rank_hello(), 12.0)
    assert effects.sends == [(f"{T}.{I}.rank0", wire.LeaveOrder(T, I, "resize"))]


def test_a_silent_supervisor_fails_the_node_and_its_atoms_are_unproven() -> None:
    crew = make_crew(("n1", "n2"))
    crew.heard(hello("n1"), 11.0)
    crew.heard(hello("n2"), 11.0)
    crew.heard(rank_hello(), 12.0)
    crew.heard(wire.Heartbeat(T, I, node="n1"), 16.5)
    effects = ticked(crew, 11.0 + SILENT_AFTER_S + 0.6)
    assert effects.kill_steps
    assert (f"{T}.{I}.sup.n1", wire.KillRanks(T, I, effects.notes[0])) in effects.sends
    end = exited(crew.heard(goodbye("n1", r0=-9, r1=-9), 17.0).events)
    assert end.outcome is Outcome.NODE_FAILED
    assert end.unproven == ATOMS["n2"]
    assert not crew.settled
    back = crew.nodes_gone(("n2",), 40.0)
    assert back.events == [ev.AtomsReturned(time=40.0, atoms=ATOMS["n2"])]
    assert crew.settled


def test_a_supervisor_that_comes_back_after_the_end_is_told_to_kill() -> None:
    crew = make_crew(("n1", "n2"))
    for node in ("n1", "n2"):
        crew.heard(hello(node), 11.0)
    crew.heard(wire.Heartbeat(T, I, node="n1"), 16.0)
    crew.tick(17.0)
    crew.heard(goodbye("n1", r0=-9, r1=-9), 17.1)
    assert crew.closed
    effects = crew.heard(wire.Heartbeat(T, I, node="n2"), 60.0)
    assert [type(message) for _, message in effects.sends] == [wire.KillRanks]
    late = crew.heard(report(9, 9, accuracy=1.0), 60.1)
    assert late.events == []
    assert crew.heard(goodbye("n2", r2=-9), 60.2).events == [ev.AtomsReturned(time=60.2, atoms=ATOMS["n2"])]


def test_the_driver_s_own_stop_is_nobody_s_silence() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    crew.forgive_silence(60.0)
    assert crew.tick(72.0) is None


def test_a_step_that_ends_before_its_supervisor_said_hello_is_a_failed_launch() -> None:
    crew = make_crew()
    end = exited(
        crew.step_ended(("n1",), 1, "slurmstepd: error: execve(): python: No such file", 11.0).events
    )
    assert end.outcome is Outcome.LAUNCH_FAILED
    assert "No such file" in end.why


def test_a_refused_launch_blames_nobody() -> None:
    crew = make_crew()
    (event,) = crew.refused(15.0, "Requested nodes are busy", 11.0).events
    assert event == ev.LaunchRefused(
        time=11.0, trial_id=T, incarnation=I, retry_at=15.0, why="Requested nodes are busy"
    )


def test_a_launch_that_can_never_work_has_failed() -> None:
    crew = make_crew()
    effects = crew.refused(15.0, "srun: unrecognized option\n(see srun_args)", 10.0, "site")
    (event,) = effects.events
    assert event == ev.TrialExited(
        10.0, T, I, Outcome.LAUNCH_FAILED, "srun: unrecognized option\n(see srun_args)", ()
    )
    assert not crew.accuses_nodes


def test_a_port_in_use_waits_for_the_other_nodes_and_is_a_refusal() -> None:
    crew = make_crew(("n1", "n2"))
    crew.heard(hello("n1"), 11.0)
    crew.heard(hello("n2"), 11.0)
    first = crew.heard(wire.SupervisorRefuses(T, I, node="n1", problem="port", why="in use"), 11.5)
    assert first.events == []
    (event,) = crew.heard(goodbye("n2", r2=-9), 11.9).events
    assert isinstance(event, ev.LaunchRefused)
    assert "port 20000 is in use on n1" in event.why


def test_a_mismatch_sets_the_atoms_aside() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    effects = crew.heard(
        wire.SupervisorRefuses(T, I, node="n1", problem="mismatch", why="n1: cores 3 cannot be pinned"), 11.5
    )
    assert effects.events[0] == ev.MachineChanged(
        time=11.5, down=ATOMS["n1"], why="n1: cores 3 cannot be pinned"
    )
    assert exited(effects.events).outcome is Outcome.LAUNCH_FAILED


def test_only_the_atom_of_the_gpu_at_fault_is_set_aside() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    refusal = wire.SupervisorRefuses(T, I, node="n1", problem="mismatch", why="GPU 1: pid 4", gpus=("1",))
    effects = crew.heard(refusal, 11.5)
    assert effects.events[0] == ev.MachineChanged(time=11.5, down=ATOMS["n1"][1:], why="GPU 1: pid 4")


ECC = "uncorrectable ECC error encountered"


def test_a_gpu_that_fails_in_training_is_the_nodes_fault_and_its_atom_is_set_aside() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    crew.heard(rank_hello(), 14.0)
    died = wire.RankExited(T, I, node="n1", rank=1, code=1, tail=f"CUDA error: {ECC}", gpu_failure=ECC)
    effects = crew.heard(died, 20.0)
    why = f"GPU 1 of n1 has failed under rank 1 ({ECC})"
    assert effects.events == [ev.MachineChanged(time=20.0, down=ATOMS["n1"][1:], why=why)]
    assert effects.aside == ATOMS["n1"][1:], "it is looked at again"
    assert [peer for peer, message in effects.sends if isinstance(message, wire.KillRanks)] == [
        f"{T}.{I}.sup.n1"
    ]
    end = exited(crew.heard(goodbye("n1", r0=-9, r1=1), 20.5).events)
    assert (end.outcome, end.why) == (
        Outcome.NODE_FAILED,
        f"{why}; end of its log:\nCUDA error: {ECC}",
    )


def test_a_rank_that_ends_first_because_the_gpu_of_another_failed_is_no_crash() -> None:
    crew = make_crew(("n1", "n2"))
    crew.heard(hello("n1"), 11.0)
    crew.heard(hello("n2"), 11.0)
    crew.heard(wire.RankExited(T, I, node="n2", rank=2, code=1, tail="NCCL error"), 20.0)
    effects = crew.heard(wire.RankExited(T, I, node="n1", rank=0, code=-9, gpu_failure=ECC), 20.1)
    assert effects.aside == ATOMS["n1"][:1]
    crew.heard(goodbye("n2", r2=1), 20.2)
    assert exited(crew.heard(goodbye("n1", r0=-9, r1=-9), 20.3).events).outcome is Outcome.NODE_FAILED


def test_no_atom_is_set_aside_for_a_failed_gpu_that_slurm_chose() -> None:
    crew = make_crew()
    crew.heard(msgspec.structs.replace(hello("n1"), devices=("0", "3"), picked=True), 11.0)
    effects = crew.heard(wire.RankExited(T, I, node="n1", rank=1, code=1, gpu_failure=ECC), 20.0)
    assert (effects.events, effects.aside) == ([], ())
    end = exited(crew.heard(goodbye("n1", r0=-9, r1=1), 20.5).events)
    assert (end.outcome, end.why) == (Outcome.NODE_FAILED, f"a GPU of n1 has failed under rank 1 ({ECC})")


def test_two_nodes_that_name_the_same_device_end_the_launch() -> None:
    crew = make_crew(("n1", "n2"))
    assert not crew.heard(msgspec.structs.replace(hello("n1"), uuids=("GPU-a", "GPU-b")), 11.0).events
    effects = crew.heard(msgspec.structs.replace(hello("n2"), uuids=("GPU-b",)), 11.2)
    (event,) = effects.events
    assert isinstance(event, ev.MachineChanged)
    assert event.down == ATOMS["n2"]
    assert event.why.startswith("n1 and n2 both name the device GPU-b")
    assert {peer for peer, message in effects.sends if isinstance(message, wire.KillRanks)} == {
        f"{T}.{I}.sup.n1",
        f"{T}.{I}.sup.n2",
    }
    crew.heard(goodbye("n1", r0=-9, r1=-9), 11.4)
    assert exited(crew.heard(goodbye("n2", r2=-9), 11.5).events).outcome is Outcome.LAUNCH_FAILED


def test_a_kill_before_the_hello_ends_the_steps() -> None:
    crew = make_crew()
    assert crew.kill(12.0, "too late").kill_steps
    end = exited(crew.step_ended(("n1",), -9, "", 12.5).events)
    assert end.outcome is Outcome.KILLED


def test_nobody_waits_for_ever_for_a_kill() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    crew.kill(12.0, "it hangs")
    for second in range(13, 22):
        crew.heard(wire.Heartbeat(T, I, node="n1"), float(second))
        crew.tick(float(second))
    end = exited(ticked(crew, 12.0 + SETTLE_LIMIT_S + 0.5).events)
    assert end.outcome is Outcome.KILLED
    assert end.unproven == ATOMS["n1"]


def test_out_of_memory_is_told_apart() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    gone = wire.RankExited(T, I, node="n1", rank=0, code=-9, out_of_memory=True)
    crew.heard(gone, 12.0)
    assert exited(crew.heard(goodbye("n1", r0=-9, r1=-9), 12.1).events).outcome is Outcome.OUT_OF_MEMORY


def test_effects_are_values() -> None:
    assert msgspec.structs.asdict(make_crew().preempt("rung"))["events"] == []


def test_a_report_after_the_goodbye_does_not_count() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 10.5)
    crew.heard(rank_hello(), 11.0)
    crew.heard(wire.Leaving(T, I, how="completed", training_iteration=3), 12.0)
    effects = crew.heard(report(9, 4, accuracy=99.0), 12.1)
    assert effects.events == []
    assert effects.reply_to is None


def test_what_a_restart_costs_is_told_by_its_parts() -> None:
    crew = make_crew(("n1", "n2"))
    crew.heard(hello("n1"), 11.0)
    crew.heard(hello("n2"), 11.5)
    assert crew.heard(rank_hello(), 14.0).restart == {"step_s": 1.5, "import_s": 1.0}
    assert crew.heard(report(1, 1, accuracy=0.5), 15.0).restart == {"first_iteration_s": 0.5}
    assert crew.heard(report(2, 2, accuracy=0.5), 15.5).restart is None
    crew.preempt("resize", 16.0)
    crew.heard(wire.SavedCheckpoint(T, I, training_iteration=2, save_s=0.25, num_bytes=9), 16.5)
    left = crew.heard(wire.Leaving(T, I, how="preempted", training_iteration=2), 17.0)
    assert left.restart == {"leave_s": 0.75, "save_s": 0.25}
    assert restart_text({"step_s": 1.5, "import_s": 1.0}) == "up: step 1.500 s, import 1.000 s"


def test_a_trial_that_ends_by_itself_has_not_left_for_a_restart() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    crew.heard(rank_hello(), 12.0)
    assert crew.heard(wire.Leaving(T, I, how="completed", training_iteration=9), 13.0).restart is None


def test_a_trial_killed_on_a_silent_node_has_lost_its_node() -> None:
    """One dead node holds several trials: the first that is missed has the others killed."""
    crew = make_crew()
    crew.heard(hello("n1"), 10.5)
    crew.kill(12.0, "node n1 is down")
    effects = ticked(crew, 10.5 + SILENT_AFTER_S + 0.1)
    assert exited(effects.events).outcome is Outcome.NODE_FAILED
    assert exited(effects.events).unproven


def test_a_report_without_the_metric_is_told_once_with_the_names_that_it_has() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 10.5)
    crew.heard(rank_hello(), 11.0)
    told = [note for seq in (1, 2) for note in crew.heard(report(seq, seq, loss=1.0, f1=0.5), 12.0).notes]
    assert told == [f'trial {T} reports f1, loss; experiment.metric is "accuracy"']


def test_checkpoints_that_could_not_be_used_are_events_unless_a_copy_was() -> None:
    spec = msgspec.structs.replace(
        make_spec(),
        restore="/run/7",
        restore_iteration=7,
        restore_incarnation=2,
        fallbacks=(RestorePoint("/run/best", 7, 2), RestorePoint("/run/4", 4, 1)),
    )

    def heard(restored: int, *lost: str) -> Effects:
        crew = Crew(spec, lambda node: ATOMS[node], started_at=10.0)
        crew.heard(hello("n1"), 11.0)
        message = msgspec.structs.replace(
            rank_hello(),
            restored_iteration=restored,
            lost=tuple((path, f"{path} is gone") for path in lost),
        )
        effects = crew.heard(message, 12.0)
        assert crew.last_iteration == restored
        assert isinstance(effects.events[-1], ev.TrialStarted)
        return effects

    def refs(effects: Effects) -> list[int]:
        return [e.checkpoint.training_iteration for e in effects.events if isinstance(e, ev.CheckpointLost)]

    assert refs(heard(7)) == []
    copy = heard(7, "/run/7")
    assert refs(copy) == []
    assert copy.trial_notes == [
        "a copy of a checkpoint is not used: /run/7 is gone",
        "goes on from iteration 7",
    ]
    older = heard(4, "/run/7", "/run/best")
    assert refs(older) == [7]
    assert older.trial_notes == ["goes on from iteration 4"]
    scratch = heard(0, "/run/7", "/run/best", "/run/4")
    assert refs(scratch) == [7, 4]
    assert scratch.trial_notes == ["starts from scratch"]


def test_a_rank_that_the_others_wait_for_is_told_and_not_after_the_goodbye() -> None:
    crew = make_crew(("n1", "n2"))
    for node in ("n1", "n2"):
        crew.heard(hello(node), 1.0)

    def tells(node: str, rank: int, collectives: int, now: float) -> str | None:
        row = wire.RankNow(rank, 4, collectives, 20.0, "sleeps")
        effects = crew.heard(wire.RankProgress(0, 1, node=node, ranks=(row,)), now)
        return None if effects.stall is None else effects.stall.text

    numbers = [node.first_rank for node in crew.spec.nodes]
    assert tells("n1", numbers[0], 8, 30.0) is None
    others = [
        wire.RankNow(rank, 4, 9, 19.0, "sleeps") for rank in range(crew.spec.world_size) if rank != numbers[0]
    ]
    effects = crew.heard(wire.RankProgress(0, 1, node="n2", ranks=tuple(others)), 31.0)
    assert effects.stall is not None
    assert effects.stall.ranks == (numbers[0],)
    crew.heard(wire.Leaving(0, 1, "completed", 4), 40.0)
    assert tells("n1", numbers[0], 8, 300.0) is None


def ends(code: int, *, early: bool) -> ev.TrialExited:
    """The only rank ends with `code` after rank 0's goodbye."""
    crew = make_crew(("n2",))
    crew.heard(hello("n2"), 11.0)
    crew.heard(rank_hello(), 12.0)
    crew.heard(wire.Leaving(T, I, how="completed", training_iteration=2, early=early), 13.0)
    first = crew.heard(wire.RankExited(T, I, node="n2", rank=0, code=code, tail="no more data"), 13.1)
    assert first.events == []
    return exited(crew.heard(goodbye("n2", r0=code), 13.2).events)


def test_who_leaves_the_loop_by_itself_has_completed_or_failed_as_its_exit_code_says() -> None:
    assert ends(0, early=True).outcome is Outcome.COMPLETED
    failed = ends(3, early=True)
    assert failed.outcome is Outcome.CRASHED
    assert failed.why == "rank 0 on n2 ended with code 3; end of its log:\nno more data"
    assert ends(3, early=False).outcome is Outcome.COMPLETED, "all was trained, saved and said"
    assert ends(-11, early=True).outcome is Outcome.COMPLETED, "it broke while groups were torn down"


def test_ranks_that_do_not_end_after_the_goodbye_are_spoken_of_once() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    crew.heard(rank_hello(), 12.0)
    crew.heard(wire.Leaving(T, I, how="completed", training_iteration=9), 13.0)
    crew.heard(wire.RankExited(T, I, node="n1", rank=1, code=0), 13.5)
    told = []
    for half_seconds in range(60):
        now = 13.0 + half_seconds / 2
        crew.heard(wire.Heartbeat(T, I, node="n1"), now)
        told += [(now, text) for text in ticked(crew, now).warnings]
    ((when, text),) = told
    assert when == 13.0 + LINGERS_AFTER_S + 0.5
    assert text.startswith("rank 0 still runs 15 s after the loop has ended")
    assert exited(crew.heard(goodbye("n1", r0=0, r1=0), 60.0).events).outcome is Outcome.COMPLETED


def test_ranks_that_end_after_the_goodbye_are_not_spoken_of() -> None:
    crew = make_crew()
    crew.heard(hello("n1"), 11.0)
    crew.heard(rank_hello(), 12.0)
    crew.heard(wire.Leaving(T, I, how="completed", training_iteration=9), 13.0)
    for rank in (0, 1):
        crew.heard(wire.RankExited(T, I, node="n1", rank=rank, code=0), 13.5)
    crew.heard(wire.Heartbeat(T, I, node="n1"), 40.0)
    assert ticked(crew, 40.0).warnings == []
