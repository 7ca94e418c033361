"""`hpcsched profile`: measure how an experiment's trials scale on this machine, before a search."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hpcsched.cli.run import LauncherChoice, setting_of


def command(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
    out: Annotated[Path, typer.Option(help="Where the profile goes.")] = Path("profile.json"),
    sizes: Annotated[
        str | None, typer.Option(help='Atoms, such as "1,2,4,8"; default: doubling, up to all.')
    ] = None,
    iterations: Annotated[
        int, typer.Option(min=1, help="Iterations at each size and span; the first counts only when alone.")
    ] = 3,
    limit: Annotated[str, typer.Option(help="Longest time; what has been measured by then is kept.")] = "30m",
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="Keep the measuring run's folder here, for its logs (it cannot be resumed or replayed); default: it is removed.",
        ),
    ] = None,
    launcher: Annotated[
        LauncherChoice | None, typer.Option(help="auto: srun inside a Slurm allocation, else this machine.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="In place of a key of the file.")
    ] = None,
) -> None:
    """Train the search's first configuration for a few iterations at each size and span; write what was measured.

    Use it by `[scaling] profile = "profile.json"`. Exit code 1: nothing was measured on more than one atom.
    """
    from datetime import datetime

    from hpcsched.core.enums import ExperimentState
    from hpcsched.driver.lastwords import LastWords
    from hpcsched.driver.life import run_experiment
    from hpcsched.driver.profiling import profile_of_log, touring
    from hpcsched.driver.request import Request
    from hpcsched.errors import InputError
    from hpcsched.eventlog.reader import read_journal

    try:
        chosen = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError as error:
        raise InputError(f'--sizes {sizes!r}: must be numbers of atoms, such as "1,2,4"') from error
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: must be a file in a folder that exists")
    overrides: dict[str, Any] = dict(setting_of(text) for text in settings or ())
    # The driver stays here: the one that it would start on a node runs a search.
    overrides |= {"experiment.deadline": limit, "driver.where": "here"}
    if launcher is not None:
        overrides["launcher.kind"] = launcher.value
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    root = run_dir or target.absolute().parent / "runs" / f"profile-{stamp}-{os.getpid()}"
    was_there = root.exists()
    result = run_experiment(
        Request(target=target, run_dir=root, overrides=overrides),
        environ=os.environ,
        argv=tuple(sys.argv),
        roles=touring(iterations, chosen),
    )
    if not result.folder.segment(1).exists():  # a signal has ended it while it started, and it has said so
        if not was_there:
            shutil.rmtree(root, ignore_errors=True)
        raise typer.Exit(result.exit_code)
    document, lines = profile_of_log(read_journal(result.folder))
    words = LastWords()
    words.say("\n".join(["", *lines, ""]))
    if document is not None:
        fresh = out.with_name(f"{out.name}.new-{os.getpid()}")
        fresh.write_text(json.dumps(document, indent=2) + "\n")
        fresh.replace(out)
        words.say(f'{out}: use it by [scaling] profile = "{out}"\n')
    complete = document is not None and result.state is ExperimentState.FINISHED
    if run_dir is None and complete:
        shutil.rmtree(root, ignore_errors=True)
    else:
        words.say(f"run folder    {root} ({result.state.value}: {result.why})\n")
    words.close()
    if document is None:
        raise typer.Exit(1)
