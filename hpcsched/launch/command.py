"""The one door to external commands: a time-out, a session of its own, and an error that shows everything."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from hpcsched.errors import CommandError

MAX_OUTPUT = 16 << 20
"""Characters of output that are kept of a command; beyond, its end."""


def run_command(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str]) -> str:
    """Run a short command to its end; its standard output.

    It reads nothing, and it lives in its own session: a Ctrl-C in the terminal is the driver's alone. Raises CommandError
    when it fails (with its exit code), cannot be started (code 127), or takes longer than `timeout_s` (code None; it
    is killed then).
    """
    command = tuple(argv)
    try:
        done = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(command, None, _text(error.stdout), _text(error.stderr)) from error
    except OSError as error:
        raise CommandError(command, 127, "", f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise CommandError(command, done.returncode, done.stdout, done.stderr)
    return done.stdout[-MAX_OUTPUT:]


def _text(output: str | bytes | None) -> str:
    if output is None:
        return ""
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output
