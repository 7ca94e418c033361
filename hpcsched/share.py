"""Where the files that come with the package lie: templates, example jobs, documentation.

One function for both homes: a checkout has them beside the package, a wheel in `hpcsched/_share` (hatchling's
force-include, see pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hpcsched.errors import HpcschedError

Part = Literal["slurm_templates", "jobs", "docs"]
PACKAGE = Path(__file__).resolve().parent


def share(part: Part, package: Path = PACKAGE) -> Path:
    """The folder of one part. Raises HpcschedError when the installation lacks it.

    package: the folder of hpcsched's own modules.
    """
    inside = package / "docs" if part == "docs" else package / "_share" / part
    beside = package.parent / part
    if part != "docs" and (package.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    if inside.is_dir():
        return inside
    raise HpcschedError(
        f"{inside}: this installation of hpcsched lacks its {part}; install it anew (`pip install --force-reinstall hpcsched`)"
    )
