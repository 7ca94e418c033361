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
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the figures alone, as PNG, SVG and PDF, into this folder."),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Draws of the simulation of other policies; default: as many as take some seconds, 0: none.",
        ),
    ] = None,
) -> None:
    """Write one HTML page about a run: summary, figures, tables. Opens without a network, light and dark."""
    if figures is not None:
        from hpcsched.report.figures import write_figures
        from hpcsched.report.load import load

        for file in write_figures(load(run), figures):
            typer.echo(str(file))
        if out is None:
            return
    from hpcsched.report.page import write_report

    typer.echo(str(write_report(run, out, num_draws=draws)))
