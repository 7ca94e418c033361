"""The wheel in a clean environment: templates, examples and documentation come along, and nothing needs torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def run(*argv: str, cwd: Path, limit_s: float = 600.0) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "SLURM_"))
    }
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def python_of(version: str) -> str:
    """An interpreter of that version: this one, one on PATH, or one of pyenv's."""
    if version == ".".join(map(str, sys.version_info[:2])):
        return sys.executable
    candidates = [shutil.which(f"python{version}")]
    candidates += [str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip(f"no Python {version} here: the wheel is not tried with it")


@pytest.fixture(scope="module", params=["3.11", "3.13"])
def installed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The environment's bin folder."""
    python = python_of(request.param)
    base = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        str(base),
        str(PROJECT),
        cwd=base,
    )
    (wheel,) = base.glob("hpcsched-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if "/runs/" in name or "__pycache__" in name]
    run(python, "-m", "venv", str(base / "venv"), cwd=base)
    run(
        str(base / "venv/bin/pip"),
        "install",
        "--quiet",
        f"{wheel}[submit]",
        "-c",
        str(PROJECT / "constraints.txt"),
        cwd=base,
    )
    return base / "venv" / "bin"


def test_the_commands_work_without_torch(installed: Path, tmp_path: Path) -> None:
    hpcsched = str(installed / "hpcsched")
    assert "submit" in run(hpcsched, "--help", cwd=tmp_path)
    python = str(installed / "python")
    loaded = run(
        python,
        "-c",
        "import hpcsched, sys; print(sorted(set(sys.modules) & {'torch', 'h5py', 'zmq', 'matplotlib'}))",
        cwd=tmp_path,
    )
    assert loaded.strip() == "[]"
    assert (
        run(python, "-c", "import importlib.util as u; print(u.find_spec('torch'))", cwd=tmp_path).strip()
        == "None"
    )


def test_templates_examples_and_documentation_come_along(installed: Path, tmp_path: Path) -> None:
    hpcsched = str(installed / "hpcsched")
    assert "templates: apptainer, exclusive, plain, pyxis, requeue" in run(
        hpcsched, "submit", "--list", cwd=tmp_path
    )
    (tmp_path / "train.py").touch()
    run(hpcsched, "init", "--metric", "accuracy", cwd=tmp_path)
    assert "#SBATCH --nodes=2" in run(
        hpcsched, "submit", "experiment.toml", "--nodes", "2", "--dry-run", cwd=tmp_path
    )
    run(hpcsched, "docs", "--out", "site", cwd=tmp_path)
    assert (tmp_path / "site" / "index.html").exists()
    found = run(
        str(installed / "python"),
        "-c",
        "from hpcsched.share import share; print(share('jobs'))",
        cwd=tmp_path,
    ).strip()
    assert "_share" in found
    assert (Path(found) / "digits" / "experiment.toml").exists()
    run(
        hpcsched,
        "simulate",
        f"{found}/simulation/paper_4atoms.toml",
        "--policy",
        "asha",
        "--seeds",
        "1",
        cwd=tmp_path,
    )
