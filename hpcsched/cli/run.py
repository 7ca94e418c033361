"""`hpcsched run`: run an experiment to its deadline, or go on with one."""

from __future__ import annotations

import os
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class LauncherChoice(StrEnum):
    AUTO = "auto"
    LOCAL = "local"
    SRUN = "srun"


def command(
    target: Annotated[
        Path, typer.Argument(metavar="FILE", help="The experiment file; with --resume also a run folder.")
    ],
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", help="Where the run keeps everything; default: runs/NAME-DATE beside the file."
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help='In place of the file\'s deadline: "90s", "2h30m" or a clock time "17:30".'),
    ] = None,
    launcher: Annotated[
        LauncherChoice | None,
        typer.Option(help="auto: srun inside a Slurm allocation, else this machine."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the run folder.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help='In place of a key of the file, such as launcher.interface="hsn0".',
        ),
    ] = None,
    requeue: Annotated[
        bool,
        typer.Option("--requeue", help="When suspended, put this Slurm batch job back into the queue."),
    ] = False,
) -> None:
    """Run an experiment to its deadline; the best model then stands in the run folder's best/.

    Exit code 0: a best model stands. 1: the experiment failed. 2: the input is wrong and nothing was started.
    75: suspended, go on with --resume.
    """
    from hpcsched.core.enums import ExperimentState
    from hpcsched.driver.ending import ending
    from hpcsched.driver.lastwords import LastWords
    from hpcsched.driver.life import run_experiment
    from hpcsched.driver.request import Request
    from hpcsched.driver.say import say
    from hpcsched.errors import HpcschedError
    from hpcsched.launch.command import run_command
    from hpcsched.launch.requeue import requeue_job
    from hpcsched.report.gantt import picture_of

    overrides: dict[str, Any] = dict(setting_of(text) for text in settings or ())
    if deadline is not None:
        overrides["experiment.deadline"] = deadline
    if launcher is not None:
        overrides["launcher.kind"] = launcher.value
    request = Request(target=target, run_dir=run_dir, overrides=overrides, resume=resume)
    result = run_experiment(request, environ=os.environ, argv=tuple(sys.argv))
    words = LastWords()
    if not result.is_told:
        try:
            picture = picture_of(result.folder, width=min(120, shutil.get_terminal_size((100, 24)).columns))
        except HpcschedError as error:  # the run is over and has its outcome, whatever became of its folder
            picture = ""
            say(f"no picture of the run: {error}")
        words.say(ending(result, picture))
    if requeue and result.state is ExperimentState.SUSPENDED:
        say(requeue_job(os.environ, run_command))
    words.close()
    raise typer.Exit(result.exit_code)


def setting_of(
    text: str, *, what: str = "--set KEY=VALUE", example: str = 'launcher.interface="hsn0"'
) -> tuple[str, Any]:
    """ "KEY=VALUE" -> dotted key and value; a value that is no TOML is taken as a text. Raises InputError."""
    import tomllib

    from hpcsched.errors import InputError

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{text!r}: must be {what}, such as {example}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value
