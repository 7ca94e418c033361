"""`hpcsched replay`: the logged events through the core once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Feed a run's logged events through the core and demand equal actions.

    Exit code 0 and the numbers of equal events and actions; 1 with the first difference, event and actions side by side.
    """
    import msgspec

    from hpcsched.eventlog.replay import replay
    from hpcsched.runfolder import RunFolder

    result = replay(RunFolder(run))
    if as_json:
        typer.echo(msgspec.json.encode(result).decode())
        return
    lives = "one driver life" if result.num_lives == 1 else f"{result.num_lives} driver lives"
    typer.echo(f"equal: {result.num_events} events and {result.num_actions} actions of {lives}")
