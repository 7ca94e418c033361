"""`hpcsched logs`: what the ranks of a trial wrote."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hpcsched.errors import InputError
from hpcsched.runfolder import RunFolder

POLL_S = 0.25
_RANK_LOG = re.compile(r"rank-(\d+)\.log")


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="The trial's number.", min=0)],
    rank: Annotated[int | None, typer.Option(help="This rank alone; default: all of them.", min=0)] = None,
    incarnation: Annotated[
        int | None, typer.Option(help="The N-th launch of the trial; default: the newest.", min=1)
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on as the files grow, through new launches; end with Ctrl-C."
        ),
    ] = False,
    supervisor: Annotated[
        bool, typer.Option(help="The node supervisors' files instead of the ranks'.")
    ] = False,
    raw: Annotated[bool, typer.Option(help="Bytes as they are, escape sequences included.")] = False,
) -> None:
    """Print the output of a trial's ranks, each line with its rank when there are several.

    Escape sequences and control characters are taken out, so that no trial can steer your terminal (--raw leaves them).
    """

    printer = Printer(raw=raw)
    if not follow:
        files = log_files(RunFolder(run), trial, incarnation, rank, supervisor=supervisor)
        for name, file in files.items():
            printer.follow(name if len(files) > 1 else "", file)
        printer.finish()
        if not printer.printed:
            sys.stderr.write(_silence(RunFolder(run), trial, files))
        return
    for _ in ticks():
        files = log_files(RunFolder(run), trial, incarnation, rank, supervisor=supervisor)
        for name, file in files.items():
            printer.follow(name if len(files) > 1 else "", file)


def _silence(folder: RunFolder, trial: int, files: dict[str, Path]) -> str:
    """What is said when the files asked for are empty: which launch that is, and which other ones wrote something."""
    place = next(iter(files.values())).parent
    wrote = sorted(
        int(other.name)
        for other in (folder.trials / str(trial)).iterdir()
        if other.name.isdigit() and any(log.stat().st_size for log in other.glob("rank-*.log"))
    )
    elsewhere = f"; --incarnation {wrote[-1]} did write" if wrote else ""
    return f"hpcsched: trial {trial}, incarnation {place.name}: nothing was written (yet){elsewhere}\n"


def ticks() -> Iterator[None]:
    while True:
        yield
        time.sleep(POLL_S)


def log_files(
    folder: RunFolder, trial: int, incarnation: int | None, rank: int | None, *, supervisor: bool = False
) -> dict[str, Path]:
    """The files asked for, by what a line of theirs begins with. Raises InputError when there are none."""
    home = folder.trials / str(trial)
    if not folder.journal.is_dir():
        raise InputError(f"{folder.root}: no run folder (no journal/ in it)")
    launches = sorted(int(path.name) for path in home.glob("*") if path.name.isdigit())
    if not launches:
        from hpcsched.core.words import no_such_trial
        from hpcsched.eventlog.status import read_status

        num = len(read_status(folder).run.scheduler.trials)
        if trial >= num:
            raise InputError(f"{folder.root}: {no_such_trial(trial, num)}")
        raise InputError(
            f"trial {trial}: was never launched in {folder.root}; `hpcsched explain` says what it waits for"
        )
    if incarnation is None:
        incarnation = launches[-1]
    elif incarnation not in launches:
        raise InputError(
            f"trial {trial}: no incarnation {incarnation}; there are {', '.join(map(str, launches))}"
        )
    place = home / str(incarnation)
    if supervisor:
        files = {
            path.stem.removeprefix("supervisor-"): path for path in sorted(place.glob("supervisor-*.log"))
        }
    else:
        found = {
            int(match[1]): path
            for path in place.glob("rank-*.log")
            if (match := _RANK_LOG.fullmatch(path.name))
        }
        if rank is not None and found and rank not in found:
            raise InputError(
                f"trial {trial}, incarnation {incarnation}: no rank {rank}; there are 0 to {max(found)}"
            )
        files = {str(number): found[number] for number in sorted(found) if rank in (None, number)}
    if not files:
        raise InputError(f"trial {trial}, incarnation {incarnation}: nothing was written (yet) in {place}")
    return files


class Printer:
    """Prints what files have grown by, in whole lines, each made harmless."""

    def __init__(self, *, raw: bool) -> None:
        self._raw = raw
        self.printed = False
        self._offsets: dict[Path, int] = {}
        self._halves: dict[Path, tuple[str, bytes]] = {}

    def follow(self, name: str, file: Path) -> None:
        with file.open("rb") as stream:
            stream.seek(self._offsets.get(file, 0))
            while chunk := stream.read(1 << 20):
                self._offsets[file] = stream.tell()
                whole, newline, rest = (self._halves.pop(file, ("", b""))[1] + chunk).rpartition(b"\n")
                self._print(name, whole + newline)
                if len(rest) > 1 << 20:  # a line without end: print what there is
                    self._print(name, rest + b"\n")
                elif rest:
                    self._halves[file] = (name, rest)

    def finish(self) -> None:
        for name, rest in self._halves.values():
            self._print(name, rest + b"\n")

    def _print(self, name: str, lines: bytes) -> None:
        from hpcsched.report.text import clean

        if not lines:
            return
        self.printed = True
        if self._raw:
            typer.echo(lines, nl=False)
            return
        for line in clean(lines.decode("utf-8", "replace")).removesuffix("\n").split("\n"):
            typer.echo(f"{clean(name)}: {line}" if name else line)
