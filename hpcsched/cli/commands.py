"""The table of commands: where each lives, and one line about it. Nothing is imported until a command is called."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    where: str
    """"module:name" of a plain function with typer's annotations, or of a typer.Typer.

    A function returns None (exit code 0) or an exit code, and raises HpcschedError for what it cannot do."""
    help: str


COMMANDS: dict[str, Command] = {
    "init": Command("hpcsched.cli.init:command", "Write a commented experiment file."),
    "check": Command(
        "hpcsched.cli.check:command", "Print what an experiment file would run; starts nothing."
    ),
    "run": Command("hpcsched.cli.run:command", "Run an experiment until its deadline."),
    "profile": Command(
        "hpcsched.cli.profile:command", "Measure how trials scale on this machine, before a search."
    ),
    "submit": Command("hpcsched.cli.submit:command", "Send an experiment to the cluster's queue."),
    "status": Command("hpcsched.cli.status:command", "Show how far a run is and its best trial."),
    "watch": Command("hpcsched.cli.watch:command", "Watch a run live, from its files."),
    "explain": Command(
        "hpcsched.cli.explain:command", "Say why a trial waits, was paused, resized or stopped."
    ),
    "stop": Command("hpcsched.cli.stop:command", "End a live run in order, or one of its trials."),
    "extend": Command("hpcsched.cli.extend:command", "Make a live run's deadline later."),
    "add": Command("hpcsched.cli.add:command", "Have a live run try one more configuration."),
    "logs": Command("hpcsched.cli.logs:command", "Print what the ranks of a trial wrote."),
    "report": Command("hpcsched.cli.report:command", "Write figures and a page about a run."),
    "compare": Command("hpcsched.cli.compare:command", "Put several runs side by side."),
    "replay": Command(
        "hpcsched.cli.replay:command", "Feed a run's events through the core; demand equal actions."
    ),
    "simulate": Command("hpcsched.cli.simulate:command", "Run an experiment file in simulated time."),
    "machine": Command(
        "hpcsched.cli.machine:command", "Print nodes, GPUs, cores, switches and atoms as read."
    ),
    "doctor": Command("hpcsched.cli.doctor:command", "Try what hpcsched relies on, with a cure for each."),
    "docs": Command("hpcsched.cli.docs:command", "Write the documentation as HTML pages."),
}
"""In the order of the help."""
