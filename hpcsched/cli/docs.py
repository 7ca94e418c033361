"""`hpcsched docs`: the documentation as HTML pages, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("hpcsched-docs"),
) -> None:
    """Render the documentation that came with this version: one HTML file a page, index.html first."""
    from hpcsched.docsite.site import render_site

    written = render_site(out)
    typer.echo(f"{len(written)} files; begin with {out / 'index.html'}")
