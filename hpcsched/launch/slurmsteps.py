"""Live steps of a job, as `scontrol show step` tells (it also lists the steps of a step manager, squeue does not).

Slurm does not print the id that it was asked for: step "1235.0", as a step of it is told by its environment, is "1234_1.0" when the
job is a task of an array (and asked for an array's id, which its last task has for its own, Slurm answers with the steps of all its
tasks), and "1235.0+0", "1235.0+1" when the step has parts. So steps are told apart by their names, which we make.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import msgspec

from hpcsched.errors import CommandError
from hpcsched.launch.command import run_command

QUERY_LIMIT_S = 15.0
"""A controller that is away answers after 9 to 10 s."""

_FIELD = re.compile(r"(\w+)=(\S*)")
_NO_SUCH = re.compile(r"[Ii]nvalid job id|not found|[Nn]o job steps|Job step does not exist|Invalid job/step")


class LiveStep(msgspec.Struct, frozen=True):
    """A step that Slurm still knows; "COMPLETING" counts as alive."""

    step_id: str
    """As Slurm prints it; `scancel` takes it so. (`scontrol show step` does, too, but shows all steps of an array's task, 22.05.)"""
    name: str
    state: str
    nodes: str
    """As Slurm writes it, such as "n[1-2]"."""


class Presence(enum.Enum):
    """What was found out about a step."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """Slurm did not answer."""


def parse_show_step(text: str) -> tuple[LiveStep, ...]:
    """`scontrol show step`: paragraphs of NAME=VALUE words."""
    found = []
    for paragraph in re.split(r"\n(?=StepId=)", text):
        fields = dict(_FIELD.findall(paragraph))
        if "StepId" in fields and fields.get("State") not in {"COMPLETED", "CANCELLED", "FAILED"}:
            found.append(
                LiveStep(
                    fields["StepId"],
                    fields.get("Name", ""),
                    fields.get("State", ""),
                    fields.get("NodeList", ""),
                )
            )
    return tuple(found)


def live_steps(which: str, environ: Mapping[str, str]) -> tuple[LiveStep, ...] | None:
    """Steps of "JOB", or the one "JOB.STEP"; None when Slurm does not answer."""
    try:
        text = run_command(("scontrol", "show", "step", which), timeout_s=QUERY_LIMIT_S, env=environ)
    except CommandError as error:
        if error.returncode is not None and _NO_SUCH.search(error.stderr + error.stdout):
            return ()
        return None
    return parse_show_step(text)


def presence_of(
    step_id: str | None, name: str, job_id: str, environ: Mapping[str, str]
) -> tuple[Presence, str | None]:
    """Whether the step of this name lives, and the id for `scancel` where it is known.

    `step_id`: which one to ask about; None: it is looked for among all of the job.
    """
    steps = live_steps(step_id or job_id, environ)
    if steps is None:
        return Presence.UNKNOWN, step_id
    mine = [step for step in steps if step.name == name]
    return (Presence.ALIVE, mine[0].step_id.partition("+")[0]) if mine else (Presence.GONE, step_id)
