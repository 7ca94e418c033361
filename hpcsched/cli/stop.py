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

    With TRIAL only that one saves, leaves and does not run again; its atoms go to others. The driver says what it does, or why
    not: there is no such trial (exit code 2, as when no driver serves this run folder).
    """
    typer.echo(stop_one(run, trial))


def stop_one(run: Path, trial: int | None) -> str:
    """The answer in words. Raises InputError."""
    from hpcsched.driver.orders import give_order, left_in_words, live_run
    from hpcsched.orders import StopAsked

    live = live_run(run)
    what = "the experiment" if trial is None else f"trial {trial}"
    answer = give_order(live, StopAsked(trial))
    return left_in_words(live, f"stop {what}") if answer is None else answer.text
