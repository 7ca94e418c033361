"""`hpcsched simulate`: the experiment of a file in simulated time, by one or several policies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpcsched.sim.comparison import PolicyRow
    from hpcsched.sim.simulate import SimulatedRun
    from hpcsched.sim.sweep import RunRequest


WIDE = 100
"""Columns of a terminal from which on the table also has the range over seeds."""


class ScalingChoice(StrEnum):
    LINEAR = "linear"
    SQRT = "sqrt"
    NONE = "none"


class ModeChoice(StrEnum):
    MAX = "max"
    MIN = "min"


def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An experiment file with a [simulation] table.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy to compare, with options if need be: hypersched:entrance=reversible,keep_paused=true. "
            "May be given several times; default: the file's."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds; default 1, or all files of --configs.")
    ] = None,
    atoms: Annotated[int | None, typer.Option(min=1, help="Atoms of the simulated machine.")] = None,
    deadline: Annotated[
        str | None, typer.Option(help='In place of the file\'s: "30s", "2h30m" or seconds.')
    ] = None,
    scaling: Annotated[
        ScalingChoice | None, typer.Option(help="How trials scale, and what the scheduler is told.")
    ] = None,
    restart_cost: Annotated[
        str | None, typer.Option(help="Added to every start, resume and resize (seconds).")
    ] = None,
    configs: Annotated[
        Path | None,
        typer.Option(
            help="A folder of seed-NN.jsonl files: the trials of each seed, one configuration a line."
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="paper, crossing, table:PATH (recorded curves) or run:PATH (a finished run)."),
    ] = None,
    mode: Annotated[
        ModeChoice | None, typer.Option(help="Whether more or less of the metric is better.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the comparison as a figure (.svg, .png or .pdf).")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; default: all cores.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every run as JSON instead of a table.")] = False,
) -> None:
    """Simulate an experiment file and compare policies; starts nothing.

    Prints, by policy: score at the deadline (median and spread over seeds), trials started, iterations of the best, and
    what the atoms were used for.
    """
    import msgspec

    from hpcsched.config.duration import parse_duration
    from hpcsched.config.load import load_experiment
    from hpcsched.core.enums import Mode
    from hpcsched.errors import InputError
    from hpcsched.sim.comparison import compare, runs_as_json
    from hpcsched.sim.figure import check_figure, draw
    from hpcsched.sim.options import parse_workload, read_simulation
    from hpcsched.sim.request import requests_of, with_scaling

    def seconds(option: str, text: str) -> float:
        try:
            return parse_duration(text)
        except ValueError as error:
            raise InputError(f'{option} {text}: {error}; allowed: 30, 0.5, "90s", "2h30m"') from error

    if figure is not None:
        check_figure(figure)
    spec = load_experiment(file, simulate=True)
    table = read_simulation(spec)
    if workload is not None:
        try:
            table = msgspec.structs.replace(table, workload=parse_workload(workload, Path.cwd()))
        except ValueError as error:
            raise InputError(
                f"--workload {workload}: {error} (allowed: paper, crossing, table:PATH, run:PATH)"
            ) from error
    if restart_cost is not None:
        start_up_s = table.world.start_up_s + seconds("--restart-cost", restart_cost)
        table = msgspec.structs.replace(
            table, world=msgspec.structs.replace(table.world, start_up_s=start_up_s)
        )
    spec, table = with_scaling(spec, table, None if scaling is None else scaling.value)
    policies = list(dict.fromkeys(policy or [str(spec.scheduler.policy.__struct_config__.tag)]))
    requests = requests_of(
        spec,
        table,
        policies,
        num_seeds=seeds,
        num_atoms=atoms,
        deadline_s=None if deadline is None else seconds("--deadline", deadline),
        configs=configs,
        mode=None if mode is None else Mode(mode.value),
    )
    runs = _perform(requests, jobs)
    if figure is not None:
        draw(requests, runs, figure, metric=spec.experiment.metric)
    if json:
        sys.stdout.write(msgspec.json.encode(runs_as_json(requests, runs)).decode() + "\n")
    else:
        _print_table(compare(requests, runs), title=_title(requests))
        if figure is not None:
            print(f"figure: {figure}")


def _perform(requests: Sequence[RunRequest], num_workers: int | None) -> list[SimulatedRun]:
    """All runs, with a progress bar on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from hpcsched.sim.sweep import perform_all

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("runs", total=len(requests))
        return perform_all(requests, num_workers=num_workers, done=lambda *_: bar.advance(task))


def _title(requests: Sequence[RunRequest]) -> str:
    from hpcsched.core.words import atoms

    first = requests[0]
    deadline = "no deadline" if first.deadline_s is None else f"deadline {first.deadline_s:g} s"
    seeds = len({request.seed for request in requests})
    return f"{atoms(first.num_atoms)}, {deadline}, {seeds} seed{'s' * (seeds != 1)}"


def _print_table(rows: Sequence[PolicyRow], *, title: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold", min_width=10)
    several = any(row.num_runs > 1 for row in rows)
    ranges = several and console.width >= WIDE
    over_seeds = ("spread", "range") if ranges else ("spread",) if several else ()
    for name in ("score", *over_seeds, "trials", "best at", "ends", "training", "restarts", "idle"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.label,
            _number(row.score),
            *((_number(row.spread),) if several else ()),
            *(("-" if row.low is None else f"{row.low:.3f} .. {row.high:.3f}",) if ranges else ()),
            f"{row.trials_started:g}",
            "-" if row.best_iteration is None else f"it. {row.best_iteration:g}",
            f"{row.finished_s:.4g} s",
            f"{row.training_share:.0%}",
            f"{row.restart_share:.1%}",
            f"{row.idle_share:.0%}",
        )
    console.print(table)
    beyond = [row for row in rows if row.num_beyond_record]
    for row in beyond:
        console.print(
            f"{row.label}: in {row.num_beyond_record} of {row.num_runs} runs the best lies beyond what was recorded "
            "(its curve is held flat there)"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
