"""`hpcsched compare`: several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or log.h5 files.")],
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw best score against time, as .png, .svg or .pdf."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Put runs of the same metric side by side: best score and when, trials, resizes, GPU-hours."""
    import msgspec

    from hpcsched.errors import InputError
    from hpcsched.report.compare import compare, names_of, text_of
    from hpcsched.report.load import load

    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"--figure {figure}: must end in .png, .svg or .pdf")
    logs, names = [load(run) for run in runs], names_of(runs)
    columns = compare(logs, names)
    if figure is not None:
        from hpcsched.report.figures import PAPER_DPI, compared

        try:
            compared(logs, names).savefig(figure, dpi=PAPER_DPI, facecolor="white")
        except OSError as error:
            raise InputError(f"--figure {figure}: cannot be written: {error.strerror or error}") from error
    typer.echo(msgspec.json.encode(columns).decode() if as_json else text_of(columns, logs[0].metric))
