"""Handing a script to sbatch."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpcsched.errors import CommandError, HpcschedError, InputError

SBATCH_LIMIT_S = 120.0
_LEAKING = ("SBATCH_", "SLURM_")


class Submitted(msgspec.Struct, frozen=True):
    job_id: str
    script: Path
    """A copy of what was submitted, beside the run folder."""


def sbatch(text: str, *, run_dir: Path, environ: Mapping[str, str]) -> Submitted:
    """Submit a script; a copy is kept as RUN_DIR.sbatch.sh. Raises InputError (no Slurm here, folder not writable),
    CommandError (Slurm refuses)."""
    script = run_dir.with_name(run_dir.name + ".sbatch.sh")
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{script}: cannot be written: {error.strerror}; give another --run-dir") from error
    argv = ("sbatch", "--parsable", str(script))
    try:
        return Submitted(_hand_over(argv, environ), script)
    except HpcschedError:
        script.unlink(missing_ok=True)  # nothing was queued: --dry-run prints it
        raise


def _hand_over(argv: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """The job's id."""
    try:
        done = subprocess.run(
            argv, env=_environ(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SBATCH_LIMIT_S, check=False
        )  # fmt: skip
    except FileNotFoundError as error:
        raise InputError(
            "sbatch is not on PATH: there is no Slurm here. `hpcsched run FILE` runs on this machine; --dry-run prints the script"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(argv, None, "", "") from error
    if done.returncode != 0:
        raise CommandError(argv, done.returncode, done.stdout, done.stderr)
    return done.stdout.strip().partition(";")[0]


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables of a job that this shell may stand in: sbatch would take them for options. A user's own
    defaults (SBATCH_ACCOUNT and so on) stay when there is no such job."""
    if "SLURM_JOB_ID" not in environ:
        return dict(environ)
    kept = {"SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_JWT"}
    return {key: value for key, value in environ.items() if key in kept or not key.startswith(_LEAKING)}
