"""Looks at Slurm: what is there outside of a job, and what a job's steps can do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hpcsched.doctor.finding import Finding, fail, ok, skip, warn
from hpcsched.doctor.on_node import NodeSays
from hpcsched.doctor.peers import WHAT, Peers, finding_of
from hpcsched.driver.addresses import addresses_towards
from hpcsched.errors import CommandError, HpcschedError
from hpcsched.launch.allocation import Allocation, RunCommand, reason_of, slurm_query_environment
from hpcsched.launch.connect_back import listening
from hpcsched.launch.environment import srun_environment
from hpcsched.launch.gpurequest import gpu_requests
from hpcsched.launch.probe import job_gpus_of
from hpcsched.launch.steps import helper_step
from hpcsched.launch.versions import abilities_of
from hpcsched.topology.assemble import too_few_cores
from hpcsched.topology.slurmtext import parse_version

STEP_S = 120.0
SLOW_STEP_S = 5.0
SLOW_NODE_IMPORT_S = 5.0
MOST_SKEW_S = 2.0
GROUP_PORT = 29871


def look_at_commands(environ: Mapping[str, str], run_command: RunCommand) -> Iterator[Finding]:
    """Outside of a job: is there a Slurm, and which."""
    try:
        text = run_command(("srun", "--version"), timeout_s=20.0, env=slurm_query_environment(environ))
    except CommandError as error:
        if error.returncode == 127:
            yield skip("Slurm", "no srun on PATH", "without Slurm, `hpcsched run` uses this machine")
        else:
            yield warn(
                "Slurm",
                f"srun is here but not set up: {reason_of(error)}",
                "export SLURM_CONF=..., or nothing where there is no cluster",
            )
        return
    version = parse_version(text)
    able = abilities_of(version)
    words = text.strip()
    if able.overlap:
        quirks = "steps may overlap" + ("; the job may have its own step manager" if able.stepmgr else "")
        yield ok("Slurm", f"{words}: {quirks}")
    elif able.exact:
        yield warn("Slurm", f"{words}: --overlap does not share GPUs", 'use [launcher] binding = "slurm"')
    else:
        yield fail("Slurm", f"{words} is older than 20.11", "hpcsched needs steps that can be exact")
    began = time.monotonic()
    try:
        nodes = run_command(
            ("sinfo", "--noheader", "--format=%D %T"), timeout_s=30.0, env=slurm_query_environment(environ)
        )
        yield ok(
            "controller",
            f"answers in {time.monotonic() - began:.2f} s; nodes: {', '.join(nodes.split(chr(10))).strip(', ')}",
        )
    except CommandError as error:
        yield fail("controller", reason_of(error), "slurmctld is away or this host may not ask it")


def look_at_job(allocation: Allocation, now_unix_s: float) -> Iterator[Finding]:
    nodes = f"{len(allocation.nodes)} node(s), {allocation.nodes[0]} first"
    yield ok("job", f"{allocation.job_id}: {nodes}")
    for warning in allocation.warnings:
        yield warn("job", warning, "what could not be read is left out of account")
    if allocation.ends_at is not None:
        left = allocation.ends_at - now_unix_s
        yield ok("time", f"{left / 60:.0f} min left in this job")
    if allocation.no_kill is False and len(allocation.nodes) > 1:
        yield warn("--no-kill", "not given: one dead node ends the whole job", "salloc/sbatch --no-kill")
    if not any(num for num in job_gpus_of(allocation).values()):
        yield warn(
            "GPUs of the job",
            "none, as far as Slurm says",
            "ask for them: --gpus-per-node=N, also with --exclusive",
        )


def look_at_steps(
    allocation: Allocation,
    folder: Path,
    environ: Mapping[str, str],
    run_command: RunCommand,
    *,
    srun_args: Sequence[str] = (),
    python: str = sys.executable,
) -> Iterator[Finding]:
    """Inside a job. `folder`: where runs would lie; every node must see it."""
    env = srun_environment(environ) | {"SLURM_JOB_ID": allocation.job_id}
    first = allocation.nodes[0]
    began = time.monotonic()
    try:
        run_command(
            helper_step(first, ("true",), name="hpcsched-doctor", srun_args=srun_args).argv,
            timeout_s=STEP_S,
            env=env,
        )
    except CommandError as error:
        yield fail(
            "step creation",
            reason_of(error),
            f"srun --overlap -N1 -n1 --gres=none -w {first} true must work in this shell",
        )
        return
    took = time.monotonic() - began
    if took > SLOW_STEP_S:
        yield warn("step creation", f"{took:.1f} s", "every cold start costs this; leave [launcher] warm on")
    else:
        yield ok("step creation", f"{took:.2f} s")
    yield from _overlap(allocation, env, run_command, srun_args)
    yield from _nodes(allocation, folder, env, run_command, srun_args, python)
    yield _peers(allocation, env, run_command, srun_args, python)
    yield from _groups(allocation, env, run_command, srun_args, python)


def _peers(
    allocation: Allocation,
    env: Mapping[str, str],
    run_command: RunCommand,
    srun_args: Sequence[str],
    python: str,
) -> Finding:
    """Of the first node, in a step that is shown all its GPUs, as those of a trial are."""
    first = allocation.nodes[0]
    num = job_gpus_of(allocation).get(first) or 0
    if num < 2:
        return skip(
            WHAT,
            f"the job holds {num} GPU{'s' * (num != 1)} on {first}",
            "look in a job with two or more a node",
        )
    command = (python, "-P", "-m", "hpcsched.doctor.peers")
    try:
        text = run_command(
            _argv([first], _gpu_option(allocation, [first]), srun_args, command), timeout_s=300.0, env=env
        )
        return finding_of(msgspec.json.decode(text, type=Peers))
    except CommandError as error:
        if "No module named 'torch'" in error.stderr:
            return skip(WHAT, "torch is not installed", "pip install 'hpcsched[train]'")
        why = reason_of(error)
    except msgspec.DecodeError as error:
        why = str(error)
    return warn(
        WHAT,
        f"could not be looked at on {first}: {why}",
        "python -m hpcsched.doctor.peers in a step shows all",
    )


def _argv(
    nodes: Sequence[str], gpus: str | None, srun_args: Sequence[str], command: Sequence[str], tasks: int = 1
) -> tuple[str, ...]:
    num = str(len(nodes))
    return (
        "srun", "--overlap", "-N", num, "-n", str(len(nodes) * tasks), f"--ntasks-per-node={tasks}", "-w", ",".join(nodes),
        gpus or "--gres=none", "--cpu-bind=none", "--mpi=none", "--wait=0", "--kill-on-bad-exit=1", "--export=ALL", "--input=none",
        "--job-name=hpcsched-doctor", *srun_args, *command,
    )  # fmt: skip


def _gpu_option(allocation: Allocation, nodes: Sequence[str]) -> str | None:
    held = {node: num or 0 for node, num in job_gpus_of(allocation).items()}
    if not any(held[node] for node in nodes):
        return None
    requests = gpu_requests(list(nodes), held)
    return (
        requests[0].option if len(requests) == 1 else f"--gres=gpu:{min(held[node] for node in nodes) or 1}"
    )


def _overlap(
    allocation: Allocation, env: Mapping[str, str], run_command: RunCommand, srun_args: Sequence[str]
) -> Iterator[Finding]:
    """Two steps that both want all GPUs of the first node, at once."""
    node = allocation.nodes[0]
    gpus = _gpu_option(allocation, [node])
    with subprocess.Popen(
        _argv([node], gpus, srun_args, ("sh", "-c", "echo up; exec sleep 60")), env=dict(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as holder:  # fmt: skip
        try:
            assert holder.stdout is not None, "a pipe was asked for"
            if holder.stdout.readline().strip() != "up":
                yield fail(
                    "overlap",
                    f"a step with {gpus or 'no GPUs'} did not start on {node}",
                    f"try it: srun --overlap -N1 -n1 {gpus or ''} true",
                )
                return
            began = time.monotonic()
            run_command(_argv([node], gpus, srun_args, ("true",)), timeout_s=30.0, env=env)
            yield ok(
                "overlap",
                f"a second step with {gpus or 'no GPUs'} started beside the first, {time.monotonic() - began:.2f} s",
            )
        except CommandError as error:
            yield fail(
                "overlap",
                f"a second step had to wait: {reason_of(error)}",
                'use [launcher] binding = "slurm"',
            )
        finally:
            holder.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                holder.wait(20.0)
            holder.kill()


def _nodes(
    allocation: Allocation,
    folder: Path,
    env: Mapping[str, str],
    run_command: RunCommand,
    srun_args: Sequence[str],
    python: str,
) -> Iterator[Finding]:
    named = {fact.name: fact.address for fact in allocation.node_facts}
    addresses = addresses_towards([named.get(node) or node for node in allocation.nodes])
    base = folder.absolute()
    while not base.is_dir():
        base = base.parent
    marker = base / f".hpcsched-doctor-{os.getpid()}"
    try:
        marker.write_text("seen?")
    except OSError as error:
        yield fail("run folder", f"{base}: {error.strerror}", "give a writable folder by --run-dir")
        return
    says: dict[str, NodeSays] = {}
    trouble = ""
    try:
        with listening() as port:
            command = (python, "-P", "-m", "hpcsched.doctor.on_node", str(marker), str(port), *addresses)
            before = time.time()
            try:
                text = run_command(
                    _argv(allocation.nodes, _gpu_option(allocation, allocation.nodes), srun_args, command),
                    timeout_s=STEP_S,
                    env=env,
                )
            except CommandError as error:
                text, trouble = error.stdout, reason_of(error)
            after = time.time()
    finally:
        marker.unlink(missing_ok=True)
    for line in text.splitlines():
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            answer = msgspec.json.decode(line, type=NodeSays)
            says[answer.node] = answer
    silent = [node for node in allocation.nodes if node not in says]
    if silent:
        yield fail(
            "nodes",
            f"no answer from {', '.join(silent[:8])}{': ' + trouble if trouble else ''}",
            f"srun --overlap -w {silent[0]} -N1 -n1 {python} -c 'import hpcsched' must work",
        )
    if not says:
        return
    answers = list(says.values())
    yield from _of_each(
        "run folder on nodes",
        answers,
        lambda one: one.sees_folder,
        f"{base} is seen",
        f"{base} is not seen",
        "use a shared file system for the run folder (--run-dir)",
    )
    if any(num for num in job_gpus_of(allocation).values()):
        yield from _of_each(
            "GPU visibility",
            answers,
            lambda one: bool(one.gpus),
            f"steps are shown {answers[0].gpus}",
            "a step is shown no GPU",
            "name the GPUs in the job's request (--gpus-per-node), also with --exclusive",
        )
        yield look_at_cores(answers, job_gpus_of(allocation))
    skews = {one.node: max(0.0, before - one.unix_s, one.unix_s - after) for one in answers}
    worst = max(skews, key=lambda node: skews[node])
    if skews[worst] > MOST_SKEW_S:
        yield warn(
            "clocks",
            f"{worst} is {skews[worst]:.1f} s off",
            "only what people read is wrong; ask for NTP on the nodes",
        )
    else:
        yield ok("clocks", f"within {max(after - before, 0.0):.1f} s, the time that asking took")
    slowest = max(answers, key=lambda one: one.import_s)
    if slowest.import_s > SLOW_NODE_IMPORT_S:
        yield warn(
            "start of Python on nodes",
            f"{slowest.import_s:.1f} s on {slowest.node}",
            'put the environment on a local disk ([setup] per_node = "tar -x ...")',
        )
    else:
        yield ok("start of Python on nodes", f"at most {slowest.import_s:.2f} s, hpcsched imported")
    deaf = [one for one in answers if one.reached is None]
    if not deaf:
        yield ok("connect back", f"nodes reach this host at {answers[0].reached}")
    elif allocation.driver_node is None:
        yield warn(
            "connect back",
            f"{deaf[0].node} does not reach this host: {deaf[0].why_not}",
            'nothing to do: with [driver] where = "auto" the driver moves to the first node',
        )
    else:
        yield fail(
            "connect back",
            f"{deaf[0].node} does not reach this node: {deaf[0].why_not}",
            "a firewall between compute nodes: no job over several nodes can work; ask your administrators",
        )


def look_at_cores(answers: Sequence[NodeSays], held: Mapping[str, int | None]) -> Finding:
    """`held`: GPUs of the job on each node."""
    what = "cores for GPUs"
    num_gpus = {one.node: held.get(one.node) or 0 for one in answers}
    short = [one for one in answers if one.num_cores < num_gpus[one.node]]
    if short:
        said, _, cure = too_few_cores(short[0].num_cores, num_gpus[short[0].node]).partition(": ")
        return warn(what, f"on {', '.join(one.node for one in short[:8])} {said}", cure)
    least = min((one.num_cores // num_gpus[one.node] for one in answers if num_gpus[one.node]), default=0)
    return ok(what, f"at least {least} a GPU")


def _of_each(
    what: str, answers: Sequence[NodeSays], holds: object, good: str, bad: str, cure: str
) -> Iterator[Finding]:
    assert callable(holds), "a test of one answer"
    wrong = [one.node for one in answers if not holds(one)]
    if wrong:
        yield fail(what, f"{bad} on {', '.join(wrong[:8])}", cure)
    else:
        yield ok(what, f"{good} on {'all ' if len(answers) > 1 else ''}{len(answers)} node(s)")


def _groups(
    allocation: Allocation,
    env: Mapping[str, str],
    run_command: RunCommand,
    srun_args: Sequence[str],
    python: str,
) -> Iterator[Finding]:
    first = allocation.nodes[0]
    kinds: list[tuple[str, tuple[str, ...], int]] = [("group of 2 ranks on one node", (first,), 2)]
    if len(allocation.nodes) > 1:
        kinds.append((f"group between {len(allocation.nodes)} nodes", allocation.nodes, 1))
    else:
        yield skip("group between nodes", "this job has one node", "run doctor in a job of two nodes")
    named = {fact.name: fact.address for fact in allocation.node_facts}
    for number, (what, nodes, tasks) in enumerate(kinds):
        meet = {
            "MASTER_ADDR": named.get(first) or first,
            "MASTER_PORT": str(GROUP_PORT + number),
            "OMP_NUM_THREADS": "1",
        }
        command = (python, "-P", "-m", "hpcsched.doctor.allreduce")
        try:
            text = run_command(
                _argv(nodes, _gpu_option(allocation, nodes), srun_args, command, tasks),
                timeout_s=300.0,
                env={**env, **meet},
            )
            yield ok(what, text.strip().splitlines()[-1] if text.strip() else "formed")
        except CommandError as error:
            if "No module named 'torch'" in error.stderr:
                yield skip(what, "torch is not installed", "pip install 'hpcsched[train]'")
            else:
                yield fail(
                    what,
                    reason_of(error),
                    "name the right network in [launcher] interface, or NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME; NCCL_DEBUG=INFO says more",
                )


def allocation_or_finding(read: object) -> tuple[Allocation | None, Finding | None]:
    """What `read()` gives, or a finding about why it could not."""
    assert callable(read), "reads the allocation"
    try:
        found = read()
    except HpcschedError as error:
        return None, fail("job", str(error), "start inside salloc or sbatch, or unset SLURM_JOB_ID")
    assert found is None or isinstance(found, Allocation), "what read_allocation gives"
    return found, None
