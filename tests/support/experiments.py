"""Experiment files for tests: a folder with a training script and a file that is right in all points."""

from __future__ import annotations

from pathlib import Path

from hpcsched.config.load import load_experiment
from hpcsched.config.spec import ExperimentSpec

NOW = 1_800_000_000.0
"""UNIX seconds; the moment at which test files are read."""

VALID = """\
[experiment]
metric = "accuracy"
deadline = "2m"

[trial]
command = ["sh", "train.sh"]
max_iterations = 81

[scheduler]
policy = "hypersched"
reduction_factor = 3

[search.space]
learning_rate = { log_uniform = [1e-4, 1.0] }
momentum = { choice = [0.9, 0.95, 0.99] }
"""


def write_experiment(folder: Path, text: str = VALID) -> Path:
    """experiment.toml and train.sh in `folder`."""
    (folder / "train.sh").touch()
    file = folder / "experiment.toml"
    file.write_text(text, encoding="utf-8")
    return file


def changed(*changes: tuple[str, str], text: str = VALID) -> str:
    """The valid file with some text replaced; each old text must be there."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in the file that is to be changed"
        text = text.replace(old, new)
    return text


def load(file: Path, *, inside_job: bool = False, **options: object) -> ExperimentSpec:
    """As `load_experiment`, at NOW and with a small environment."""
    environ = {"PATH": "/usr/bin:/bin"} | ({"SLURM_JOB_ID": "7"} if inside_job else {})
    return load_experiment(file, environ=environ, now=NOW, **options)  # type: ignore[arg-type]
