"""The Slurm allocation that this process runs in, as far as Slurm tells.

What a job may use is spread over the environment (stale after a resize, a changed limit or a dead node, and reduced
inside a step), `scontrol -d show job` (fresh, but only Slurm's own numbering) and `squeue` (the live end). This module
asks each once, within a time limit, and goes on with what is known: whatever could not be read is a sentence in
`Allocation.warnings`.

Sources: `sbatch(1)` OUTPUT ENVIRONMENT VARIABLES, `scontrol(1)`, `squeue(1)` ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from hpcsched.errors import AllocationError, CommandError
from hpcsched.launch.nodelist import expand_nodelist
from hpcsched.topology.slurmtext import (
    NodeGrant,
    NodeText,
    parse_gres,
    parse_job_json,
    parse_show_job,
    parse_show_node,
    parse_time_limit,
    parse_topology,
    parse_version,
)


class RunCommand(Protocol):
    """Runs a short external command. Gives its standard output; raises CommandError when it fails, cannot be started
    (returncode 127) or takes longer than `timeout_s`."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str]) -> str: ...


COMMAND_TIMEOUT_S = 20.0
_LIVE_STATES = {"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING"}
_WAITING_STATES = {
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
}
_NO_SUCH_JOB = "Invalid job id"
"""Longest wait for one answer of Slurm. A controller that is away answers after 9 to 10 s (22.05, 24.11)."""


class Allocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Slurm job, seen from inside."""

    job_id: str
    nodes: tuple[str, ...]
    """All nodes of the job, also from inside one of its steps; those that Slurm says are down are left out."""
    cluster: str | None = None
    partition: str = ""
    version: tuple[int, int] | None = None
    """Such as (22, 5)."""
    ends_at: float | None = None
    """UNIX seconds; None: there is no limit, or it could not be read (then a warning says so)."""
    time_limit_s: float | None = None
    """None: unlimited or unknown."""
    grants: tuple[NodeGrant, ...] = ()
    """What the job holds on each node, in the order of `nodes`; a node that nothing is known of is not in it."""
    node_facts: tuple[NodeText, ...] = ()
    """`scontrol show node` of the nodes."""
    switches: dict[str, tuple[str, ...]] = {}
    """Node -> switches from the spine down; a node that is not in it is one hop from all others."""
    driver_node: str | None = None
    """The node of the job that this process runs on; None: none of them (salloc on a login node)."""
    submitted_at: float | None = None
    started_at: float | None = None
    """UNIX seconds; None: Slurm does not say. After a requeue both are of this turn."""
    num_restarts: int = 0
    """Times the job was requeued. It keeps its id then, and gets other nodes, cores and GPUs, and scratch that was cleaned."""
    no_kill: bool | None = None
    """Whether the job outlives a dead node (`--no-kill`); None: Slurm does not say."""
    warnings: tuple[str, ...] = ()


def controller_is_away(error: CommandError) -> bool:
    """Whether slurmctld, not the question, is the trouble (messages of 22.05 and 24.11; a time-out counts)."""
    return error.returncode is None or "Unable to contact slurm controller" in error.stderr


def reason_of(error: CommandError) -> str:
    """The line of a failed command that says why: its last error that is not the mere end of the step."""
    if error.returncode is None:
        return "timed out"
    lines = [line.strip() for line in (error.stderr or error.stdout).splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line and not line.endswith("Job step aborted")]
    return (telling or lines or [f"code {error.returncode}"])[-1]


def slurm_query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for squeue and scontrol: the user's format settings are dropped, times come as UNIX seconds."""
    env = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("SQUEUE_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_JSON", "SLURM_YAML"))
    }
    # squeue(1): SLURM_TIME_FORMAT takes strftime's formats; UNIX seconds have no time zone and no summer time.
    return env | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def read_allocation(
    environ: Mapping[str, str],
    run_command: RunCommand,
    *,
    hostname: str = "",
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> Allocation | None:
    """The allocation that `environ` names; None outside of a Slurm job.

    `hostname` is this computer's, to find the driver's own node where Slurm does not say. Raises AllocationError when
    the job that the environment names is over, or no list of nodes can be had.
    """
    job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if not job_id:
        return None
    warnings: list[str] = []
    env = slurm_query_environment(environ)

    away = False

    def ask(what: str, *argv: str) -> str:
        nonlocal away
        if away:
            return ""
        try:
            return run_command(argv, timeout_s=timeout_s, env=env)
        except CommandError as error:
            if controller_is_away(error):
                # Each further question would wait as long again.
                away = True
                warnings.append(
                    f"Slurm's controller does not answer ({reason_of(error)}): the environment's word counts, "
                    "and what it does not say is unknown"
                )
                return ""
            lines = (error.stderr or error.stdout).strip().splitlines()
            why = (
                lines[-1]
                if lines
                else "timed out"
                if error.returncode is None
                else f"code {error.returncode}"
            )
            warnings.append(f"{what} could not be read ({' '.join(argv)}: {why})")
            return ""

    version = parse_version(ask("the Slurm version", "srun", "--version"))
    told = ask("what the job holds", "scontrol", "-d", "show", "job", job_id)
    job = parse_show_job(told, expand_nodelist, job_id)
    state = job.fields.get("JobState", "")
    if state and state not in _LIVE_STATES:
        raise AllocationError(
            f"the environment names Slurm job {job_id}, but that job is {state}: leave this shell and start in a live allocation"
        )
    # Inside a step SLURM_JOB_NODELIST names the step's nodes only and SLURM_NODELIST the job's (24.11).
    nodes = (
        expand_nodelist(job.fields.get("NodeList", ""))
        or expand_nodelist(environ.get("SLURM_NODELIST", ""))
        or expand_nodelist(environ.get("SLURM_JOB_NODELIST", ""))
    )
    if not nodes:
        raise AllocationError(
            f"no list of nodes for Slurm job {job_id}: SLURM_JOB_NODELIST is not set and "
            f"`scontrol show job {job_id}` names none ({'; '.join(warnings) or 'no node yet'})"
        )
    grants = {grant.node: grant for grant in job.grants}
    if not any(grant.gpus is not None and grant.gpus.ids is not None for grant in job.grants):
        grants |= _json_grants(
            ask("the job's GPUs by node", "squeue", "-h", "-j", job_id, "--json") if not job.grants else "",
            job_id,
        )
    node_text = ask("the nodes", "scontrol", "show", "node", job.fields.get("NodeList") or ",".join(nodes))
    facts = {fact.name: fact for fact in parse_show_node(node_text)}
    down = tuple(name for name in nodes if name in facts and _is_down(facts[name].state))
    if down:
        warnings.append(
            f"Slurm says that {', '.join(down)} {'is' if len(down) == 1 else 'are'} down: left out"
        )
        nodes = tuple(name for name in nodes if name not in down)
    topology = ask("the switches", "scontrol", "show", "topology")
    limit = parse_time_limit(job.fields.get("TimeLimit", ""))
    ends_at, ends_known = (None, False) if away else _ends_at(job_id, run_command, env, timeout_s)
    if not ends_known:
        ends_at = parse_slurm_time(job.fields.get("EndTime", ""))
        if ends_at is None:
            warnings.append(f"the end of job {job_id} could not be read: only the file's deadline counts")
    if environ.get("SLURM_HET_SIZE", "1") != "1":
        warnings.append("this is a heterogeneous job: only its first component is used")
    restarts = environ.get("SLURM_RESTART_COUNT") or job.fields.get("Restarts", "0")
    return Allocation(
        job_id=job_id,
        nodes=nodes,
        cluster=environ.get("SLURM_CLUSTER_NAME") or None,
        partition=environ.get("SLURM_JOB_PARTITION") or job.fields.get("Partition", ""),
        version=version,
        ends_at=ends_at,
        time_limit_s=None if limit is None or math.isinf(limit) else limit,
        grants=tuple(grants[name] for name in nodes if name in grants),
        node_facts=tuple(facts[name] for name in nodes if name in facts),
        switches={
            node: path
            for node, path in parse_topology(topology, expand_nodelist).items()
            if node in set(nodes)
        },
        driver_node=_driver_node(environ, nodes, hostname),
        submitted_at=parse_slurm_time(job.fields.get("SubmitTime", "")),
        started_at=parse_slurm_time(job.fields.get("StartTime", "")),
        num_restarts=int(restarts) if re.fullmatch(r"\d{1,9}", restarts) else 0,
        no_kill=None if away else _no_kill(job_id, job.fields, environ, run_command, env, timeout_s),
        warnings=tuple(warnings),
    )


def read_ends_at(
    job_id: str,
    environ: Mapping[str, str],
    run_command: RunCommand,
    *,
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> tuple[float | None, bool]:
    """(end, known) of a job, live: `scontrol update TimeLimit` moves it, and SLURM_JOB_END_TIME goes stale.

    End is in UNIX seconds, None when there is no limit. `known` is False when Slurm gave no answer: keep the last one.
    """
    return _ends_at(job_id, run_command, slurm_query_environment(environ), timeout_s)


def why_over(
    job_id: str, environ: Mapping[str, str], run_command: RunCommand, *, timeout_s: float = COMMAND_TIMEOUT_S
) -> str | None:
    """Why this job is known to be over ("it is CANCELLED"); None: it lives, it waits, or Slurm gave no answer.

    To be asked when its end is no longer told: a driver that runs outside of the job (on a login node, started by salloc) gets no signal
    when somebody cancels it.
    """
    argv = ("scontrol", "show", "job", job_id)
    try:
        text = run_command(argv, timeout_s=timeout_s, env=slurm_query_environment(environ))
    except CommandError as error:
        return "Slurm does not know it any more" if _NO_SUCH_JOB in error.stderr + error.stdout else None
    state = parse_show_job(text, expand_nodelist, job_id).fields.get("JobState", "")
    return f"it is {state}" if state and state not in _LIVE_STATES | _WAITING_STATES else None


def _ends_at(
    job_id: str, run_command: RunCommand, env: Mapping[str, str], timeout_s: float
) -> tuple[float | None, bool]:
    argv = ("squeue", "-h", "-j", job_id, "-o")
    try:
        text = run_command((*argv, "%e"), timeout_s=timeout_s, env=env).strip()
        if "\n" in text:  # all tasks of an array, for whose id was asked: the last one has it for its own
            told = run_command((*argv, "%A %e"), timeout_s=timeout_s, env=env)
            text = "".join(line.split()[1] for line in told.splitlines() if line.split()[:1] == [job_id])
    except CommandError:
        return None, False
    if text.upper() in {"NONE", "UNLIMITED"}:
        return None, True
    end = parse_slurm_time(text)
    return end, end is not None


def parse_slurm_time(text: str) -> float | None:
    """UNIX seconds of "1796019681" or of "2026-11-30T06:21:21" in this process's time zone; None for anything else
    (N/A, INVALID, Unknown, NONE)."""
    text = text.strip()
    if re.fullmatch(r"\d{9,11}", text, re.ASCII):
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _json_grants(text: str, job_id: str) -> dict[str, NodeGrant]:
    job = parse_job_json(text, job_id) if text else None
    if job is None:
        return {}
    nodes = expand_nodelist(job.nodelist)
    if len(nodes) != len(job.gres_detail):
        return {}
    return {
        node: NodeGrant(node, parse_gres(detail)) for node, detail in zip(nodes, job.gres_detail, strict=True)
    }


def _is_down(state: str) -> bool:
    """DOWN, or not responding ("IDLE*", "ALLOCATED*": the asterisk)."""
    return "DOWN" in state or "NOT_RESPONDING" in state or state.split("+")[0].endswith("*")


def _driver_node(environ: Mapping[str, str], nodes: tuple[str, ...], hostname: str) -> str | None:
    here = environ.get("SLURMD_NODENAME")
    if here in nodes:
        return here
    if here is None and hostname:
        short = hostname.split(".")[0]
        return next((name for name in nodes if name == hostname or name.split(".")[0] == short), None)
    return None


def _no_kill(
    job_id: str,
    fields: Mapping[str, str],
    environ: Mapping[str, str],
    run_command: RunCommand,
    env: Mapping[str, str],
    timeout_s: float,
) -> bool | None:
    """Slurm does not print it: look where it was said. `SLURM_NO_KILL`, `SBATCH_NO_KILL` and `SALLOC_NO_KILL` are
    input variables that survive into the job; else the command line (newer Slurm) or the batch script."""
    for name in ("SBATCH_NO_KILL", "SALLOC_NO_KILL", "SLURM_NO_KILL"):
        if name in environ:
            return environ[name].lower() not in {"off", "no"}
    said = fields.get("SubmitLine", "")
    if fields.get("BatchFlag") == "1":
        try:
            script = run_command(
                ("scontrol", "write", "batch_script", job_id, "-"), timeout_s=timeout_s, env=env
            )
        except CommandError:
            script = ""
        said = "\n".join([said, *re.findall(r"(?m)^#SBATCH\s+(.*?)\s*(?:#.*)?$", script)])
    match = re.search(r"(?<!\S)(?:-k|--no-kill)(?:=(\w+))?(?!\S)", said)
    return None if match is None else match[1] not in {"off", "no"}
