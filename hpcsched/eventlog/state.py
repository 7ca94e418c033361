"""Where a run stands, folded from its journal record by record: what status, explain, report and watch start from.

States, counts and atom-seconds are the core's own: a core is fed with the logged events (`Replayer`), so that what is
shown cannot disagree with what was decided. What was *done* (placements, best) comes from the logged actions.
Memory is linear in trials, live checkpoints and atoms; results and events are not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from hpcsched.core.actions import (
    CheckpointRef,
    DeleteCheckpoint,
    FinishExperiment,
    KillTrial,
    PreemptTrial,
    PublishBest,
    StartTrial,
    SuspendExperiment,
)
from hpcsched.core.enums import Mode
from hpcsched.core.events import (
    CheckpointSaved,
    DeadlineChanged,
    ExperimentBegan,
    ExperimentResumed,
    MachineChanged,
    ResultReported,
    TrialExited,
)
from hpcsched.core.ids import TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.errors import ReplayDiffersError
from hpcsched.eventlog.facts import Aside, BestSoFar
from hpcsched.eventlog.holdings import Holding, Holdings
from hpcsched.eventlog.reader import JournalReader, read_journal
from hpcsched.eventlog.records import End, Header, Note, Record, Step
from hpcsched.eventlog.replay import LiveCore, Replayer
from hpcsched.runfolder import RunFolder
from hpcsched.topology.machine import AtomId, Machine


class RunState:
    """Feed it all records of a journal in order; look at it whenever you like.

    `on_holding` is called with each holding of an atom that has ended. `core`: one that has handled each step already when its
    record is fed (the driver's own), in place of one that handles all events again.
    """

    def __init__(
        self, on_holding: Callable[[Holding], None] = lambda _: None, *, core: LiveCore | None = None
    ) -> None:
        self._replayer: Replayer | LiveCore = Replayer(strict=False) if core is None else core
        self._holdings = Holdings()
        self._on_holding = on_holding
        self._saved_at: dict[CheckpointRef, float] = {}
        self.checkpoint_bytes: dict[CheckpointRef, int] = {}
        """Of each checkpoint that is kept now."""
        self.now = 0.0
        """Time of the last record, seconds since the experiment began."""
        self.deadline_s: float | None = None
        self.best: BestSoFar | None = None
        self.best_curve: list[BestSoFar] = []
        self.best_metric: dict[TrialId, float] = {}
        """Highest windowed score of each trial in the user's sign, checkpoint or not."""
        self._num_atoms: dict[TrialId, int] = {}
        self.because: dict[TrialId, str] = {}
        """Why the latest decision about each trial was made; timers and checkpoints left out."""
        self.over_at: float | None = None
        """When the core finished or suspended the experiment; None while it runs."""
        self.end: End | None = None
        """The newest life's last word; None: it lives, or died without one."""
        self.aside: dict[AtomId, Aside] = {}
        """Atoms that were set aside and have not come back."""
        self.warnings: list[Note] = []
        self.stalls: dict[TrialId, Note] = {}
        """Trials in which ranks wait for one that comes no further, and what was last said of it."""
        self.num_records = 0
        self.life = 0
        """The newest; 0 before the first header."""
        self.last_n = 0
        """Number of the last step."""

    @property
    def header(self) -> Header:
        """Of the first life. Raises LogError when there is none yet."""
        return self._replayer.header

    @property
    def scheduler(self) -> Scheduler:
        """The core after all events so far."""
        return self._replayer.scheduler

    @property
    def machine(self) -> Machine | None:
        return self._holdings.machine

    @property
    def num_checkpoints(self) -> int:
        """That have not been deleted."""
        return len(self.checkpoint_bytes)

    @property
    def sum_checkpoint_bytes(self) -> int:
        return sum(self.checkpoint_bytes.values())

    @property
    def num_lives(self) -> int:
        return self._replayer.num_lives

    @property
    def num_events(self) -> int:
        return self._replayer.num_events

    @property
    def num_actions(self) -> int:
        return self._replayer.num_actions

    @property
    def difference(self) -> ReplayDiffersError | None:
        """Set when the core of this version decides otherwise than the log: what is shown may then be off."""
        return self._replayer.difference

    def holdings(self) -> list[Holding]:
        """Those that still last."""
        return list(self._holdings.still_open())

    def num_atoms_of(self, trial_id: TrialId) -> int:
        """Atoms of the trial's latest incarnation; 0 before the first."""
        return self._num_atoms.get(trial_id, 0)

    def feed(self, record: Record) -> None:
        """Raises ReplayDiffersError only when this core cannot take an event at all."""
        self.num_records += 1
        self._replayer.feed(record)
        match record:
            case Header():
                self.end = None
                self.life = record.life
                self.deadline_s = record.deadline_s
            case Step():
                self._step(record)
            case Note(topic="warning"):
                self.warnings.append(record)
                self.now = max(self.now, record.time)
            case Note(topic="stall"):
                if record.trial_id is not None:
                    self.stalls.pop(TrialId(record.trial_id), None)
                    if not record.data.get("over"):
                        self.stalls[TrialId(record.trial_id)] = record
                self.now = max(self.now, record.time)
            case Note():
                self.now = max(self.now, record.time)
            case End():
                self.end = record
                self.now = max(self.now, record.time)
                for holding in self._holdings.end_all(record.time):
                    self._on_holding(holding)

    def _step(self, step: Step) -> None:
        event = step.event
        self.last_n = step.n
        self.now = max(self.now, event.time)
        match event:
            case ResultReported(trial_id=trial_id):
                self._note_score(trial_id)
            case CheckpointSaved(trial_id=trial_id, incarnation=incarnation, training_iteration=iteration):
                ref = CheckpointRef(trial_id, incarnation, iteration)
                self._saved_at[ref] = event.time
                self.checkpoint_bytes[ref] = event.num_bytes
            case ExperimentBegan() | DeadlineChanged():
                self.deadline_s = event.deadline_s
            case TrialExited(trial_id=trial_id):
                self.stalls.pop(trial_id, None)
            case ExperimentResumed():
                self.stalls.clear()
                self.deadline_s = event.deadline_s
                self.over_at = None
                self.aside.clear()
            case MachineChanged(down=down, up=up, why=why):
                self.aside |= dict.fromkeys(down, Aside(event.time, why))
                for atom_id in up:
                    self.aside.pop(atom_id, None)
            case _:
                pass
        for holding in self._holdings.take(step, self.scheduler):
            self._on_holding(holding)
        for action in step.actions:
            if isinstance(action, StartTrial | PreemptTrial | KillTrial):
                self.because[action.trial_id] = action.because
            match action:
                case StartTrial(trial_id=trial_id, placement=placement):
                    self._num_atoms[trial_id] = len(placement.atoms)
                case PublishBest(checkpoint=checkpoint, metric=metric):
                    self.best = BestSoFar(
                        checkpoint=checkpoint,
                        metric=metric,
                        saved_s=self._saved_at.get(checkpoint, event.time),
                        published_s=event.time,
                    )
                    self.best_curve.append(self.best)
                case DeleteCheckpoint(checkpoint=checkpoint):
                    self._saved_at.pop(checkpoint, None)
                    self.checkpoint_bytes.pop(checkpoint, None)
                case FinishExperiment() | SuspendExperiment():
                    self.over_at = event.time
                case _:
                    pass

    def _note_score(self, trial_id: TrialId) -> None:
        score = self.scheduler.trials[trial_id].score
        if score is None:
            return
        sign = 1.0 if self.header.settings.mode is Mode.MAX else -1.0
        best = self.best_metric.get(trial_id)
        if best is None or score > sign * best:
            self.best_metric[trial_id] = sign * score


class RunFollower:
    """A RunState that keeps up with a journal that may still be written. `look` again and again."""

    def __init__(self, folder: RunFolder) -> None:
        self._reader = JournalReader(folder)
        self._generation = 0
        self.state = RunState()

    def look(self, most: int | None = None) -> RunState:
        """Take in what is new, at most so many records, and return the state (a new object when the journal had to be read
        again from its beginning). Raises JournalDamagedError, RunFolderError, ReplayDiffersError."""
        for record in islice(self._reader.poll(), most):
            if self._reader.generation != self._generation:
                self._generation = self._reader.generation
                self.state = RunState()
            self.state.feed(record)
        return self.state


def read_state(folder: RunFolder, on_record: Callable[[Record], None] = lambda _: None) -> RunState:
    """The state after all records that there are. `on_record` sees each after it was folded."""
    state = RunState()
    for record in read_journal(folder):
        state.feed(record)
        on_record(record)
    state.header  # noqa: B018  (raises LogError when there is none)
    return state
