"""Strangers on the same hosts and trials that try it on: nothing secret is shown, nothing that a user writes is run."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import psutil
import pytest

from hpcsched.core import events as ev
from tests.support.e2e import Run, light_job, processes_of

LONG = {"step_s": 0.2}
EVIL = "$(touch owned); `touch owned`; ' \" & | > owned \n touch owned \x1b]0;owned\x07\x1b[2J ../../owned %s %n \u202e"


def secrets_of(run: Run) -> set[bytes]:
    """The secret halves of all keys."""
    found = set()
    for file in run.folder.keys.rglob("*"):
        if file.is_file():
            found |= {
                match.encode() for match in re.findall(r'secret-key\s*=\s*"([^"]{20,})"', file.read_text())
            }
    assert found, "there are keys"
    return found


def test_no_secret_is_in_arguments_environments_titles_or_logs(tmp_path: Path) -> None:
    """Of the driver, the supervisors and the ranks while they run; of every file of the run but the keys afterwards."""
    run = light_job(tmp_path, [LONG] * 2, deadline="10m", max_iterations=20).start()
    run.waits_for(ev.ResultReported, 3)
    secrets = secrets_of(run)
    pids = {run.process.pid, *(pid for pid, _ in processes_of(run.job.run_dir))}
    assert len(pids) >= 5
    for pid in pids:
        for name in ("cmdline", "environ", "comm"):
            try:
                data = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue
            assert not any(secret in data for secret in secrets), f"{name} of {pid}"
    assert run.ends() == 0
    run.check()
    for file in [*run.folder.root.rglob("*"), run.out_file, run.err_file]:
        if file.is_file() and run.folder.keys not in file.parents:
            data = file.read_bytes()
            assert not any(secret in data for secret in secrets), file


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_run_folder_and_keys_are_the_owners_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        run = light_job(tmp_path, [{}]).start()
        assert run.ends() == 0
    finally:
        os.umask(before)
    run.check()
    assert stat.S_IMODE(run.folder.root.stat().st_mode) == 0o700
    for path in run.folder.keys.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert not stat.S_IMODE(run.folder.segment(1).stat().st_mode) & 0o077


def test_values_of_a_configuration_are_values_and_nothing_else(tmp_path: Path) -> None:
    """Shell metacharacters, newlines, escapes, paths: in a configuration, in a message of the script, in its output."""
    config = {"note": EVIL, "height": 0.5}
    job = light_job(tmp_path, [config, config | {"do": "escape", "at": 2}], max_iterations=3)
    text = job.file.read_text()
    job.file.write_text(
        text.replace("[search.space]", f"[search.space]\nnote = {{ constant = {json.dumps('x')} }}")
    )
    lines = [json.dumps(config), json.dumps(config | {"do": "escape", "at": 2})]
    job.file.write_text(job.file.read_text().replace(json.dumps("x"), json.dumps(EVIL)))
    (job.folder / "configs.jsonl").write_text("\n".join(lines) + "\n")
    run = job.start()
    assert run.ends() == 0, run.told()
    run.check()
    assert not list(tmp_path.rglob("owned*")), "something was run"
    assert not Path("owned").exists()
    shown = [run.out, run.err]
    for command in (["status"], ["explain"], ["logs"]):
        args = [command[0], str(job.run_dir), *(["1"] if command[0] != "status" else [])]
        done = run.command(*args)
        shown.append(done.stdout + done.stderr)
    for text in shown:
        assert "\x1b]" not in text, text
        assert "\x1b[2J" not in text, text
        assert "\x07" not in text, text
    best = json.loads((run.folder.best / "best.json").read_text())
    assert best["config"]["note"] == EVIL


def test_the_name_of_a_process_says_nothing_of_a_configuration(tmp_path: Path) -> None:
    run = light_job(tmp_path, [LONG | {"height": 0.123456789}], deadline="10m", max_iterations=15).start()
    run.waits_for(ev.ResultReported, 2)
    for pid, line in processes_of(run.job.run_dir):
        assert "0.123456789" not in line, f"{pid}: {line}"
        assert "0.123456789" not in psutil.Process(pid).name()
    assert run.ends() == 0
    run.check()
