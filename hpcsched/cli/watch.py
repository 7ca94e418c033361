"""`hpcsched watch`: a live view of a run from its files, also from another node and after its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpcsched.runfolder import RunFolder


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    one: Annotated[
        bool, typer.Option("--once", help="Print one picture and end, as into a file or pipe.")
    ] = False,
) -> None:
    """Show a run live: time left, best score, atoms by node, trials with their rung and the reason of the last decision.

    Keys: up/down choose a trial, e explain, l logs, s stop it, S stop the run, x extend the deadline, q quit. The view
    reads files only; NO_COLOR and a terminal without UTF-8 are respected. Into a file or pipe one picture is printed.
    """
    from rich.console import Console

    from hpcsched.cli.extend import extend_by
    from hpcsched.cli.stop import stop_one
    from hpcsched.eventlog.reader import require_journal
    from hpcsched.report.story import story_of, text_of
    from hpcsched.runfolder import RunFolder, neat
    from hpcsched.screen.keys import Keys
    from hpcsched.screen.watching import Orders, once, watch

    folder = RunFolder(neat(run))
    require_journal(folder)
    console = Console()
    if one or not console.is_terminal or console.is_dumb_terminal:
        once(folder, console)
        return
    orders = Orders(
        explain=lambda trial: text_of(story_of(folder, trial)),
        logs=lambda trial: last_of_logs(folder, trial),
        stop=lambda trial: stop_one(run, trial),
        extend=lambda by: extend_by(run, by),
    )
    watch(folder, orders, console, Keys())


LOG_TAIL_BYTES = 16384


def last_of_logs(folder: RunFolder, trial: int) -> str:
    """The ends of the rank logs of a trial's latest incarnation."""
    from hpcsched.cli.logs import log_files

    parts: list[str] = []
    files = log_files(folder, trial, None, None)
    for name, file in files.items():
        with file.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - LOG_TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
        parts.append((f"--- rank {name}\n" if len(files) > 1 else "") + text.rstrip("\n"))
    return "\n".join(parts)
