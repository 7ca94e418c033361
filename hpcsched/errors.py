"""The error tree.

::

    HpcschedError                      exit code 1
    ├── InputError                     exit code 2: the user can mend it before anything starts
    │   ├── ExperimentFileError        a key of experiment.toml (file, key, value, allowed)
    │   ├── RunFolderError             missing, in use, not ours, read-only, full
    │   └── AllocationError            the Slurm allocation or this machine cannot run what the file asks
    ├── LaunchError                    a step or a process could not be started or ended
    │   └── CommandError               an external command failed (argv, code, stdout, stderr)
    ├── ChannelError                   sockets and keys
    │   └── MessageError               bytes that are no message of ours
    ├── LogError
    │   ├── JournalDamagedError        a record before the last one is broken (file, position)
    │   └── ReplayDiffersError         the core now acts otherwise than the log says
    ├── CheckpointError                a checkpoint that is of something else, or cannot be written or read now
    │   └── LostCheckpointError        one that is missing, incomplete, altered or not ours: another one may do
    ├── TrialError                     raised inside a training script
    └── SupersededError                another driver has taken over this run folder

Ordinary outcomes (a trial crashed, a launch was refused) are values, not exceptions.
Each message says what happened, where, and what to do now.
"""

from __future__ import annotations

from pathlib import Path


class HpcschedError(Exception):
    """Root of all errors that hpcsched raises on purpose."""

    exit_code = 1


class InputError(HpcschedError):
    """Something the user gave is wrong; nothing was started."""

    exit_code = 2


class ExperimentFileError(InputError):
    """A key of an experiment file is missing, unknown or out of range."""

    def __init__(self, message: str, *, file: Path | str, key: str = "", value: object = None) -> None:
        self.file = str(file)
        self.key = key
        self.value = value
        where = f"{file}: {key}: " if key else f"{file}: "
        super().__init__(where + message)


class RunFolderError(InputError):
    """The run folder is missing, in use by a live driver, not ours, read-only or full."""


class AllocationError(InputError):
    """The allocation (or this machine) cannot run what the experiment asks for."""


class LaunchError(HpcschedError):
    """A step or process could not be started or ended."""


class CommandError(LaunchError):
    """An external command failed; shows argv, exit code and both outputs."""

    def __init__(self, argv: tuple[str, ...], returncode: int | None, stdout: str, stderr: str) -> None:
        self.argv = argv
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        what = "timed out" if returncode is None else f"exited with code {returncode}"
        super().__init__(
            f"command {what}: {' '.join(argv)}\n  stdout: {stdout.strip()[-2000:]!r}\n  stderr: {stderr.strip()[-2000:]!r}"
        )


class ChannelError(HpcschedError):
    """Sockets and keys of the channel between driver, supervisors and ranks."""


class MessageError(ChannelError):
    """Bytes that are no message of ours (malformed, too long, unknown kind)."""


class LogError(HpcschedError):
    """The journal or the HDF5 log."""


class JournalDamagedError(LogError):
    """A journal record that is not the last one is broken."""

    def __init__(self, file: Path | str, line: int, byte_offset: int, why: str) -> None:
        self.file = str(file)
        self.line = line
        self.byte_offset = byte_offset
        super().__init__(
            f"{file}: record {line} (byte {byte_offset}) is damaged: {why}. "
            "Nothing after it was read. Restore the file from a copy, or move the run folder away and start anew."
        )


class ReplayDiffersError(LogError):
    """The core acts otherwise on the logged events than the log says."""


class CheckpointError(HpcschedError):
    """A checkpoint that is of another configuration or of other objects, or that cannot be written or read now."""


class LostCheckpointError(CheckpointError):
    """A checkpoint that will never be usable again: it is missing, incomplete, altered, or others can write it."""


class TrialError(HpcschedError):
    """Raised inside a training script by the runtime."""


class SupersededError(HpcschedError):
    """A newer driver life owns this run folder; this one must write nothing more."""
