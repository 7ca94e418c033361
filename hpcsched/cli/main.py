"""The `hpcsched` command. Loads one command's module, and only when that command is called."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
import typer.core

from hpcsched.cli.commands import COMMANDS
from hpcsched.driver.say import say
from hpcsched.errors import HpcschedError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are known by name and help line; a module is imported when its command is resolved."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        # Stand-ins with a name and a help line, for help, completion and "did you mean".
        self.commands = {name: typer.core.TyperCommand(name, help=COMMANDS[name].help) for name in COMMANDS}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, (load_command(name) if stand_in is not None and name is not None else None), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            code = super().invoke(ctx)
        except HpcschedError as error:
            say(str(error))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        if isinstance(code, int) and not isinstance(code, bool):
            raise typer.Exit(code)
        return code


def load_command(name: str) -> Any:
    """The command behind a name of the table."""
    command = COMMANDS[name]
    module_name, _, attribute = command.where.partition(":")
    found = getattr(importlib.import_module(module_name), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name=name, help=found.__doc__ or command.help)(found)
    return typer.main.get_command(app)


app = typer.Typer(
    name="hpcsched",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich's takes half of the time of `--help`, and boxes break in logs and pipes
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback, which can be pasted anywhere
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from hpcsched import __version__

        print(f"hpcsched {__version__}")
        raise typer.Exit(0)


@app.callback()
def _group(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Inside one Slurm allocation, by a fixed deadline, the best configuration, trained as far as it can be."""


def main() -> None:
    """Console entry. Exit codes: 0 done, 1 failed, 2 wrong input, 75 suspended (start again to go on)."""
    try:
        app(prog_name="hpcsched")
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has gone; leave without a second complaint when Python flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
