"""The status of a run, for people and scripts: `hpcsched status RUN --json`.

Its `state` is, in this order:

- what the newest life said at its end (`finished`, `failed`, `suspended`);
- `running` while a driver holds the lease (its process is provably alive, or it renewed less than 30 s ago);
- what the core had decided when the driver died while winding up (`finished`, `failed`);
- else `suspended`: the driver is gone without a word, and `hpcsched run --resume RUN` goes on from the journal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hpcsched.core.actions import CheckpointRef
from hpcsched.core.enums import ExperimentState, TrialState
from hpcsched.eventlog.facts import Aside
from hpcsched.eventlog.lease import Holder, Host, holder_of, this_host
from hpcsched.eventlog.picture import Pictures, leave_picture
from hpcsched.eventlog.reader import require_journal
from hpcsched.eventlog.shown import ShownRun
from hpcsched.eventlog.state import RunFollower
from hpcsched.runfolder import RunFolder, neat


class BestStatus(msgspec.Struct, frozen=True):
    trial_id: int
    metric: float
    training_iteration: int
    config: dict[str, Any]
    checkpoint: str
    """Absolute path of the folder."""
    saved_s: float


class AsideStatus(msgspec.Struct, frozen=True):
    """GPUs of one node that are not used, and why."""

    node: str
    gpus: list[str]
    since_s: float
    why: str


class Status(msgspec.Struct, frozen=True):
    """Times are seconds since the experiment began."""

    state: ExperimentState
    policy: str
    deadline_s: float | None
    finished_s: float | None
    """When it finished or failed; None while it may go on."""
    num_atoms: int
    trials: dict[str, int]
    """Number of trials by state; every state is there."""
    best: BestStatus | None
    counts: dict[str, int]
    atom_seconds: dict[str, float]
    aside: list[AsideStatus] = []
    """Set aside because a launch found something else than was promised, or since trials kept dying there."""
    checkpoint_bytes: int = 0
    """What the checkpoints take that are kept now; `best/` shares its files with one of them."""
    stalls: dict[str, str] = {}
    """Trial number -> which of its ranks the others wait for now."""
    why: str = ""
    """Why it ended, or the newest life left; "" while it may go on by itself."""
    num_crashes: int = 0
    """Incarnations that ended by the trial's own fault: crashed, out of memory, hung."""


class Standing(msgspec.Struct, frozen=True):
    """A status with what a person also wants to know."""

    status: Status
    holder: Holder | None
    now_s: float
    run: ShownRun


def read_status(folder: RunFolder, *, host: Host | None = None, now: float | None = None) -> Standing:
    """Raises RunFolderError, JournalDamagedError. `host` and `now` (UNIX s): from where and when the lease is judged."""
    require_journal(folder)
    holder = holder_of(folder, host=host or this_host(), now=now)
    run: ShownRun | None = Pictures(folder).usable(holder)
    if run is None:
        run = folded = RunFollower(folder).look()
        leave_picture(folder, folded, holder)
    return Standing(status=status_of(folder, run, holder), holder=holder, now_s=run.now, run=run)


def status_of(folder: RunFolder, run: ShownRun, holder: Holder | None) -> Status:
    scheduler = run.scheduler
    state = _state_of(run, holder)
    over = state in (ExperimentState.FINISHED, ExperimentState.FAILED)
    trials = dict.fromkeys((one.value for one in TrialState), 0)
    for trial in scheduler.trials:
        trials[trial.state.value] += 1
    finished_s = run.over_at if run.over_at is not None else run.now
    return Status(
        state=state,
        policy=policy_name(run),
        deadline_s=run.deadline_s,
        finished_s=finished_s if over else None,
        num_atoms=0 if run.machine is None else len(run.machine.atoms),
        trials=trials,
        best=_best_of(folder, run),
        counts=as_dict(scheduler.counts),
        checkpoint_bytes=run.sum_checkpoint_bytes,
        stalls={} if over else {str(trial_id): note.text for trial_id, note in run.stalls.items()},
        atom_seconds=as_dict(scheduler.atom_seconds(run.now if run.over_at is None else run.over_at)),
        aside=aside_of(run),
        why=_why(run, state),
        num_crashes=sum(trial.crashes for trial in scheduler.trials),
    )


def aside_of(run: ShownRun) -> list[AsideStatus]:
    """By node and reason, in the machine's order."""
    if run.machine is None:
        return []
    groups: dict[tuple[str, Aside], list[str]] = {}
    for atom_id in sorted(run.aside):
        atom = run.machine.atoms[atom_id]
        groups.setdefault((atom.node, run.aside[atom_id]), []).extend(atom.gpus)
    return [
        AsideStatus(node=node, gpus=gpus, since_s=aside.since_s, why=aside.why)
        for (node, aside), gpus in groups.items()
    ]


def _why(run: ShownRun, state: ExperimentState) -> str:
    if state is ExperimentState.RUNNING:
        return ""
    return (run.end.why if run.end is not None else "") or run.scheduler.why_ended


def policy_name(run: ShownRun) -> str:
    tag = run.header.settings.policy.__struct_config__.tag
    assert isinstance(tag, str), "policies are tagged by name"
    return tag


def as_dict(value: Any) -> dict[str, Any]:
    """Of a struct or mapping."""
    built: dict[str, Any] = msgspec.to_builtins(value)
    return built


def _state_of(run: ShownRun, holder: Holder | None) -> ExperimentState:
    if run.end is not None:
        return run.end.state
    if holder is not None and holder.holds:
        return ExperimentState.RUNNING
    if run.over_at is not None and run.scheduler.state is not ExperimentState.RUNNING:
        return run.scheduler.state
    return ExperimentState.SUSPENDED


def _best_of(folder: RunFolder, run: ShownRun) -> BestStatus | None:
    best = run.best
    if best is None:
        return None
    ref = best.checkpoint
    return BestStatus(
        trial_id=ref.trial_id,
        metric=best.metric,
        training_iteration=ref.training_iteration,
        config=run.scheduler.trials[ref.trial_id].config,
        checkpoint=str(best_checkpoint(folder, ref)),
        saved_s=best.saved_s,
    )


def best_checkpoint(folder: RunFolder, ref: CheckpointRef) -> Path:
    """Absolute path of the best checkpoint: in `best/` when that holds it already, else where the trial saved it."""
    own = folder.checkpoint(ref.trial_id, ref.incarnation, ref.training_iteration)
    return neat(folder.best / "checkpoint" if _published(folder) == ref else own)


def _published(folder: RunFolder) -> CheckpointRef | None:
    """Which checkpoint `best/` holds; None when there is none, or nothing that says so."""
    try:
        facts = msgspec.json.decode((folder.best / "best.json").read_bytes())
        return CheckpointRef(facts["trial_id"], facts["incarnation"], facts["training_iteration"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return None
