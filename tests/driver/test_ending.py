from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hpcsched.core.enums import ExperimentState
from hpcsched.driver.ending import best_in_words
from hpcsched.driver.request import Result
from hpcsched.runfolder import RunFolder


@pytest.mark.parametrize(
    "name", ["RUN", "a run", "it's", 'say "hi"', "$HOME", "a`b`", "back\\slash", "really!"]
)
def test_the_command_that_loads_the_best_model_is_what_a_shell_reads(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path / name)
    folder.best.mkdir(parents=True)
    (folder.best / "model.pt").touch()
    best = {
        "trial_id": 0,
        "metric_name": "accuracy",
        "metric": 0.9,
        "training_iteration": 3,
        "saved_s": 1.0,
        "config": {},
    }
    result = Result(state=ExperimentState.FINISHED, exit_code=0, folder=folder, best=best, why="")
    line = best_in_words(result)[-1]
    python, option, code = shlex.split(line.removeprefix("load it by"))
    assert (python, option) == ("python", "-c")
    assert repr(str(folder.best / "model.pt")) in code
    assert ('-c "import torch' in line) == (name in ("RUN", "a run"))
