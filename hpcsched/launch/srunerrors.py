"""What srun's error output means. Data: one row an error, the first that matches counts.

The texts are those of srun and slurmstepd 20.11 to 25.11, as seen or as in their sources. Whoever reads a run's log at three in the
morning gets the row's advice beside the original text.

Whose an error is decides what it costs. "slurm": it passes, or may pass; the launch is tried again, for hours if need be, and nobody is
blamed. "site" and "trial" count as a failed launch, so that what can never work ends: "site" is what this Slurm or this job refuses to
every launch of this kind, on whatever node; "trial" is this launch's alone, and may be its node's. In doubt a row is "slurm": an outage
must not fail trials. What no row knows is looked into by the launcher (`SrunLauncher`), which asks whether an empty step runs there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from hpcsched.launch.launcher import WhoseFault


class SrunError(msgspec.Struct, frozen=True):
    """One known error."""

    pattern: str
    whose: WhoseFault
    retry_after_s: float
    """At first; doubled for each refusal of this kind in a row."""
    advice: str


TABLE: tuple[SrunError, ...] = (
    # The controller is away: it says that the job is invalid, which misleads.
    SrunError(
        r"Unable to confirm allocation|Unable to contact slurm controller|Socket timed out on send/recv|Slurm backup controller in standby"
        r"|Unable to establish controller machine|slurm_load_jobs error|Zero Bytes were transmitted or received|Connection refused"
        r"|Transport endpoint is not connected|Slurm temporarily unable to accept job, sleeping|Unable to contact slurm|Controller is in standby"
        r"|Message (?:send|receive) failure|Communication shutdown failure|Connection timed out|Connection reset|Unexpected message received",
        "slurm", 5.0, "the Slurm controller does not answer; running steps go on, the launch is tried again",
    ),
    SrunError(
        r"Requested nodes are busy|Job step creation (still )?disabled|Job step creation temporarily disabled|Step creation timed out",
        "slurm", 2.0, "the resources are still held by a step that is ending, or the binding makes steps wait for each other",
    ),
    # Of one munged, one clock or one directory of users at a time, seldom for ever.
    SrunError(
        r"Munge|MUNGE|munged|auth/munge|[Aa]uthentication (?:error|credential|of user)|[Jj]ob credential|Cannot unpack credential|Invalid user id|Unable to resolve (?:user|group) ID|Security violation",
        "slurm", 15.0, "Slurm's daemons do not accept each other's or this user's credentials now: munge, a clock, or the site's list of users",
    ),
    SrunError(r"Rate limit(ed)? exceeded|RPC rate limit|Too many requests", "slurm", 15.0, "the site limits requests a minute"),
    SrunError(
        r"Requested partition configuration|Requested node configuration is not available|Required node not available|Invalid node name specified|Node\(s\) .* (?:DOWN|not responding)",
        "slurm", 5.0, "a node of the placement is down, or is no longer the job's",
    ),
    SrunError(
        r"Node failure on|Task launch for .*failed|task \d+ launch failed|Application launch failed|Slurmd could not|Job prolog failed|Prolog\w* (?:error|failed|is still running)|Too many job steps on node"
        r"|Spank plugin failure, node failed|Error configuring interconnect|Communication connection failure|Unable to resolve|No route to host"
        r"|Timed out waiting for job step to complete|slurmd is not responding",
        "slurm", 3.0, "slurmd of a node did not start the task; the node may be failing",
    ),
    SrunError(
        r"Job/step already completing or completed|Invalid job id|Job is no longer pending/running|allocation .* has been revoked|[Jj]ob( \d+)? has expired"
        r"|Expired or invalid job",
        "slurm", 10.0, "the job is ending",
    ),
    SrunError(
        r"Invalid Trackable RESource|Invalid generic resource|Invalid GRES|Invalid gres|Insufficient GRES available in allocation",
        "site", 30.0,
        "Slurm refuses the GPU request: is an inherited request in [launcher] srun_args? Does the job hold the GPUs that `hpcsched machine` shows?",
    ),
    SrunError(
        r"More processors requested than permitted|You asked for \d+ tasks? but|Unable to satisfy cpu bind|Memory required by task is not available"
        r"|More memory requested",
        "site", 30.0, "the step asks for more than the job holds: see [launcher] srun_args, driver_memory and the job's request",
    ),
    SrunError(
        r"unrecognized option|invalid option|ambiguous option|--\S+ is incompatible with|Invalid --",
        "site", 60.0, "this srun does not know an option: see [launcher] srun_args, or set launcher.binding = \"slurm\" for an old Slurm",
    ),
    SrunError(r"Step limit reached for this job", "site", 60.0, "the job has had as many steps as the site allows (MaxStepCount): go on in another job"),
    SrunError(r"error: execve\(\):.*No such file or directory|Unable to chdir|couldn't chdir", "trial", 30.0, "the node does not see this file system or this Python: the run folder and the environment must be shared"),
)  # fmt: skip

UNKNOWN = SrunError(
    "", "trial", 5.0,
    "srun's own words are above; an empty step runs on the same nodes, so it is this launch that does not work",
)  # fmt: skip

_NODE_FAILURE = re.compile(r"Node failure on (\S+)")
_TABLE = tuple((re.compile(row.pattern), row) for row in TABLE)


def classify(stderr: str) -> SrunError:
    """The row that fits; UNKNOWN when none does."""
    return next((row for pattern, row in _TABLE if pattern.search(stderr)), UNKNOWN)


def failed_nodelists(stderr: str) -> Sequence[str]:
    """Node lists that Slurm called failed, as it writes them."""
    return _NODE_FAILURE.findall(stderr)
