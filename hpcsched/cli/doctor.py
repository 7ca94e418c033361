"""`hpcsched doctor`: tries what hpcsched relies on, line by line, with a cure for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpcsched.doctor.finding import Finding


def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="An experiment file: its srun_args and run folder are used."),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where runs would lie; default: ./runs, or as FILE says.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of lines.")] = False,
) -> None:
    """Try what hpcsched relies on, here and (inside a Slurm job) on every node of the job.

    On a login node: interpreter, limits, ports, the run folder's file system, a process group, Slurm's version. Inside a job
    also step creation, overlap, GPU visibility, P2P, clocks, whether nodes can connect back, and groups within a node and between
    nodes with their bandwidth. Exit code 0 when nothing failed, 1 otherwise.
    """
    import msgspec

    from hpcsched.doctor.finding import Verdict, line_of

    found: list[Finding] = []
    for finding in findings(file, run_dir):
        found.append(finding)
        if not as_json:
            typer.echo(line_of(finding))
    num_failed = sum(finding.verdict is Verdict.FAIL for finding in found)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        num_warned = sum(finding.verdict is Verdict.WARN for finding in found)
        typer.echo(f"{len(found)} looks: {num_failed} failed, {num_warned} warnings")
    raise typer.Exit(1 if num_failed else 0)


def findings(file: Path | None, run_dir: Path | None) -> Iterator[Finding]:
    """In order; each is there as soon as it is found."""
    import os
    import socket
    import time

    from hpcsched.config.load import load_experiment
    from hpcsched.doctor import here, slurm
    from hpcsched.launch.allocation import read_allocation
    from hpcsched.launch.command import run_command

    environ = dict(os.environ)
    spec = None if file is None else load_experiment(file, simulate=True)
    srun_args = () if spec is None else spec.launcher.srun_args
    folder = run_dir or (Path("runs") if spec is None else spec.file.absolute().parent / "runs")
    if spec is not None and run_dir is None and spec.experiment.run_dir is not None:
        folder = Path(spec.experiment.run_dir)
    yield from here.look_at_python(environ)
    yield from here.look_at_limits()
    yield from here.look_at_ports()
    yield from here.look_at_folder(folder)
    yield from here.look_at_gpus(environ)
    yield from here.look_at_group(environ)
    yield from slurm.look_at_commands(environ, run_command)
    allocation, trouble = slurm.allocation_or_finding(
        lambda: read_allocation(environ, run_command, hostname=socket.gethostname())
    )
    if trouble is not None:
        yield trouble
    elif allocation is None:
        from hpcsched.doctor.finding import skip

        yield skip(
            "job",
            "not inside one",
            "for the rest: salloc --nodes 2 --gpus-per-node 1 --time 5 hpcsched doctor",
        )
    else:
        yield from slurm.look_at_job(allocation, time.time())
        yield from slurm.look_at_steps(allocation, folder, environ, run_command, srun_args=srun_args)
