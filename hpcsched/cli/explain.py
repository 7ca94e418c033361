"""`hpcsched explain`: the story of one trial, from the logged reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="The trial's number.", min=0)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Say what was done with a trial, when and why, and what it waits for now.

    Each decision comes with the reason that was logged when it was made. `#N` is the incarnation: the N-th launch.
    """
    import msgspec

    from hpcsched.cli.patience import said
    from hpcsched.report.story import story_of, text_of
    from hpcsched.runfolder import RunFolder

    story = story_of(RunFolder(run), trial, said)
    typer.echo(msgspec.json.encode(story).decode() if as_json else text_of(story))
