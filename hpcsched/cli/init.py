"""`hpcsched init`: write a commented experiment file from a few questions or flags."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer


class Answers(msgspec.Struct, frozen=True):
    """What the file is made of."""

    name: str
    command: tuple[str, ...]
    metric: str
    mode: str
    deadline: str
    max_iterations: int
    policy: str
    gpus_per_atom: int


def command(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("experiment.toml"),
    command: Annotated[
        str | None, typer.Option(help='What one rank runs, such as "python train.py".')
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What trials report and the search is after.")] = None,
    mode: Annotated[str | None, typer.Option(help="max or min.")] = None,
    deadline: Annotated[str | None, typer.Option(help='Such as "2h30m" or "17:30".')] = None,
    max_iterations: Annotated[int | None, typer.Option(help="R: iterations of a complete trial.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="hypersched (default), deadline (our own), asha, hyperband, rasda, fixed_split, fifo."
        ),
    ] = None,
    gpus_per_atom: Annotated[int, typer.Option(help="GPUs of the smallest trial.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> None:
    """Write a commented experiment file, ready for `hpcsched check` and `hpcsched run`.

    Asks for what no flag gives when standard input is a terminal; takes defaults otherwise.
    """
    from hpcsched.errors import InputError

    try:
        there = out.exists()
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from error
    if there and not force:
        raise InputError(f"{out} exists already; give another --out, or --force to write over it")
    ask = sys.stdin.isatty()
    command = command or _ask(ask, "What does one rank run?", "python train.py")
    metric = metric or _ask(ask, "Which metric do trials report?", "accuracy")
    mode = mode or _ask(ask, "Is more of it better (max) or less (min)?", "max")
    deadline = deadline or _ask(ask, "How long may it take?", "1h")
    iterations = (
        max_iterations
        if max_iterations is not None
        else int(_ask(ask, "How many iterations (epochs) has a complete trial?", "81"))
    )
    policy = policy or _ask(
        ask,
        "Which policy? hypersched, deadline (our own), asha, hyperband, rasda, fixed_split or fifo",
        "hypersched",
    )
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"--command {command!r}: {error}") from error
    answers = Answers(
        name=_name(out),
        command=words,
        metric=metric,
        mode=mode,
        deadline=deadline,
        max_iterations=iterations,
        policy=policy,
        gpus_per_atom=gpus_per_atom,
    )
    text = experiment_text(answers)
    _problem_of_command(text, out)  # refuses what is wrong before anything is written
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from error
    typer.echo(f"wrote {out}")
    if note := _problem_of_command(text, out):
        typer.echo(f"to be mended first: {note}")
    cluster = shutil.which("sbatch", path=os.environ.get("PATH"))
    if cluster and not os.environ.get("SLURM_JOB_ID"):
        typer.echo(f"Slurm is here: `hpcsched submit {shlex.quote(str(out))} --nodes N --time T` queues it")
    typer.echo(
        f"next: put your hyperparameters under [search.space], then `hpcsched check {shlex.quote(str(out))}`"
    )


def _ask(ask: bool, question: str, default: str) -> str:
    return str(typer.prompt(question, default=default)) if ask else default


def _name(out: Path) -> str:
    """The file's name, or its folder's when the file is called experiment.toml."""
    stem = out.absolute().parent.name if out.stem == "experiment" else out.stem
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem)
    return kept.strip("._-")[:100] or "experiment"


def _problem_of_command(text: str, out: Path) -> str:
    """Why the command cannot run yet ("" when it can). Raises ExperimentFileError when anything else is wrong."""
    import time

    from hpcsched.config.load import parse_document, spec_of
    from hpcsched.errors import ExperimentFileError

    def check(simulate: bool) -> None:
        spec_of(
            parse_document(out, text),
            file=out,
            text=text,
            overrides={},
            folder=None,
            simulate=simulate,
            environ=os.environ,
            now=time.time(),
        )

    check(simulate=True)
    try:
        check(simulate=False)
    except ExperimentFileError as error:
        return str(error)
    return ""


def experiment_text(answers: Answers) -> str:
    """The file's text; every key that is not set is there as a comment with its default."""

    def toml(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    return f"""\
# An experiment for hpcsched. Check it: hpcsched check FILE. Run it, here or inside a Slurm job: hpcsched run FILE.

[experiment]
name = {toml(answers.name)}
metric = {toml(answers.metric)}            # what the training script reports
mode = {toml(answers.mode)}                   # "max" or "min"
deadline = {toml(answers.deadline)}                # or a clock time, "17:30"; in a Slurm job never later than its end
# metric_window = 1            # the score is the mean of the last so many reports
# seed = 0

[trial]
command = {toml(list(answers.command))}
grace_period = 1               # r: iterations before a trial is first compared with others
max_iterations = {answers.max_iterations}            # R: iterations of a complete trial
# env = {{ NCCL_DEBUG = "WARN" }}

[scheduler]
policy = {toml(answers.policy)}          # "deadline" (our own), "hypersched", "asha", "hyperband", "rasda", "fixed_split", "fifo"
reduction_factor = 3           # eta: one in three goes on at each rung

[atoms]
gpus_per_atom = {answers.gpus_per_atom}              # GPUs (ranks) of the smallest trial
multiple_of = 2                # a trial holds 1, 2, 4, 6, ... atoms
# num_atoms = 4                # on a machine without GPUs: how many atoms to play

[scaling]
assume = "linear"              # or "sqrt", "none", a table {{ 1 = 1.0, 2 = 1.8 }}, "measured"

[search]
sampler = "random"             # or "grid", "list", "optuna"
# num_trials = 100             # default: as many as fit before the deadline

[search.space]
learning_rate = {{ log_uniform = [1e-4, 1.0] }}
momentum = {{ choice = [0.9, 0.95, 0.99] }}
# dropout = {{ uniform = [0.0, 0.5] }}
# num_layers = {{ integer = [2, 8] }}
# batch_size = 64              # a constant

# [timeouts]
# silence = "30m"              # the longest iteration
# start = "5m"                 # from a launch until all ranks are at the loop
"""
