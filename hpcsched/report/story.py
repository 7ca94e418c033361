"""A trial's story in words: each thing that was done with it, when, and the `because` that was logged with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import AtomState, Outcome, PreemptReason, TimerKind, TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.words import atoms, no_such_trial
from hpcsched.errors import InputError
from hpcsched.eventlog.reader import JournalReader, require_journal
from hpcsched.eventlog.records import End, Note, Record, Step
from hpcsched.eventlog.state import RunState
from hpcsched.eventlog.status import aside_of
from hpcsched.report.text import clean, clean_line, clean_reason, duration
from hpcsched.runfolder import RunFolder
from hpcsched.topology.machine import AtomId, Machine, Placement, shares_of

_LEAVING = {
    PreemptReason.RESIZE: "asked to leave, to go on with other atoms",
    PreemptReason.PAUSE: "asked to leave, to be paused",
    PreemptReason.STOP: "asked to leave for good",
    PreemptReason.DEADLINE: "asked for its last checkpoint, the deadline is near",
}
_OUTCOME = {
    Outcome.COMPLETED: "completed",
    Outcome.PREEMPTED: "left as asked",
    Outcome.CRASHED: "crashed",
    Outcome.OUT_OF_MEMORY: "ran out of memory",
    Outcome.KILLED: "was killed",
    Outcome.NODE_FAILED: "lost its node or a GPU",
    Outcome.LAUNCH_FAILED: "could not be launched",
}
_TIMER = {
    TimerKind.START_TIMEOUT: "did not start in time",
    TimerKind.SILENCE_TIMEOUT: "was silent for too long",
    TimerKind.PREEMPT_GRACE: "did not leave in time",
    TimerKind.KILL_WAIT: "its end could not be proven in time: its atoms are in quarantine until it is",
    TimerKind.RETRY: "may be launched again",
}


class Line(msgspec.Struct, frozen=True):
    time_s: float
    incarnation: int | None
    text: str
    because: str = ""


class Story(msgspec.Struct, frozen=True):
    trial_id: int
    config: dict[str, object]
    lines: list[Line]
    state: TrialState
    now: str
    """What it is doing, or why it waits, at the end of the log."""


def story_of(
    folder: RunFolder,
    trial_id: int,
    reading: Callable[[JournalReader], Iterable[Record]] = JournalReader.poll,
) -> Story:
    """Of a run. `reading`: the records, for whoever wants to say how far it is. Raises InputError when there is no such trial, and as
    `read_journal`."""
    require_journal(folder)
    try:
        return tell(reading(JournalReader(folder)), trial_id)
    except InputError as error:
        raise InputError(f"{folder.root}: {error}") from error


def tell(records: Iterable[Record], trial_id: int) -> Story:
    """Reads the records once. Raises InputError when there is no such trial."""
    teller = _Teller(TrialId(trial_id))
    for record in records:
        teller.take(record)
    return teller.story()


class _Teller:
    def __init__(self, trial_id: TrialId) -> None:
        self._trial_id = trial_id
        self._run = RunState()
        self._lines: list[Line] = []
        self._reports: list[ev.ResultReported] = []
        self._failed_saves: list[ev.CheckpointFailed] = []
        """In a row, until now; the first has been told."""
        self._state: TrialState | None = None
        self._last_because = ""
        self._found_wrong: set[AtomId] = set()
        """Atoms set aside since a launch of this trial found them other than promised."""

    def take(self, record: Record) -> None:
        self._run.feed(record)
        match record:
            case Step():
                self._step(record)
            case Note() if record.trial_id == self._trial_id and record.topic != "metrics":
                self._say(record.time, record.incarnation, clean_line(record.text))
            case End():
                self._tell_reports()
            case _:
                pass

    def _step(self, step: Step) -> None:
        event = step.event
        before = len(self._lines)
        if not isinstance(event, ev.TimerFired) or self._timer_mattered(event, step):
            self._event(event)
        spoken = False
        for action in step.actions:
            spoken |= self._action(action, event.time)
        trials = self._run.scheduler.trials
        if self._trial_id >= len(trials):
            return
        state = trials[self._trial_id].state
        quiet = not spoken and len(self._lines) == before
        if quiet and self._state is not None and state is not self._state:
            self._tell_reports()
            self._say(event.time, None, f"became {state.value}", self._unspoken_reason(step))
        self._state = state

    def _timer_mattered(self, event: ev.TimerFired, step: Step) -> bool:
        """A limit that was kept fires, too, and is nothing to tell: only what came of it is."""
        match event.timer:
            case TimerKind.START_TIMEOUT | TimerKind.SILENCE_TIMEOUT | TimerKind.PREEMPT_GRACE:
                return any(
                    isinstance(action, act.KillTrial) and action.trial_id == self._trial_id
                    for action in step.actions
                )
            case TimerKind.KILL_WAIT | TimerKind.RETRY:
                trials = self._run.scheduler.trials
                changed = self._trial_id < len(trials) and trials[self._trial_id].state is not self._state
                return changed or bool(step.actions)
            case _:
                return True

    def _unspoken_reason(self, step: Step) -> str:
        """Why a trial that held nothing changed its state: no action says so, the core's record does."""
        dropped = clean_reason(self._run.scheduler.trials[self._trial_id].dropped_because)
        if dropped:
            self._last_because = dropped
            return dropped
        for action in step.actions:
            if isinstance(action, act.FinishExperiment | act.SuspendExperiment):
                return f"the experiment is over: {clean_reason(action.because)}"
        return f"the core handled: {_words(type(step.event).__name__)}"

    def _event(self, event: ev.Event) -> None:
        match event:
            case ev.MachineChanged():
                self._machine_changed(event)
            case ev.TrialSubmitted() if event.trial_id == self._trial_id:
                self._say(event.time, None, "was submitted")
            case ev.ExperimentResumed() if self._state is not None:
                self._tell_reports()
                self._say(event.time, None, "a new driver life goes on with the experiment")
            case ev.TimerFired() if event.trial_id == self._trial_id and event.timer in _TIMER:
                self._tell_reports()
                self._say(event.time, event.incarnation, _TIMER[event.timer])
            case ev.TrialStopRequested() if event.trial_id == self._trial_id:
                self._tell_reports()
                self._say(event.time, None, "shall stop", clean_reason(event.why))
            case ev.ResultReported() if event.trial_id == self._trial_id:
                if self._reports and self._reports[-1].incarnation != event.incarnation:
                    self._tell_reports()
                self._reports.append(event)
            case ev.CheckpointFailed() if event.trial_id == self._trial_id:
                self._failed_saves.append(event)
                if len(self._failed_saves) == 1:
                    self._tell_reports()
                    self._say(event.time, event.incarnation, *_event_in_words(event))
            case (
                ev.TrialStarted()
                | ev.CheckpointSaved()
                | ev.CheckpointLost()
                | ev.TrialExited()
                | ev.LaunchRefused()
            ) if event.trial_id == self._trial_id:
                self._tell_reports()
                self._tell_failed_saves()
                self._say(event.time, event.incarnation, *_event_in_words(event))
            case _:
                pass

    def _machine_changed(self, event: ev.MachineChanged) -> None:
        """What is set aside while our trial is on it, and comes back later."""
        holder = self._run.scheduler.holder
        mine = tuple(atom_id for atom_id in event.down if holder(atom_id) == self._trial_id)
        back = tuple(atom_id for atom_id in event.up if atom_id in self._found_wrong)
        for chosen, words in ((mine, "is set aside"), (back, "is used again")):
            if chosen:
                self._tell_reports()
                place = place_in_words(self._run.machine, Placement(chosen))
                self._say(event.time, None, f"{place} {words}", clean_reason(event.why))
        self._found_wrong.update(mine)
        self._found_wrong.difference_update(back)

    def _action(self, action: act.Action, at: float) -> bool:
        """Whether it was about our trial."""
        match action:
            case act.StartTrial() if action.trial_id == self._trial_id:
                place = place_in_words(self._run.machine, action.placement)
                if action.checkpoint is None:
                    text = f"started from scratch on {place}"
                else:
                    text = (
                        f"started on {place}, going on from iteration {action.checkpoint.training_iteration}"
                    )
            case act.PreemptTrial() if action.trial_id == self._trial_id:
                text = _LEAVING[action.reason]
            case act.KillTrial() if action.trial_id == self._trial_id:
                text = "is being killed"
            case act.PublishBest() if action.checkpoint.trial_id == self._trial_id:
                text = f"is the best: {action.metric:.6g} at iteration {action.checkpoint.training_iteration}"
            case _:
                return False
        self._tell_reports()
        incarnation = getattr(action, "incarnation", None)
        self._say(at, incarnation, text, clean_reason(action.because))
        if not isinstance(action, act.PublishBest):
            self._last_because = clean_reason(action.because)
        return True

    def _tell_reports(self) -> None:
        """Reports between two other things are one line."""
        if not self._reports:
            return
        first, last = self._reports[0], self._reports[-1]
        metric = "no number" if last.metric is None else f"{last.metric:.6g}"
        if last.metric is None and last.problem:
            metric = clean_line(last.problem)
        if first is last:
            text = f"reported iteration {last.training_iteration}: {metric}"
        else:
            text = (
                f"reported iterations {first.training_iteration} to {last.training_iteration} since {first.time:.1f} s; "
                f"the last: {metric}"
            )
        self._say(last.time, last.incarnation, text)
        self._reports.clear()

    def _tell_failed_saves(self) -> None:
        """Those after the first are one line, however many."""
        more = self._failed_saves[1:]
        self._failed_saves.clear()
        if more:
            text = f"could not save {len(more)} more, the last of iteration {more[-1].training_iteration}"
            self._say(more[-1].time, more[-1].incarnation, text, clean_reason(more[-1].why))

    def _say(self, time_s: float, incarnation: int | None, text: str, because: str = "") -> None:
        self._lines.append(Line(time_s, incarnation, text, because))

    def story(self) -> Story:
        trials = self._run.scheduler.trials
        if not 0 <= self._trial_id < len(trials):
            raise InputError(no_such_trial(self._trial_id, len(trials)))
        self._tell_reports()
        self._tell_failed_saves()
        trial = trials[self._trial_id]
        return Story(
            trial_id=int(self._trial_id),
            config=dict(trial.config),
            lines=self._lines,
            state=trial.state,
            now=self._now(trial.state),
        )

    def _now(self, state: TrialState) -> str:
        because = f" Last decision: {self._last_because}." if self._last_because else ""
        match state:
            case TrialState.PENDING:
                return f"waits for atoms: {self._atoms_in_words()}.{because}"
            case TrialState.PAUSED:
                return f"waits with its checkpoint until the policy takes it up again; {self._atoms_in_words()}.{because}"
            case TrialState.STARTING:
                return f"its ranks are starting on {atoms(self._run.num_atoms_of(self._trial_id))}.{because}"
            case TrialState.RUNNING:
                return f"trains on {atoms(self._run.num_atoms_of(self._trial_id))}.{because}"
            case TrialState.PREEMPTING:
                return f"has been asked to leave and is on its way.{because}"
            case TrialState.STOPPED:
                return f"is stopped and will not run again.{because}"
            case TrialState.COMPLETED:
                return "is completed."
            case TrialState.FAILED:
                return f"has failed and will not be tried again.{because}"

    def _atoms_in_words(self) -> str:
        machine = self._run.machine
        if machine is None:
            return "the machine is not known yet"
        scheduler = self._run.scheduler
        number = dict.fromkeys(AtomState, 0)
        for atom in machine.atoms:
            number[scheduler.atom_state(atom.atom_id)] += 1
        parts = ", ".join(f"{num} {state.value}" for state, num in number.items() if num)
        text = f"of {atoms(len(machine.atoms))} there are {parts}"
        for aside in aside_of(self._run)[:4]:
            text += f"; {clean_line(aside.node)} GPU {clean_line(','.join(aside.gpus))} is set aside since {aside.since_s:.1f} s ({clean_reason(aside.why)})"
        return text


