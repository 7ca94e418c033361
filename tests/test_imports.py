"""Imports point one way; a room that reaches sideways or up is named here with the reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hpcsched"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "topology": {"errors"},
    "core": {"errors", "topology"},
    "wire": {"errors"},
    "orders": {"errors"},
    "runfolder": {"errors"},
    "launchspec": set(),
    "progress": set(),
    "channel": {"errors", "wire", "orders"},
    "runtime": {"errors", "wire", "channel", "launchspec", "progress", "runfolder"},
    "config": {"errors", "topology", "core"},
    "search": {"errors", "topology", "core", "config"},
    "launch": {"errors", "topology", "core", "wire", "channel", "launchspec", "progress", "runfolder"},
    "eventlog": {"errors", "topology", "core", "runfolder"},
    "sim": {"errors", "topology", "core", "config", "search", "eventlog", "runfolder"},
    "report": {"errors", "topology", "core", "config", "eventlog", "runfolder", "sim"},
    "share": {"errors"},
    "batch": {"errors", "topology", "core", "config", "runfolder", "share"},
    "screen": {"errors", "topology", "core", "eventlog", "report", "runfolder"},
    "driver": {
        "screen", "errors", "topology", "core", "config", "search", "launch", "eventlog", "wire", "channel", "launchspec",
        "orders", "runfolder",
    },
}  # fmt: skip
"""cli may see everything."""

PURE = {"topology", "core"}
PURE_EXTERNALS = {
    "__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math",
    "operator", "random", "re", "string", "typing", "types", "msgspec", "numpy", "fractions", "statistics", "json",
}  # fmt: skip


def _imports(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; write it out"
            names.append(node.module or "")
            if node.module == "hpcsched":
                names += [f"hpcsched.{alias.name}" for alias in node.names]
    return names


FILES = sorted(path for path in PACKAGE.rglob("*.py") if "_share" not in path.parts)


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room in {"cli", "__init__", "__main__", "api", "docsite", "doctor"}:
        return
    for name in _imports(file):
        parts = name.split(".")
        if parts[0] == "hpcsched" and len(parts) > 1 and parts[1] not in {room, "__version__"}:
            assert parts[1] in ALLOWED[room], (
                f"{file.name} (room {room}) imports {name}: rooms see only what lies below them "
                f"({', '.join(sorted(ALLOWED[room])) or 'nothing'}), so that each can be read and tested alone"
            )
        if room in PURE and parts[0] != "hpcsched":
            assert parts[0] in PURE_EXTERNALS, (
                f"{file.name} imports {name}: {room} is pure (no clock, no I/O, no logging), so that replay and simulation are exact"
            )
