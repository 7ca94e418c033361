"""`hpcsched extend`: give a live run more time, from another shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    by: Annotated[
        str, typer.Argument(metavar="TIME", help='How much later the deadline shall be: "30m", "2h30m".')
    ],
) -> None:
    """Move the deadline of a live run. A Slurm allocation's own end still holds: ask for that with
    `scontrol update JobId=... TimeLimit=...`, which the driver notices by itself.

    Exit code 2 when no driver serves this run folder, or the run has no deadline of its own.
    """
    typer.echo(extend_by(run, by))


def extend_by(run: Path, by: str) -> str:
    """The answer in words. Raises InputError."""
    from hpcsched.config.duration import ALLOWED, parse_duration
    from hpcsched.driver.inbox import ExtendAsked
    from hpcsched.driver.orders import give_order, live_run
    from hpcsched.errors import InputError

    try:
        by_s = parse_duration(by)
    except ValueError as error:
        raise InputError(f"TIME: {by!r}: {error}; allowed is {ALLOWED}") from error
    if by_s <= 0:
        raise InputError(f"TIME: {by!r}: must be more than 0")
    live = live_run(run)
    if live.run.deadline_s is None:
        raise InputError(f"{run}: this run has no deadline that could be moved")
    return give_order(live, ExtendAsked(by_s), f"make the deadline {by} later")
