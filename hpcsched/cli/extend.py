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

    The driver says what the deadline is now, or why it refuses: the run has no deadline of its own, it is ending already, the
    allocation does not last longer (exit code 2, as when no driver serves this run folder).
    """
    typer.echo(extend_by(run, by))


def extend_by(run: Path, by: str) -> str:
    """The answer in words. Raises InputError."""
    from hpcsched.config.duration import ALLOWED, parse_duration
    from hpcsched.driver.orders import give_order, left_in_words, live_run
    from hpcsched.errors import InputError
    from hpcsched.orders import ExtendAsked

    try:
        by_s = parse_duration(by)
    except ValueError as error:
        raise InputError(f"TIME: {by!r}: {error}; allowed is {ALLOWED}") from error
    if by_s <= 0:
        raise InputError(f"TIME: {by!r}: must be more than 0")
    live = live_run(run)
    answer = give_order(live, ExtendAsked(by_s))
    return left_in_words(live, f"make the deadline {by} later") if answer is None else answer.text
