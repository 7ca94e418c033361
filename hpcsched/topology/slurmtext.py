"""What Slurm's commands print, read into values. Text in, values out; nothing here runs a command.

Forms follow the manual pages `scontrol(1)`, `squeue(1)`, `topology.conf(5)` and what Slurm 22.05.8 was seen to print.
A parser never raises on text that it does not understand: it returns what it understood, and None or nothing for
the rest, because a site's Slurm may print more, less, or something else. Node lists stay as Slurm writes them
("n[1-4]"); the caller brings the function that expands them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

Expand: TypeAlias = Callable[[str], tuple[str, ...]]
"""Node list as Slurm writes it -> names."""

_TIME_LIMIT = re.compile(
    r"(?:(?P<days>\d{1,9})-(?P<dh>\d{1,9})(?::(?P<dm>\d{1,9})(?::(?P<ds>\d{1,9}))?)?"
    r"|(?:(?P<h>\d{1,9}):)?(?P<m>\d{1,9}):(?P<s>\d{1,9})|(?P<minutes>\d{1,9}))",
    re.ASCII,
)


def parse_time_limit(text: str) -> float | None:
    """Seconds of a limit as `squeue -o %l` prints it or `--time` takes it; `math.inf` for UNLIMITED; None when
    there is no saying (INVALID, NONE, NOT_SET, Partition_Limit, anything else).

    Forms: mm, mm:ss, hh:mm:ss, d-hh, d-hh:mm, d-hh:mm:ss (`sbatch(1)`, --time).
    """
    text = text.strip()
    if text.upper() in {"UNLIMITED", "INFINITE"}:
        return math.inf
    match = _TIME_LIMIT.fullmatch(text)
    if match is None:
        return None
    part = {name: int(value) for name, value in match.groupdict().items() if value is not None}
    if "minutes" in part:
        return 60.0 * part["minutes"]
    if "days" in part:
        return (
            86400.0 * part["days"] + 3600.0 * part["dh"] + 60.0 * part.get("dm", 0) + float(part.get("ds", 0))
        )
    return 3600.0 * part.get("h", 0) + 60.0 * part["m"] + float(part["s"])


def parse_version(text: str) -> tuple[int, int] | None:
    """(22, 5) of "slurm 22.05.8" or "slurm-wlm 24.11.5"; None when there is none."""
    match = re.search(r"\b(\d{2})\.(\d{2})\b", text, re.ASCII)
    return None if match is None else (int(match[1]), int(match[2]))


def parse_memory_mb(text: str) -> int | None:
    """Mebibytes of "16000", "16000M", "62.50G", "1T"; Slurm's bare numbers are mebibytes. None for anything else."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KMGTP]?)(?:i?B)?", text.strip(), re.ASCII)
    if match is None:
        return None
    factor = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}[match[2]]
    return int(float(match[1]) * factor)


def parse_id_list(text: str) -> tuple[int, ...] | None:
    """(0, 1, 2, 5) of "0-2,5" (CPU_IDs, IDX, CPU affinity, the kernel's cpulist). None for anything else.

    Nobody has more than 65,536 of what is counted here; a wider range is taken for nonsense.
    """
    ids: list[int] = []
    if text.strip() in {"", "N/A", "(null)"}:
        return () if not text.strip() else None
    for piece in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", piece.strip(), re.ASCII)
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2]) if match[2] is not None else first
        if last < first or last - first > 65536:
            return None
        ids += range(first, last + 1)
    return tuple(dict.fromkeys(ids))


class GpuGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs in one GRES string. `ids` are Slurm's device indices on the node; None where only a count is printed."""

    num: int
    ids: tuple[int, ...] | None = None
    types: tuple[str, ...] = ()


_GRES = re.compile(
    r"(?:gres[:/])?(?P<name>\w+)(?::(?P<type>[^:,(=]+))??(?:[:=](?P<num>\d{1,7}))?"
    r"(?:\((?P<what>IDX|CNT|S)[:](?P<ids>[^)]*)\))?",
    re.ASCII,
)


def parse_gres(text: str) -> GpuGrant:
    """GPUs of a GRES string: "gpu:2(IDX:0-1)", "gpu:a100:4(IDX:0-3)", "gpu:v100:1(IDX:0),gpu:p100:1(IDX:2)",
    "gpu:4", "gpu:a100:8(S:0-1)", "gpu". Other resources (shard, mps, nic) do not count. Types are kept in order.
    """
    num = 0
    ids: list[int] = []
    ids_known = True
    types: list[str] = []
    for piece in _split_outside_parentheses(text):
        match = _GRES.fullmatch(piece.strip())
        if match is None or match["name"] != "gpu":
            continue
        here = parse_id_list(match["ids"]) if match["what"] == "IDX" else None
        count = int(match["num"]) if match["num"] is not None else (len(here) if here else 1)
        num += count
        if here is not None and len(here) == count:
            ids += here
        elif count:
            ids_known = False
        if match["type"] and match["type"] not in types:
            types.append(match["type"])
    return GpuGrant(num, tuple(sorted(ids)) if ids_known else None, tuple(types))


