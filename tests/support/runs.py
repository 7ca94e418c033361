"""A run folder as a real run leaves it, made in an instant: a tiny scripted world around the real core and journal.

Two nodes with two GPUs each; an iteration takes 1 s divided by the atoms, a start 0.5 s, a save 0.1 s; the metric is a
saturating curve whose height is the trial's `learning_rate`. `Script` says what goes wrong. Time is simulated, nothing is
random, so that the same arguments give the same bytes.

    folder = a_run(tmp_path, deadline_s=40.0)              # one life to its end
    folder = a_run(tmp_path, script=Script(kill_at=12.0))   # the driver dies; `go_on(folder)` resumes it
"""

from __future__ import annotations

import heapq
import itertools
import json
from pathlib import Path

import msgspec

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import ExperimentState, Outcome, PreemptReason
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import AshaSettings, HyperSchedSettings, PolicySettings, Settings, TimeoutSettings
from hpcsched.eventlog.journal import JournalWriter
from hpcsched.eventlog.reader import JournalReader
from hpcsched.eventlog.records import End, Header, Note, Step
from hpcsched.runfolder import RunFolder
from hpcsched.topology.machine import Machine, Node, atoms_of_nodes

BEGAN_AT = 1_790_000_000.0
SETUP_S = 0.5
SAVE_S = 0.1
EXPERIMENT = """\
[experiment]
name = "by script"
metric = "accuracy"
"""


class Script(msgspec.Struct, frozen=True):
    """What goes wrong, by trial number (in its first incarnation)."""

    crash: tuple[int, ...] = ()
    """Ends with a traceback in its second iteration."""
    hang: tuple[int, ...] = ()
    """Never leaves, is killed, and its node proves it gone only 5 s later."""
    nan: tuple[int, ...] = ()
    """Its second report is not a number."""
    kill_at: float | None = None
    """The driver is killed at this time: no End, no seal."""


SMOOTH = Script()


def a_machine(num_nodes: int = 2, gpus_per_node: int = 2) -> Machine:
    nodes = tuple(
        Node(
            name=f"n{k + 1}",
            gpus=tuple(str(gpu) for gpu in range(gpus_per_node)),
            cores=tuple(range(2 * gpus_per_node)),
        )
        for k in range(num_nodes)
    )
    return atoms_of_nodes(nodes, 1, source="tests")


def some_settings(
    policy: PolicySettings | None = None, *, max_iterations: int = 16, num_trials: int = 12
) -> Settings:
    return Settings(
        policy=policy or HyperSchedSettings(entrance="reversible"),
        grace_period=1,
        max_iterations=max_iterations,
        reduction_factor=2,
        num_trials=num_trials,
        timeouts=TimeoutSettings(preempt_grace_s=4.0, kill_wait_s=2.0),
    )


def asha_settings() -> Settings:
    return some_settings(AshaSettings())


def a_run(
    root: Path,
    *,
    settings: Settings | None = None,
    machine: Machine | None = None,
    deadline_s: float | None = 30.0,
    script: Script = SMOOTH,
    name: str = "by script",
) -> RunFolder:
    """One driver life from its beginning to its end, or to its death."""
    root.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(root)
    folder.experiment.write_text(EXPERIMENT)
    settings = settings or some_settings()
    header = Header(
        life=1,
        experiment=EXPERIMENT,
        name=name,
        metric="accuracy",
        settings=settings,
        began_at=BEGAN_AT,
        deadline_s=deadline_s,
        provenance={"hpcsched": "0.1.0", "python": "3.11", "nodes": {"n1": ["0", "1"], "n2": ["0", "1"]}},
        argv=("hpcsched", "run", "experiment.toml"),
    )
    world = World(folder, header, Scheduler(settings), machine or a_machine(), script)
    world.run(ev.ExperimentBegan(time=0.0, machine=world.machine, deadline_s=deadline_s))
    return folder


def go_on(
    folder: RunFolder, *, at: float, script: Script = SMOOTH, machine: Machine | None = None
) -> RunFolder:
    """The next life: the core is brought back from the journal and goes on at time `at`."""
    reader = JournalReader(folder)
    header: Header | None = None
    scheduler: Scheduler | None = None
    for record in reader.poll():
        if isinstance(record, Header) and header is None:
            header, scheduler = record, Scheduler(record.settings)
        elif isinstance(record, Step):
            assert scheduler is not None
            scheduler.handle(record.event)
    assert header is not None
    assert scheduler is not None
    life = max(reader.lives) + 1
    world = World(
        folder,
        msgspec.structs.replace(header, life=life, earlier=reader.ends),
        scheduler,
        machine or a_machine(),
        script,
        first_n=reader.last_n,
    )
    world.run(ev.ExperimentResumed(time=at, machine=world.machine, deadline_s=scheduler.deadline_s))
    return folder


