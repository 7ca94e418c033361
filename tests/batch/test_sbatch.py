"""Handing a script to sbatch: what is left when Slurm refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.batch.sbatch import sbatch
from hpcsched.errors import CommandError, InputError


def fake(folder: Path, text: str) -> dict[str, str]:
    folder.mkdir()
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {"PATH": str(folder)}


def test_a_refused_script_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = fake(tmp_path / "bin", "echo 'sbatch: error: invalid account' >&2; exit 1")
    monkeypatch.setenv("PATH", environ["PATH"])
    with pytest.raises(CommandError, match="invalid account"):
        sbatch("#!/bin/bash\n", run_dir=tmp_path / "runs" / "r", environ=environ)
    assert list((tmp_path / "runs").iterdir()) == []


def test_without_slurm_nothing_is_left_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no Slurm here"):
        sbatch("#!/bin/bash\n", run_dir=tmp_path / "runs" / "r", environ={"PATH": str(tmp_path)})
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_copy_of_what_was_submitted_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = fake(tmp_path / "bin", "echo '17;cluster'")
    monkeypatch.setenv("PATH", environ["PATH"])
    done = sbatch("#!/bin/bash\n", run_dir=tmp_path / "runs" / "r", environ=environ)
    assert done.job_id == "17"
    assert done.script.read_text() == "#!/bin/bash\n"
