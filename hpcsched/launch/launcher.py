"""What a launcher is, and what it tells the driver.

A launcher brings the node supervisors of an incarnation to life and ends them. It never decides anything: it answers
each call at once and tells what happened by *notices*, from its own threads, through the one function it was given.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from hpcsched.launchspec import LaunchNode, LaunchSpec, SpareSpec

WhoseFault: TypeAlias = Literal["slurm", "trial", "site"]


class StepEnded(msgspec.Struct, frozen=True, tag=True):
    """A step (or a local supervisor) has ended. An incarnation of several steps gives one notice for each.

    The return code proves nothing about the trial: srun has been seen to give up with code 0 while the ranks lived.
    """

    trial_id: int
    incarnation: int
    returncode: int
    """Negative: the signal that ended it."""
    stderr_tail: str
    proven_gone_nodes: tuple[str, ...]
    """Nodes where nothing of this incarnation runs any more: that was checked."""


class StepRefused(msgspec.Struct, frozen=True, tag=True):
    """The step did not come to be, and nothing of the incarnation runs."""

    trial_id: int
    incarnation: int
    why: str
    """What happened and what can be done, for people."""
    retry_after_s: float
    whose: WhoseFault
    """Whose fault: Slurm's (busy, away: try again and blame nobody), this launch's or its node's, or the site's settings, which refuse the
    like on every node. The latter two count as failed launches."""


class NodeLost(msgspec.Struct, frozen=True, tag=True):
    """Slurm says that a node has failed."""

    node: str
    why: str


class NodesGone(msgspec.Struct, frozen=True, tag=True):
    """Later proof: nothing of this incarnation runs on these nodes any more."""

    trial_id: int
    incarnation: int
    nodes: tuple[str, ...]


LaunchNotice: TypeAlias = StepEnded | StepRefused | NodeLost | NodesGone

Notify: TypeAlias = Callable[[LaunchNotice], None]
"""Called from a launcher's threads; must be quick, thread-safe, and must not raise."""


def is_for_good(error: OSError) -> bool:
    """A program that could not be started: it is not there or may not be run. All else (no memory, a full disk) passes."""
    return isinstance(error, FileNotFoundError | PermissionError) or error.errno == errno.ENOEXEC


class Launcher(Protocol):
    """Starts and ends the supervisors of incarnations. Every method but `check` and `close` returns at once."""

    @property
    def keeps_spares(self) -> bool:
        """Whether a spare can wait beside trials. Not where a step holds the GPUs that it is shown."""

    def start(self, spec: LaunchSpec) -> None:
        """Bring up the supervisors; `RunFolder.launch_file` has been written."""

    def start_spare(self, spec: SpareSpec) -> None:
        """Bring up a spare on its node; `RunFolder.spare_file` has been written. In calls and notices it is trial
        `number`, incarnation 0, until it is adopted."""

    def adopt(self, spec: LaunchSpec, spares: Sequence[int]) -> None:
        """In place of `start`: these spares have been told to take the incarnation, and are its steps from now on."""

    def note_step(self, trial_id: int, incarnation: int, step_id: str) -> None:
        """The first word of a supervisor named its step ("JOB.STEP"): the step exists."""

    def kill(self, trial_id: int, incarnation: int) -> None:
        """End what is left of it; answered by StepEnded (or StepRefused) in any case, also when it had ended before.

        To tell the supervisors by the channel is the driver's part; they get a moment to end by themselves."""

    def forget(self, trial_id: int, incarnation: int) -> None:
        """Nobody asks for it any more: what is kept of it may go, once it has ended."""

    def check(self, node: LaunchNode, *, invented: bool) -> str | None:
        """Look again whether GPUs and cores of a node are free and whole, as a supervisor does before its ranks start. Blocks.

        None: they are; else why not. Raises LaunchError where it cannot be found out now."""

    def close(self) -> None:
        """End everything that is left. Blocks, but not for ever."""
