"""Decisions in words: one line each, for a terminal that is none and for the log of a batch job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import Outcome
from hpcsched.core.words import atoms
from hpcsched.topology.machine import Machine, Placement, shares_of


class FailedSaves:
    """Saves that fail one after the other (a full disk) are two lines: the first, and how it ended."""

    def __init__(self) -> None:
        self._in_a_row: dict[int, int] = {}

    def line(self, event: ev.Event, clean: Callable[[str], str]) -> str | None:
        """What is to be said of this event, or None."""
        match event:
            case ev.CheckpointFailed(trial_id=trial_id, training_iteration=iteration, why=why):
                before = self._in_a_row.get(trial_id, 0)
                self._in_a_row[trial_id] = before + 1
                return None if before else f"trial {trial_id}: checkpoint {iteration} failed: {clean(why)}"
            case ev.CheckpointSaved(trial_id=trial_id, training_iteration=iteration):
                num = self._in_a_row.pop(trial_id, 0)
                return (
                    f"trial {trial_id}: checkpoint {iteration} is complete, after {num} that failed"
                    if num
                    else None
                )
            case ev.TrialExited(trial_id=trial_id):
                num = self._in_a_row.pop(trial_id, 0)
                return f"trial {trial_id}: its last {num} checkpoints failed" if num > 1 else None
            case _:
                return None


def place_in_words(machine: Machine, placement: Placement) -> str:
    """Such as "n1:0,1 n2:3"."""
    return " ".join(f"{share.node}:{','.join(share.gpus)}" for share in shares_of(machine, placement))


def lines_of(
    event: ev.Event,
    actions: Sequence[act.Action],
    machine: Machine,
    clean: Callable[[str], str],
    failed_saves: FailedSaves,
) -> list[str]:
    """What is worth a line, or nothing. `clean` takes control characters out of foreign text."""
    said = failed_saves.line(event, clean)
    lines: list[str] = [] if said is None else [said]
    match event:
        case ev.ExperimentBegan(deadline_s=deadline_s):
            limit = "no deadline" if deadline_s is None else f"deadline in {deadline_s:.0f} s"
            lines.append(f"began on {atoms(len(machine.atoms))}, {limit}")
        case ev.ExperimentResumed():
            lines.append(f"resumed on {atoms(len(machine.atoms))}")
        case ev.TrialExited(outcome=outcome, why=why) if outcome is not Outcome.PREEMPTED:
            text = f"trial {event.trial_id} {outcome.value}"
            lines.append(f"{text}: {clean(why)}" if why else text)
        case ev.CheckpointLost(checkpoint=ref, why=why):
            lines.append(
                f"trial {event.trial_id}: checkpoint {ref.training_iteration} cannot be used: {clean(why)}"
            )
        case ev.LaunchRefused(why=why):
            lines.append(f"trial {event.trial_id} could not be started: {clean(why)}")
        case ev.MachineChanged(down=down, up=up, why=why):
            for changed, what in ((down, "not used any more"), (up, "used again")):
                if changed:
                    place = place_in_words(machine, Placement(changed))
                    lines.append(f"{place} is {what}: {clean(why)}")
        case ev.NodeDown(node=node, why=why):
            lines.append(f"node {node} is down: {clean(why)}")
        case ev.NodeUp(node=node):
            lines.append(f"node {node} is back")
        case ev.DeadlineChanged(deadline_s=deadline_s, why=why):
            limit = "no deadline" if deadline_s is None else f"{deadline_s:.0f} s"
            lines.append(f"deadline is now {limit}: {why}")
        case _:
            pass
    for action in actions:
        match action:
            case act.StartTrial(placement=placement, checkpoint=checkpoint):
                place = place_in_words(machine, placement)
                how = "start" if checkpoint is None else f"go on from {checkpoint.training_iteration} with"
                size = len(placement.atoms)
                lines.append(f"{how} trial {action.trial_id} on {place} ({atoms(size)}): {action.because}")
            case act.PreemptTrial(reason=reason):
                lines.append(f"{reason.value} trial {action.trial_id}: {action.because}")
            case act.KillTrial():
                lines.append(f"kill trial {action.trial_id}: {action.because}")
            case act.PublishBest(checkpoint=ref, metric=metric):
                lines.append(
                    f"best is trial {ref.trial_id} at iteration {ref.training_iteration}: {metric:.6g}"
                )
            case act.SuspendExperiment() | act.FinishExperiment():
                lines.append(f"end: {action.because}")
            case _:
                pass
    return lines