def _split_outside_parentheses(text: str) -> list[str]:
    return re.split(r",(?![^(]*\))", text)


class NodeGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the job holds on one node, as Slurm says."""

    node: str
    gpus: GpuGrant | None = None
    """None: not said (a job that asked for no GPU by name)."""
    num_cpus: int | None = None
    """Slurm's CPUs; its CPU_IDs are its own abstract numbers, not the kernel's."""
    memory_mb: int | None = None
    """None: not said, or memory is not counted here (Mem=0)."""


class JobText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `scontrol -d show job ID` says of one job."""

    fields: dict[str, str]
    """Of the keys in `JOB_FIELDS`, those that are there."""
    grants: tuple[NodeGrant, ...]


JOB_FIELDS = (
    "JobState", "TimeLimit", "EndTime", "StartTime", "SubmitTime", "Restarts", "Partition", "NodeList", "NumNodes", "OverSubscribe",
    "TRES", "ReqTRES", "AllocTRES", "TresPerNode", "TresPerJob", "BatchFlag", "BatchHost", "Requeue", "SubmitLine",
)  # fmt: skip


def parse_show_job(text: str, expand: Expand, job_id: str = "") -> JobText:
    """Reads the job of this id in the output of `scontrol -d show job ID`, else the first.

    The last task of a job array has the array's id for its own, for which Slurm shows all its tasks.

    The lines with the grants look like ``     Nodes=n[1-2] CPU_IDs=0-3 Mem=16000 GRES=gpu:2(IDX:0-1)``; nodes with
    equal grants share a line.
    """
    jobs = re.split(r"(?m)^JobId=", text)[1:]
    body = next((job for job in jobs if job.split(maxsplit=1)[:1] == [job_id]), jobs[0] if jobs else "")
    # The first line holds the job's name, which is the user's free text: nothing is read from it.
    lines = body.split("\n")[1:]
    fields: dict[str, str] = {}
    grants: list[NodeGrant] = []
    for line in lines:
        grant = re.match(r"\s+Nodes=(\S+)(?:\s+CPU_IDs=(\S*))?(?:\s+Mem=(\S*))?(?:\s+GRES=(\S*))?", line)
        if grant is not None:
            cpus = parse_id_list(grant[2]) if grant[2] else None
            memory = parse_memory_mb(grant[3]) if grant[3] else None
            gpus = parse_gres(grant[4]) if grant[4] is not None else None
            grants += [
                NodeGrant(node, gpus, len(cpus) if cpus else None, memory or None)
                for node in expand(grant[1])
            ]
            continue
        if line.lstrip().startswith(("Command=", "WorkDir=", "Comment=", "SubmitLine=")):
            key, _, value = line.strip().partition("=")
            if key in JOB_FIELDS:
                fields.setdefault(key, value)
            continue  # free text to the end of the line
        for key, value in re.findall(r"(?:(?<=\s)|^)([A-Za-z]\w*)=(\S*)", line):
            if key in JOB_FIELDS:
                fields.setdefault(key, value)
    return JobText(fields, tuple(grants))


def json_number(value: object) -> float | None:
    """A number of Slurm's JSON: plain (22.05), or {"set", "infinite", "number"} (23.02 and later).

    `math.inf` when infinite, None when not set or no number.
    """
    if isinstance(value, dict):
        if value.get("infinite") is True:
            return math.inf
        return None if value.get("set") is False else json_number(value.get("number"))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


class JobJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `squeue --json` or `scontrol show job --json` says of one job, whatever the version of its shapes."""

    states: tuple[str, ...]
    ends_at: float | None
    """UNIX seconds; None: no end is known; `math.inf`: none is set."""
    time_limit_s: float | None
    num_restarts: int | None
    nodelist: str
    partition: str
    gres_detail: tuple[str, ...]
    """One GRES string a node, in node order."""
    version: tuple[int, int] | None


def parse_job_json(text: str, job_id: str) -> JobJson | None:
    """The job `job_id` in Slurm's JSON; None when it is not there or this is no such JSON."""
    try:
        top: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    jobs = top.get("jobs") if isinstance(top, dict) else None
    if not isinstance(jobs, list):
        return None
    for job in jobs:
        if isinstance(job, dict) and str(job.get("job_id")) == job_id:
            break
    else:
        return None
    states = job.get("job_state", ())
    states = (states,) if isinstance(states, str) else states
    limit = json_number(job.get("time_limit"))
    restarts = json_number(job.get("restart_cnt"))
    detail = job.get("gres_detail", ())
    return JobJson(
        states=tuple(str(state) for state in states) if isinstance(states, list | tuple) else (),
        ends_at=json_number(job.get("end_time")) or None,  # 0: not known yet
        time_limit_s=None if limit is None else 60.0 * limit,
        num_restarts=None if restarts is None or math.isinf(restarts) else int(restarts),
        nodelist=str(job.get("nodes") or ""),
        partition=str(job.get("partition") or ""),
        gres_detail=tuple(str(gres) for gres in detail) if isinstance(detail, list | tuple) else (),
        version=_json_version(top),
    )


