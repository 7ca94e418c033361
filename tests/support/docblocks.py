"""The fenced blocks of the documentation, to be run by tests.

The word after the language says how: none: here; `file=NAME`: written as a file; `slurm`: on the test cluster; `live`, `resume`: with a
run in that state; `install`: needs a network, only looked at; `policy`, `site`: has a test of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcsched.share import share

FENCE = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    page: str
    number: int
    language: str
    tag: str
    text: str


def blocks_of(page: str) -> list[Block]:
    text = (share("docs") / f"{page}.md").read_text(encoding="utf-8")
    return [
        Block(page, number, match[1], match[2] or "", match[3])
        for number, match in enumerate(FENCE.finditer(text))
    ]


def files_of(page: str) -> dict[str, str]:
    """Files that a page's blocks are, by name."""
    found = {}
    for block in blocks_of(page):
        if block.tag.startswith("file="):
            found[block.tag.removeprefix("file=")] = block.text
    return found


def environ_of(base: Mapping[str, str], *extra_path: str) -> dict[str, str]:
    """`hpcsched`, `python` and `torchrun` are those of this environment."""
    path = os.pathsep.join([*extra_path, str(Path(sys.executable).parent), base.get("PATH", "")])
    return {**base, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(share("docs").parent.parent)}


def run_bash(text: str, folder: Path, environ: Mapping[str, str], limit_s: float = 280.0) -> str:
    """Each command must succeed; its output."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=dict(environ), capture_output=True, text=True, timeout=limit_s,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    return done.stdout


def run_python(text: str, folder: Path, environ: Mapping[str, str], limit_s: float = 280.0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=dict(environ), capture_output=True, text=True, timeout=limit_s, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    return done.stdout
