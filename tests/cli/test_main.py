"""The command: lazy, quiet about its insides, exact about exit codes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcsched import __version__
from hpcsched.cli.commands import COMMANDS
from tests.support.experiments import changed, write_experiment

HEAVY = {
    "torch",
    "h5py",
    "zmq",
    "matplotlib",
    "optuna",
    "mpi4py",
    "numpy",
    "jinja2",
    "submitit",
    "ClusterShell",
    "pynvml",
}


def hpcsched(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, "-m", "hpcsched", *args],
        env=env | {"NO_COLOR": "1", "COLUMNS": "200"} | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def imported_by(code: str) -> set[str]:
    """Top-level modules that are loaded after `code` ran in a fresh Python."""
    program = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_import_hpcsched_loads_nothing_heavy() -> None:
    assert not imported_by("import hpcsched") & (HEAVY | {"typer", "rich", "msgspec"})


def test_help_loads_nothing_heavy_and_no_command() -> None:
    code = "sys.argv = ['hpcsched', '--help']; import hpcsched.cli.main; hpcsched.cli.main.main()"
    assert not imported_by(code) & (HEAVY | {"rich", "msgspec"})


def test_help_names_every_command_with_its_line() -> None:
    shown = hpcsched("--help")
    assert shown.returncode == 0
    for name, command in COMMANDS.items():
        assert any(name in line and command.help in line for line in shown.stdout.splitlines()), name


def test_every_command_can_be_found() -> None:
    for command in COMMANDS.values():
        module = command.where.partition(":")[0]
        assert importlib.util.find_spec(module) is not None, (
            f"{module} is in the table of commands but does not exist"
        )


def test_the_version_is_printed() -> None:
    assert hpcsched("--version").stdout == f"hpcsched {__version__}\n"


def test_a_command_misspelt_is_exit_code_2_with_a_guess() -> None:
    done = hpcsched("chek")
    assert done.returncode == 2
    assert "Did you mean 'check'?" in done.stderr


def test_an_error_of_ours_is_one_message_and_its_exit_code(tmp_path: Path) -> None:
    done = hpcsched("check", str(tmp_path / "none.toml"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"hpcsched: {tmp_path}/none.toml: no such file. `hpcsched init` writes one.\n"


def test_check_prints_what_would_run(tmp_path: Path) -> None:
    file = write_experiment(
        tmp_path, changed(("[scheduler]", "[atoms]\nnum_atoms = 6\ngpus_per_atom = 2\n[scheduler]"))
    )
    done = hpcsched("check", str(file), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    told = {row[0]: row[1] for row in rows if len(row) == 2}
    assert told["sizes"] == "1, 2, 4, 6 atoms a trial"
    assert told["ranks"] == "2, 4, 8, 12 (one a GPU)"
    assert told["deadline"].startswith("2m from now")
    assert told["rungs"] == "1, 3, 9, 27; complete at 81 iterations"
    assert told["policy"] == "hypersched, reduction factor 3"
    assert 'entrance = "closing"' in done.stdout


def test_check_as_json_is_one_object(tmp_path: Path) -> None:
    done = hpcsched("check", "--json", "--deadline", "60s", str(write_experiment(tmp_path)))
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["deadline"]["in_s"] == pytest.approx(60.0)
    assert plan["search"]["example"].keys() == {"learning_rate", "momentum"}
    assert plan["launches"][0]["world_size"] == 1


def test_init_writes_what_check_accepts(tmp_path: Path) -> None:
    (tmp_path / "train.sh").touch()
    file = tmp_path / "my experiment.toml"
    args = ("--out", str(file), "--command", "sh train.sh", "--metric", "val/accuracy", "--deadline", "30m")
    done = hpcsched("init", *args)
    assert done.returncode == 0, done.stderr
    assert "to be mended" not in done.stdout
    checked = hpcsched("check", str(file))
    assert checked.returncode == 0, checked.stderr
    assert "val/accuracy, max" in checked.stdout
    again = hpcsched("init", *args)
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    assert hpcsched("init", *args, "--force").returncode == 0


def test_init_says_what_is_to_be_mended_and_refuses_nonsense(tmp_path: Path) -> None:
    done = hpcsched("init", "--out", str(tmp_path / "e.toml"), "--command", "no-such-program")
    assert done.returncode == 0
    assert 'program "no-such-program" is not on PATH' in done.stdout
    wrong = hpcsched("init", "--out", str(tmp_path / "f.toml"), "--deadline", "soon")
    assert wrong.returncode == 2
    assert not (tmp_path / "f.toml").exists()


def test_init_refuses_a_name_no_file_can_have(tmp_path: Path) -> None:
    done = hpcsched("init", "--out", str(tmp_path / ("x" * 300)))
    assert (done.returncode, "cannot be written" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr


def test_init_in_a_new_folder_does_not_complain_about_that_folder(tmp_path: Path) -> None:
    done = hpcsched("init", "--out", str(tmp_path / "new" / "e.toml"), "--command", "true")
    assert done.returncode == 0, done.stderr
    assert "to be mended" not in done.stdout


def test_init_takes_the_policy_and_names_those_there_are(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    assert hpcsched("init", "--out", str(file), "--command", "true", "--policy", "deadline").returncode == 0
    assert 'policy = "deadline"' in file.read_text()
    wrong = hpcsched("init", "--out", str(tmp_path / "f.toml"), "--policy", "dedline")
    assert wrong.returncode == 2
    assert 'Did you mean "deadline"?' in wrong.stderr


def test_a_file_that_is_not_there_is_likened_to_names_not_to_their_ends(tmp_path: Path) -> None:
    (tmp_path / "one.toml").touch()
    (tmp_path / "experiment.toml").touch()
    assert "Did you mean" not in hpcsched("check", str(tmp_path / "nope.toml")).stderr
    assert 'Did you mean "experiment.toml"?' in hpcsched("check", str(tmp_path / "experimnt.toml")).stderr


def test_paths_are_printed_without_detours(tmp_path: Path) -> None:
    from hpcsched.runfolder import neat

    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    assert neat(tmp_path / "a" / ".." / "b") == tmp_path / "b"
    assert neat(tmp_path / "link" / ".." / "b") == tmp_path / "link" / ".." / "b", "elsewhere than it seems"
    assert neat(tmp_path / "link" / "b") == tmp_path / "link" / "b"