def _event_in_words(event: ev.Event) -> tuple[str, str]:
    match event:
        case ev.TrialStarted():
            return f"all ranks are up, {duration(event.setup_time_s)} after the start was decided", ""
        case ev.CheckpointSaved():
            text = f"saved iteration {event.training_iteration} in {duration(event.save_time_s)}"
            if event.blocked_s is not None:
                text += f", for which training waited {duration(event.blocked_s)}"
            return text, ""
        case ev.CheckpointFailed():
            return f"could not save iteration {event.training_iteration}", clean_reason(event.why)
        case ev.CheckpointLost():
            lost = event.checkpoint.training_iteration
            return f"cannot go on from the checkpoint of iteration {lost}", clean_reason(event.why)
        case ev.TrialExited():
            text = _OUTCOME[event.outcome]
            if event.unproven:
                text += f"; of {atoms(len(event.unproven))} it is not proven that the ranks are gone"
            why = "" if event.outcome is Outcome.PREEMPTED and not event.unproven else event.why
            return text, clean_reason(why)
        case ev.LaunchRefused():
            return f"the launch was refused, next try after {event.retry_at:.1f} s", clean_reason(event.why)
        case _:
            return _words(type(event).__name__), ""


def place_in_words(machine: Machine | None, placement: Placement) -> str:
    """Such as "2 atoms (n1:0,1)"."""
    if machine is None:
        return atoms(len(placement.atoms))
    shares = " ".join(f"{share.node}:{','.join(share.gpus)}" for share in shares_of(machine, placement))
    return f"{atoms(len(placement.atoms))} ({clean_line(shares)})"


def _words(name: str) -> str:
    """ "TrialExited" -> "trial exited"."""
    return "".join(" " + char.lower() if char.isupper() else char for char in name).strip()


def text_of(story: Story) -> str:
    """For a terminal."""
    out = [f"trial {story.trial_id}: {story.state.value}"]
    if story.config:
        width = min(max(len(clean_line(str(name))) for name in story.config), 40)
        out += [
            f"  {clean_line(str(name)):{width}} = {clean_line(repr(value))}"
            for name, value in story.config.items()
        ]
    out.append("")
    for line in story.lines:
        incarnation = "   " if line.incarnation is None else f"#{line.incarnation:<2}"
        out.append(f"{line.time_s:9.1f} s  {incarnation} {clean(line.text)}")
        if line.because:
            out.append(f"{'':12} {'':3}   because {line.because}")
    out += ["", f"now: {story.now}"]
    return "\n".join(out)
