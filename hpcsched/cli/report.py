"""`hpcsched report`: one page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder, or a log.h5.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: report.html in the run folder.")
    ] = None,
) -> None:
    """Write one HTML page about a run: summary, figures, tables. Opens without a network, light and dark."""
    from hpcsched.report.page import write_report

    typer.echo(str(write_report(run, out)))