def _json_version(top: dict[str, Any]) -> tuple[int, int] | None:
    meta = top.get("meta")
    if not isinstance(meta, dict):
        return None
    slurm = meta.get(
        "slurm", meta.get("Slurm")
    )  # 24.11: "slurm", version parts as strings; 22.05: "Slurm", numbers
    version = slurm.get("version") if isinstance(slurm, dict) else None
    if not isinstance(version, dict):
        return None
    try:
        return int(version["major"]), int(version["minor"])
    except (KeyError, TypeError, ValueError):
        return None


def parse_topology(text: str, expand: Expand) -> dict[str, tuple[str, ...]]:
    """Node -> its switches from the top down to the leaf, of `scontrol show topology`.

    Tree plugin: ``SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]`` and, above it, ``... Switches=leaf[1-2]``.
    Block plugin: ``BlockName=b1 BlockIndex=0 Nodes=n[1-4] BlockSize=4`` and ``AggregatedBlock=b[1-2] ... BlockSize=8``: a
    block counts as a leaf, an aggregate as the switch above it. Where there is no topology: an empty dict.
    A node under several leaves (a multi-rooted tree) counts under the first.
    """
    leaves: dict[str, tuple[str, ...]] = {}
    parents: dict[str, str] = {}
    aggregates: list[tuple[int, str, frozenset[str]]] = []
    for line in text.splitlines():
        field = dict(re.findall(r"(?:(?<=\s)|^)(\w+)=(\S*)", line))
        if "SwitchName" in field:
            name = field["SwitchName"]
            if field.get("Switches"):
                for child in expand(field["Switches"]):
                    if child != name:
                        parents.setdefault(child, name)
            elif field.get("Nodes"):
                leaves.setdefault(name, expand(field["Nodes"]))
        elif "BlockName" in field and field.get("Nodes"):
            leaves.setdefault(field["BlockName"], expand(field["Nodes"]))
        elif "AggregatedBlock" in field and field.get("Nodes"):
            members = frozenset(expand(field["Nodes"]))
            aggregates.append((len(members), field["AggregatedBlock"], members))
    switches: dict[str, tuple[str, ...]] = {}
    for leaf, nodes in leaves.items():
        path = [leaf]
        while path[0] in parents and parents[path[0]] not in path:
            path.insert(0, parents[path[0]])
        for size, name, members in sorted(aggregates, key=lambda item: item[0]):
            if size > len(nodes) and members.issuperset(nodes):
                path.insert(0, name)
        for node in nodes:
            switches.setdefault(node, tuple(path))
    return switches


def parse_topology_address(address: str, pattern: str) -> tuple[str, ...]:
    """("spine", "leaf1") of SLURM_TOPOLOGY_ADDR "spine.leaf1.n1" with _PATTERN "switch.switch.node".

    Empty where the pattern names no switch ("node"), or the two do not fit. A node's name may hold dots.
    """
    kinds = pattern.split(".")
    if kinds[-1] != "node" or len(kinds) < 2:
        return ()
    parts = address.split(".", len(kinds) - 1)
    if len(parts) != len(kinds) or not all(parts):
        return ()
    return tuple(parts[:-1])


class NodeText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `scontrol show node` says of one node."""

    name: str
    address: str | None
    state: str
    gpus: GpuGrant
    num_cpus: int | None
    num_sockets: int | None
    memory_mb: int | None


def parse_show_node(text: str) -> tuple[NodeText, ...]:
    """The nodes in the output of `scontrol show node`."""
    nodes: list[NodeText] = []
    for block in re.split(r"(?m)^NodeName=", text)[1:]:
        name = re.match(r"\S+", block)
        if name is None:
            continue
        field: dict[str, str] = {}
        for key, value in re.findall(r"(?:(?<=\s)|^)([A-Za-z]\w*)=(\S*)", block):
            field.setdefault(key, value)
        nodes.append(
            NodeText(
                name=name[0],
                address=field.get("NodeAddr") or None,
                state=field.get("State", ""),
                gpus=parse_gres(field.get("Gres", "")),
                num_cpus=_count(field.get("CPUEfctv") or field.get("CPUTot")),
                num_sockets=_count(field.get("Sockets")),
                memory_mb=parse_memory_mb(field.get("RealMemory", "")),
            )
        )
    return tuple(nodes)


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text, re.ASCII) else None
