"""Reference pages made from the code: `python -m hpcsched.docsite.reference` writes those that are kept in `docs/`.

A test demands that the kept ones are what the code says now.
"""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from hpcsched.cli.commands import COMMANDS
from hpcsched.config import reference as experiment_reference
from hpcsched.core import actions, events
from hpcsched.share import share

MADE = "*Made from the code by `python -m hpcsched.docsite.reference`.*"


def experiment_page() -> str:
    """Every key of the experiment file."""
    heading, _, rest = experiment_reference.markdown().partition("\n")
    return f"{heading}\n\n{MADE}\n{rest.rstrip()}\n"


def command_page() -> str:
    """Every command with its arguments and options, as the command line itself knows them."""
    from hpcsched.cli.main import load_command

    lines = [
        "# The command line",
        "",
        MADE,
        "",
        "Exit codes: 0 done, 1 failed, 2 the input is wrong and nothing was started, 75 suspended (go on with `hpcsched run --resume`).",
    ]
    for name in COMMANDS:
        command = load_command(name)
        if hasattr(command, "commands"):
            members = [(f"{name} {sub}", member) for sub, member in command.commands.items()]
            lines += ["", f"## `hpcsched {name}`", "", _sentence(COMMANDS[name].help)]
        else:
            members = [(name, command)]
        for words, member in members:
            lines += _command(words, member)
    return "\n".join(lines) + "\n"


def _command(words: str, command: Any) -> list[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [
        param for param in command.params if param.param_type_name == "option" and param.name != "help"
    ]
    metavars = [param.metavar or param.name.upper() for param in arguments]
    usage = " ".join(["hpcsched", words, *metavars, "[OPTIONS]" if options else ""]).rstrip()
    lines = ["", f"## `hpcsched {words}`", "", "```text", usage, "```", ""]
    lines += [" ".join(part.split()) + "\n" for part in inspect.cleandoc(command.help or "").split("\n\n")]
    if arguments or options:
        lines += ["| argument or option | default | meaning |", "|---|---|---|"]
    for param, metavar in zip(arguments, metavars, strict=True):
        lines.append(f"| `{metavar}` | {'required' if param.required else ''} | {_cell(param.help or '')} |")
    for param in options:
        names = ", ".join(f"`{name}`" for name in param.opts)
        default = "" if param.default in (None, False, ()) or param.is_flag else f"`{_plain(param.default)}`"
        lines.append(f"| {names} | {default} | {_cell(param.help or '')} |")
    return lines


def event_page() -> str:
    """Events and actions of the core: what the journal's steps hold."""
    lines = [
        "# Events and actions",
        "",
        MADE,
        "",
        "The core is a value: an event in, actions out. Both stand in each `step` of the journal (see [the log](log_schema.md)), tagged by "
        "`kind`. Times are seconds since the experiment began.",
    ]
    for heading, module in (("Events: what has happened", events), ("Actions: what is to be done", actions)):
        lines += ["", f"## {heading}"]
        for struct, doc, fields in _structs(module):
            lines += ["", f"### `{struct.__name__}`", "", *([doc] if doc else [])]
            if fields:
                lines += ["", "| field | type | meaning |", "|---|---|---|"]
                lines += [f"| `{name}` | `{_cell(kind)}` | {_cell(words)} |" for name, kind, words in fields]
    return "\n".join(lines) + "\n"


def _structs(module: ModuleType) -> Iterator[tuple[type, str, list[tuple[str, str, str]]]]:
    """(struct, docstring, fields with type and words) of the tagged structs of a module, in order."""
    source = inspect.getsource(module)
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    for name, node in classes.items():
        struct = getattr(module, name)
        if name.startswith("_") or not isinstance(struct, type) or not issubclass(struct, msgspec.Struct):
            continue
        words = {
            key: doc
            for base in reversed(struct.__mro__)
            for key, doc in _field_docs(classes.get(base.__name__))
        }
        hints = typing.get_type_hints(struct)
        fields = [
            (field.name, _type_name(hints[field.name]), words.get(field.name, ""))
            for field in msgspec.structs.fields(struct)
        ]
        yield struct, " ".join((ast.get_docstring(node) or "").split()), fields


def _field_docs(node: ast.ClassDef | None) -> Iterator[tuple[str, str]]:
    """The texts that stand under the fields of a class."""
    if node is None:
        return
    for field, text in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, " ".join(text.value.value.split())


def _type_name(hint: Any) -> str:
    if isinstance(hint, typing.NewType):
        return hint.__name__
    arguments = typing.get_args(hint)
    if not arguments:
        return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
    origin = typing.get_origin(hint)
    names = ["..." if argument is ... else _type_name(argument) for argument in arguments]
    if origin is typing.Union or getattr(origin, "__name__", "") == "UnionType":
        return " | ".join(names)
    return f"{getattr(origin, '__name__', origin)}[{', '.join(names)}]"


def log_page() -> str:
    from hpcsched.eventlog.schema_page import page

    return page()


PAGES: dict[str, Callable[[], str]] = {
    "reference_experiment.md": experiment_page,
    "reference_cli.md": command_page,
    "reference_events.md": event_page,
    "log_schema.md": log_page,
}
"""Made pages by file name."""


def write(folder: Path) -> list[Path]:
    """Write all made pages."""
    written = []
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")
        written.append(folder / name)
    return written


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


if __name__ == "__main__":
    for file in write(share("docs")):
        sys.stdout.write(f"{file}\n")