class _Rank(msgspec.Struct):
    """A trial's incarnation in the world."""

    incarnation: int
    iteration: int
    num_atoms: int
    leave: bool = False
    gone: bool = False


class World:
    """The loop of the design over a heap: events in the order of their times, actions performed after each."""

    def __init__(
        self,
        folder: RunFolder,
        header: Header,
        scheduler: Scheduler,
        machine: Machine,
        script: Script,
        *,
        first_n: int = 0,
    ) -> None:
        self.folder = folder
        self.machine = machine
        self._scheduler = scheduler
        self._script = script
        self._n = first_n
        self._writer = JournalWriter(folder, header)
        self._heap: list[tuple[float, int, ev.Event]] = []
        self._order = itertools.count()
        self._timers: dict[tuple[object, object], tuple[float, ev.TimerFired]] = {}
        self._ranks: dict[int, _Rank] = {}
        self._over: ExperimentState | None = None
        self._now = 0.0

    def run(self, first: ev.Event) -> None:
        self._handle(first)
        if isinstance(first, ev.ExperimentBegan):
            self._writer.append(Note(time=0.0, topic="warning", text="the scaling was assumed, not measured"))
        while self._over is None:
            event = self._next()
            assert event is not None, "nothing can happen any more and the experiment is not over"
            if self._script.kill_at is not None and event.time >= self._script.kill_at:
                assert self._writer.close()
                return
            self._handle(event)
        code = {ExperimentState.FINISHED: 0, ExperimentState.SUSPENDED: 75}.get(self._over, 1)
        self._writer.append(End(time=self._now, state=self._over, exit_code=code))
        assert self._writer.close()

    # ---- time

    def _next(self) -> ev.Event | None:
        timer = min(self._timers.items(), key=lambda item: item[1][0], default=None)
        if timer is not None and (not self._heap or timer[1][0] <= self._heap[0][0]):
            del self._timers[timer[0]]
            return timer[1][1]
        return heapq.heappop(self._heap)[2] if self._heap else None

    def _later(self, event: ev.Event) -> None:
        heapq.heappush(self._heap, (event.time, next(self._order), event))

    def _handle(self, event: ev.Event) -> None:
        self._now = event.time
        if isinstance(event, ev.ResultReported | ev.CheckpointSaved | ev.TrialStarted):
            rank = self._ranks.get(event.trial_id)
            if rank is None or rank.gone or rank.incarnation != event.incarnation:
                return  # it never came to that
        actions = self._scheduler.handle(event)
        self._n += 1
        self._writer.append(Step(n=self._n, event=event, actions=tuple(actions)))
        if isinstance(event, ev.TrialStarted | ev.ResultReported):
            self._train(event)
        for action in actions:
            self._perform(action)

    # ---- the driver's part

    def _perform(self, action: act.Action) -> None:
        now = self._now
        match action:
            case act.RequestTrial(num=num):
                for k in range(num):
                    trial_id = TrialId(len(self._scheduler.trials) + k)
                    config = {"learning_rate": round(0.3 + (trial_id * 0.37) % 0.65, 4), "momentum": 0.9}
                    self._later(ev.TrialSubmitted(time=now, trial_id=trial_id, config=config))
            case act.StartTrial():
                restored = 0 if action.checkpoint is None else action.checkpoint.training_iteration
                self._ranks[action.trial_id] = _Rank(
                    action.incarnation, restored, len(action.placement.atoms)
                )
                place = self.folder.incarnation(action.trial_id, action.incarnation)
                place.mkdir(parents=True, exist_ok=True)
                for number in range(len(action.placement.atoms)):
                    self.folder.rank_log(action.trial_id, action.incarnation, number).write_text(
                        f"rank {number} is up\n"
                    )
                self._later(
                    ev.TrialStarted(
                        time=now + SETUP_S,
                        trial_id=action.trial_id,
                        incarnation=action.incarnation,
                        setup_time_s=SETUP_S,
                    )
                )
            case act.PreemptTrial(trial_id=trial_id, incarnation=incarnation, reason=reason):
                self._ranks[trial_id].leave = True
                if reason is PreemptReason.DEADLINE:
                    self._leave(trial_id, incarnation, Outcome.PREEMPTED)
            case act.KillTrial(trial_id=trial_id, incarnation=incarnation):
                self._ranks[trial_id].gone = True
                if self._fault(trial_id, incarnation, self._script.hang):
                    self._later(
                        ev.TrialExited(
                            time=now + 5.0,
                            trial_id=trial_id,
                            incarnation=incarnation,
                            outcome=Outcome.KILLED,
                            why="at last",
                        )
                    )
                else:
                    self._exit(now + 0.1, trial_id, incarnation, Outcome.KILLED, "killed")
            case act.SetTimer(at=None):
                self._timers.pop((action.timer, action.trial_id), None)
            case act.SetTimer(at=float() | int() as at):
                fired = ev.TimerFired(
                    time=max(at, now),
                    timer=action.timer,
                    trial_id=action.trial_id,
                    incarnation=action.incarnation,
                )
                self._timers[action.timer, action.trial_id] = (at, fired)
            case act.PublishBest(checkpoint=ref, metric=metric):
                self._publish(ref, metric)
            case act.SuspendExperiment():
                self._over = ExperimentState.SUSPENDED
            case act.FinishExperiment(state=state):
                self._over = state
            case _:
                pass

    def _publish(self, ref: act.CheckpointRef, metric: float) -> None:
        (self.folder.best / "checkpoint").mkdir(parents=True, exist_ok=True)
        facts = {
            "trial_id": ref.trial_id,
            "incarnation": ref.incarnation,
            "training_iteration": ref.training_iteration,
            "metric": metric,
        }
        (self.folder.best / "best.json").write_text(json.dumps(facts))

    # ---- the trial's part

    def _fault(self, trial_id: int, incarnation: int, trials: tuple[int, ...]) -> bool:
        return incarnation == 1 and trial_id in trials

    def _train(self, event: ev.TrialStarted | ev.ResultReported) -> None:
        rank = self._ranks[event.trial_id]
        last_iteration = self._scheduler.settings.max_iterations
        if rank.iteration >= last_iteration:
            self._leave(event.trial_id, event.incarnation, Outcome.COMPLETED)
            return
        if rank.leave and not self._fault(event.trial_id, event.incarnation, self._script.hang):
            self._leave(event.trial_id, event.incarnation, Outcome.PREEMPTED)
            return
        rank.iteration += 1
        took = 1.0 / rank.num_atoms
        if rank.iteration == 2 and self._fault(event.trial_id, event.incarnation, self._script.crash):
            why = "ValueError: \x1b[31mred\x1b[0m <b>bold</b>"
            self._exit(self._now + took / 2, event.trial_id, event.incarnation, Outcome.CRASHED, why)
            return
        height = self._scheduler.trials[event.trial_id].config["learning_rate"]
        lost = rank.iteration == 2 and self._fault(event.trial_id, event.incarnation, self._script.nan)
        self._later(
            ev.ResultReported(
                time=self._now + took,
                trial_id=event.trial_id,
                incarnation=event.incarnation,
                training_iteration=rank.iteration,
                metric=None if lost else round(height * (1.0 - 0.7**rank.iteration), 6),
                time_this_iter_s=took,
                problem="nan" if lost else None,
            )
        )

    def _leave(self, trial_id: TrialId, incarnation: Incarnation, outcome: Outcome) -> None:
        rank = self._ranks[trial_id]
        reported = self._scheduler.trials[trial_id].incarnation_iteration
        if reported:
            self._later(
                ev.CheckpointSaved(
                    time=self._now + SAVE_S,
                    trial_id=trial_id,
                    incarnation=incarnation,
                    training_iteration=reported,
                    save_time_s=SAVE_S,
                    num_bytes=1000,
                )
            )
            self.folder.checkpoint(trial_id, incarnation, reported).mkdir(parents=True, exist_ok=True)
        self._exit(self._now + SAVE_S, trial_id, incarnation, outcome, "")
        rank.leave = True

    def _exit(
        self, at: float, trial_id: TrialId, incarnation: Incarnation, outcome: Outcome, why: str
    ) -> None:
        self._later(
            ev.TrialExited(time=at, trial_id=trial_id, incarnation=incarnation, outcome=outcome, why=why)
        )
