"""`hpcsched status`: where a run stands, live or over. Reads files only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpcsched.eventlog.status import Standing


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show the state of a run: time left, best trial, trials by state, where the atom-seconds went.

    The state is running while a driver lives, finished or failed at the end, and suspended when no driver is there but
    `hpcsched run --resume RUN` would go on. Times are seconds since the experiment began.
    """
    import sys

    import msgspec

    from hpcsched.eventlog.status import read_status
    from hpcsched.runfolder import RunFolder

    standing = read_status(RunFolder(run))
    if standing.run.difference is not None:
        print(
            "hpcsched: this version's core decides otherwise than the log says (another version wrote it?); "
            f"states may be off. `hpcsched replay {run}` shows the difference.",
            file=sys.stderr,
        )
    if as_json:
        typer.echo(msgspec.json.encode(standing.status).decode())
    else:
        typer.echo(text_of(run, standing))


def text_of(run: Path, standing: Standing) -> str:
    from hpcsched.core.enums import ExperimentState
    from hpcsched.report.text import clean_line, duration

    status, holder, state = standing.status, standing.holder, standing.run
    now = standing.now_s if state.over_at is None else state.over_at
    lines = [
        f"{clean_line(state.header.name)} ({status.policy}): {status.state.value}, {duration(now)} since it began"
    ]
    if status.state is ExperimentState.RUNNING and holder is not None:
        job = f", Slurm job {clean_line(holder.record.job_id)}" if holder.record.job_id else ""
        lines.append(
            f"driver     process {holder.record.pid} on {clean_line(holder.record.host)}{job}, life {holder.record.life}"
        )
        if holder.record.remark:
            lines.append(f"           {clean_line(holder.record.remark)}")
    if status.state is ExperimentState.FAILED and state.end is not None and state.end.why:
        lines.append(f"because    {clean_line(state.end.why, 1000)}")
    if status.state is ExperimentState.SUSPENDED:
        lines.append(f"           no driver is there; go on with: hpcsched run --resume {run}")
    if status.deadline_s is None:
        lines.append("deadline   none")
    else:
        left = status.deadline_s - now
        rest = f", {duration(left)} left" if status.state is ExperimentState.RUNNING and left > 0 else ""
        lines.append(f"deadline   {duration(status.deadline_s)}{rest}")
    best = status.best
    if best is None:
        lines.append("best       none yet")
    else:
        lines += [
            f"best       {clean_line(state.header.metric)} = {best.metric:.6g}: trial {best.trial_id} at iteration "
            f"{best.training_iteration}, saved at {duration(best.saved_s)}",
            *(
                f"           {clean_line(str(name))} = {clean_line(repr(value))}"
                for name, value in best.config.items()
            ),
            f"           {clean_line(best.checkpoint, 4096)}",
        ]
    trials = ", ".join(f"{num} {name}" for name, num in status.trials.items() if num) or "none yet"
    counts = (
        ", ".join(f"{num} {name.replace('_', ' ')}" for name, num in status.counts.items() if num)
        or "nothing yet"
    )
    total = sum(status.atom_seconds.values())
    shares = ", ".join(
        f"{name} {100 * seconds / total:.0f} %"
        for name, seconds in status.atom_seconds.items()
        if total and seconds
    )
    lines += [
        f"trials     {trials}",
        f"decisions  {counts}",
        f"disk       {state.num_checkpoints} checkpoints, {status.checkpoint_bytes / 1e6:.1f} MB (each trial keeps its latest and its best)",
        f"atoms      {status.num_atoms}; of {total:.0f} atom-seconds: {shares or 'none'}",
    ]
    lines += [
        f"aside      {clean_line(aside.node)} GPU {clean_line(','.join(aside.gpus))} since {duration(aside.since_s)}: "
        f"{clean_line(aside.why)}"
        for aside in status.aside[:8]
    ]
    lines += [
        f"stalled    [{note.time:.1f} s] trial {trial_id}: {clean_line(note.text)}"
        for trial_id, note in state.stalls.items()
        if status.state is ExperimentState.RUNNING
    ]
    lines += [f"warning    [{note.time:.1f} s] {clean_line(note.text)}" for note in state.warnings[-5:]]
    return "\n".join(lines)
