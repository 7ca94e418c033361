"""The reference of the experiment file, from the same table that reads it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import msgspec

from hpcsched.config import profile, space
from hpcsched.config.duration import format_duration
from hpcsched.config.keys import KEYS, REQUIRED, TABLES, Key
from hpcsched.config.kinds import Duration, show
from hpcsched.config.options import OPTIONS, POLICY_DOCS


class Entry(msgspec.Struct, frozen=True):
    """One line of the reference."""

    table: str
    name: str
    allowed: str
    default: str
    unit: str
    doc: str


def entries() -> Iterator[Entry]:
    """Every key there is, table after table; the options of policy P in table "scheduler, policy P"."""
    for table in TABLES:
        for key in KEYS:
            if key.table == table.name:
                yield Entry(table.name, key.name, key.kind.allowed, _default(key), key.unit, key.doc)
        if table.name == "scaling":
            yield Entry(
                "scaling",
                "assume",
                profile.ASSUME_ALLOWED,
                '"linear"',
                "",
                "Throughput relative to one atom; measured: from the trials' own iteration times.",
            )
            yield Entry(
                "scaling",
                "profile",
                "the path of a file that `hpcsched profile` wrote",
                "none",
                "",
                "Measured throughput by atoms and by how far they are apart.",
            )
        if table.name == "search":
            yield Entry(
                "search",
                "first",
                "a list of tables, such as [{ learning_rate = 0.1 }]",
                "[]",
                "",
                "Configurations that run before any of the sampler's; they may lie outside the ranges.",
            )
        if table.name == "search.space":
            yield Entry(
                "search.space",
                "NAME",
                space.ALLOWED,
                "required, one or more",
                "",
                "One hyperparameter. Both ends are included; integer takes log = true; uniform, log_uniform and integer take "
                'num = points for sampler "grid"; a bare value is a constant.',
            )
    for policy, options in OPTIONS.items():
        for option in options.values():
            yield Entry(
                f"scheduler, policy {policy}",
                option.name,
                option.kind.allowed,
                "none" if option.default is None else _plain(option.default),
                "",
                option.doc,
            )


def markdown() -> str:
    """The whole reference as Markdown, one table a TOML table."""
    lines = ["# The experiment file", ""]
    docs = {table.name: table.doc for table in TABLES}
    docs |= {f"scheduler, policy {policy}": doc for policy, doc in POLICY_DOCS.items()}
    rows: dict[str, list[Entry]] = {table: [] for table in docs}
    for entry in entries():
        rows[entry.table].append(entry)
    for table, found in rows.items():
        heading = (
            f'Options of policy `"{table.rpartition(" ")[2]}"`'
            if table.startswith("scheduler,")
            else f"`[{table}]`"
        )
        lines += [f"## {heading}", "", docs[table], ""]
        if found:
            lines += ["| key | allowed | default | unit | meaning |", "|---|---|---|---|---|"]
            lines += [
                f"| `{entry.name}` | {_cell(entry.allowed)} | {_cell(entry.default)} | {entry.unit} | {_cell(entry.doc)} |"
                for entry in found
            ]
            lines.append("")
        elif table.startswith("scheduler,"):
            lines += ["No options.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(key: Key) -> str:
    if key.default is REQUIRED:
        return "required"
    if key.default is None:
        return key.default_doc
    if isinstance(key.kind, Duration):
        return f'"{format_duration(key.default)}"'
    return _plain(key.default)


def _plain(value: Any) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    return show(list(value) if isinstance(value, tuple) else value)
