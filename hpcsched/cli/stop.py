"""`hpcsched stop`: end a live run in order, or one of its trials, from another shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    trial: Annotated[
        int | None,
        typer.Argument(metavar="[TRIAL]", help="Only this trial; default: the whole experiment.", min=0),
    ] = None,
) -> None:
    """Ask the driver of a live run to end it: every trial saves and leaves, and the best model stands in best/.

    With TRIAL only that one saves, leaves and does not run again; its atoms go to others. Exit code 2 when no driver
    serves this run folder, or there is no such trial.
    """
    typer.echo(stop_one(run, trial))


def stop_one(run: Path, trial: int | None) -> str:
    """The answer in words. Raises InputError."""
    from hpcsched.core.ids import TrialId
    from hpcsched.driver.inbox import StopAsked
    from hpcsched.driver.orders import give_order, live_run
    from hpcsched.errors import InputError

    live = live_run(run)
    num = len(live.run.scheduler.trials)
    if trial is not None and trial >= num:
        known = "there is none yet" if not num else f"they are 0 to {num - 1}"
        raise InputError(f"trial {trial}: no such trial; {known}")
    what = "the experiment" if trial is None else f"trial {trial}"
    return give_order(live, StopAsked(None if trial is None else TrialId(trial)), f"stop {what}")
