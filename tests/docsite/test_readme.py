"""The code blocks of the README run, too."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from hpcsched.eventlog.hdf5 import seal
from tests.support.docblocks import FENCE, environ_of, run_bash
from tests.support.e2e import clean_environ
from tests.support.runs import a_run

PROJECT = Path(__file__).parent.parent.parent
README = (PROJECT / "README.md").read_text(encoding="utf-8")
ELSEWHERE = {
    "bash jobs/quickstart.sh": "tests/jobs",
    "bash tests/run.sh": "it is what runs the tests",
    "hpcsched run experiment.toml": "tests/docsite/test_blocks.py, with the tutorial's file",
    "salloc --nodes 4 --gpus-per-node 4 --time 2:00:00 hpcsched run experiment.toml": "the same, on the test cluster",
}
"""Commands that other tests run, and where."""
pytestmark = pytest.mark.timeout(300)


def blocks(language: str) -> list[str]:
    return [match[3] for match in FENCE.finditer(README) if match[1] == language]


def commands() -> list[str]:
    """Of all bash blocks, without their comments."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [" ".join(shlex.split(line, comments=True)) for line in lines if line.strip()]


def test_every_command_is_run_by_some_test() -> None:
    ours = {command for command in commands() if re.search(r"\bRUN\b|submit", command)}
    assert set(commands()) - ours == set(ELSEWHERE)


@pytest.mark.parametrize("command", [command for command in commands() if re.search(r"\bRUN\b", command)])
def test_a_command_about_a_run_runs(command: str, tmp_path: Path) -> None:
    program = command.split()[0]
    if program != "hpcsched" and shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    seal(a_run(tmp_path / "RUN", deadline_s=40.0))
    assert run_bash(command, tmp_path, environ_of(clean_environ()))


def test_the_experiment_is_one_and_can_be_submitted(tmp_path: Path) -> None:
    (experiment,) = blocks("toml")
    (tmp_path / "experiment.toml").write_text(experiment)
    shutil.copy(PROJECT / "jobs" / "digits" / "train.py", tmp_path / "train.py")
    environ = environ_of(clean_environ())
    assert "hypersched" in run_bash("hpcsched check experiment.toml", tmp_path, environ)
    (submit,) = (command for command in commands() if "submit" in command)
    assert "#SBATCH --nodes=4" in run_bash(f"{submit} --dry-run", tmp_path, environ)


def test_the_simulation_named_in_the_text_runs(tmp_path: Path) -> None:
    found = re.search(r"`(hpcsched simulate jobs/\S+[^`]*)`", README)
    assert found is not None
    command = re.sub(r"--seeds \d+", "--seeds 1", found[1])
    told = run_bash(command, PROJECT, environ_of(clean_environ()))
    assert "hypersched" in told
    assert "asha" in told


def test_the_quick_starts_last_words_are_those_of_a_run(tmp_path: Path) -> None:
    """What the README shows of the end is what `ending` prints."""
    from hpcsched.driver import ending

    source = Path(ending.__file__).read_text(encoding="utf-8")
    (shown,) = (block for block in blocks("text") if "best trial" in block)
    for line in shown.splitlines()[1:]:
        word = line.split("  ")[0]
        assert word == "accuracy" or f'"{word}' in source or f'f"{word}' in source, word
