"""`hpcsched submit`: send an experiment to the cluster's queue."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer


def _print_list(wanted: bool) -> None:
    if wanted:
        from hpcsched.batch.script import template_names
        from hpcsched.batch.sites import load_site, site_names

        print("templates: " + ", ".join(template_names()))
        for name in site_names(os.environ):
            print(f"site {name}: {load_site(name, os.environ).description}")
        raise typer.Exit(0)


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file.")],
    nodes: Annotated[int, typer.Option(help="Nodes of the job.")] = 1,
    time: Annotated[
        str, typer.Option(help='The job\'s time: "2h", "90m", or as Slurm has it, "2:00:00".')
    ] = "1h",
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of each node; default: the site's.")] = None,
    site: Annotated[
        str | None,
        typer.Option(help="A site by name, or a .toml file; default: $HPCSCHED_SITE, else generic."),
    ] = None,
    template: Annotated[
        str, typer.Option(help="plain, exclusive, requeue, apptainer, pyxis, or a .j2 file of your own.")
    ] = "plain",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script and submit nothing.")] = False,
    run_dir: Annotated[Path | None, typer.Option(help="Default: runs/NAME-DATE beside the file.")] = None,
    deadline: Annotated[str | None, typer.Option(help="In place of the file's deadline.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for `hpcsched run`.")
    ] = None,
    job_name: Annotated[str | None, typer.Option(help="Default: the experiment's name.")] = None,
    signal_before: Annotated[
        int,
        typer.Option(
            help="Template requeue: seconds before the job's end at which the driver is warned, saves and queues again."
        ),
    ] = 60,
    sbatch_options: Annotated[
        list[str] | None,
        typer.Option(
            "--sbatch",
            metavar="OPTION",
            help="Further option of sbatch, such as --sbatch=--reservation=course.",
        ),
    ] = None,
    _list_all: Annotated[
        bool,
        typer.Option(
            "--list",
            callback=_print_list,
            is_eager=True,
            help="Print the templates and sites that there are.",
        ),
    ] = False,
) -> None:
    """Render an sbatch script for an experiment and submit it; prints the job and the run folder.

    Exit code 2 when the experiment file, the site or an option is wrong: nothing is queued then.
    """
    from hpcsched.batch.prepare import prepare
    from hpcsched.batch.sbatch import sbatch
    from hpcsched.batch.script import no_cores, render
    from hpcsched.cli.run import setting_of

    run_args = [word for text in settings or () for word in ("--set", text)]
    overrides = dict(setting_of(text) for text in settings or ())
    if deadline is not None:
        run_args += ["--deadline", deadline]
        overrides["experiment.deadline"] = deadline
    prepared = prepare(
        file,
        nodes=nodes,
        time=time,
        environ=os.environ,
        now=datetime.now(),
        site=site,
        template=template,
        gpus_per_node=gpus_per_node,
        run_dir=run_dir,
        job_name=job_name,
        signal_before_s=signal_before,
        run_args=run_args,
        sbatch=sbatch_options or (),
        overrides=overrides,
    )
    text = render(prepared.request, prepared.site, template)
    note = no_cores(text)
    if note is not None:
        typer.echo(f"hpcsched: {note}", err=True)
    if dry_run:
        sys.stdout.write(text)
        return
    root = prepared.request.run_dir
    submitted = sbatch(text, run_dir=root, environ=os.environ)
    where = shlex.quote(str(root))
    typer.echo(f"submitted as job {submitted.job_id}; script {submitted.script}")
    typer.echo(f"run folder {root} (made when the job starts)")
    typer.echo(f"look at it: squeue -j {submitted.job_id}; hpcsched watch {where}")
