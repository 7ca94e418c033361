#!/usr/bin/env python3
"""Fake srun, scontrol, squeue and scancel: really start processes, and imitate how Slurm refuses, waits, hangs and ends.

Put `tests/fakes/bin` on PATH and name a folder in FAKE_SLURM. `behaviour.json` there says what to imitate; it is read again
whenever something is decided, so a test changes it while things run. Every call is recorded in `calls.jsonl` (argv,
environment). Live steps are files in `steps/`.

    {"version": "22.05.8", "job_id": "77", "nodes": {"n1": {"gpus": 4, "cpus": 16}, ...},
     "refuse": [{"stderr": "...", "code": 1, "times": 1, "calls": 1}],   srun fails so, before there is a step, once there are so
                                    many calls of srun
     "delay_s": 0,                  a step takes so long to start
     "hang": false,                 srun waits for ever and prints nothing
     "controller_away": false,      srun, scancel, scontrol and squeue fail after away_s; running steps go on
     "away_s": 0.3,
     "dead_nodes": [],              their tasks are gone; after node_fail_s the step ends with "Node failure"
     "node_fail_s": 1.0,
     "unkillable": false,           scancel and signals change nothing, the step stays
     "printed": "",                 the job's id as scontrol and squeue print it, such as "76_1", a task of an array
     "kill_wait_s": 1.0}            from SIGTERM to SIGKILL when a task failed

A step is three processes, as with the real thing: srun's main process, its second one, which ends the tasks when the main one is
killed, and the step daemon (on the nodes), which owns the tasks and ends whatever they forked. What the real thing prints and
returns was read off Slurm 22.05.8 and 24.11.5; the same launcher tests run against both.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

HOME = Path(os.environ.get("FAKE_SLURM", "/nonexistent"))
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.02


def behaviour() -> dict:
    defaults = {
        "version": "22.05.8", "job_id": "77", "nodes": {}, "refuse": [], "delay_s": 0.0, "hang": False, "controller_away": False,
        "away_s": 0.3, "dead_nodes": [], "node_fail_s": 1.0, "unkillable": False, "kill_wait_s": 1.0,
        "printed": "",
    }  # fmt: skip
    return defaults | json.loads((HOME / "behaviour.json").read_text())


@contextlib.contextmanager
def locked():
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def num_calls(tool: str) -> int:
    with locked():
        lines = (HOME / "calls.jsonl").read_text().splitlines()
    return sum(json.loads(line)["tool"] == tool for line in lines)


def record(tool: str, argv: list[str]) -> None:
    with locked(), (HOME / "calls.jsonl").open("a") as calls:
        calls.write(
            json.dumps({"tool": tool, "argv": argv, "env": dict(os.environ), "time": time.time()}) + "\n"
        )


def complain(text: str, code: int = 1) -> int:
    print(text, file=sys.stderr, flush=True)
    return code


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def version_of(told: dict) -> tuple[int, int]:
    year, month = told["version"].split(".")[:2]
    return int(year), int(month)


# ---- srun

WITH_VALUE = {
    "-N": "nodes", "-n": "ntasks", "-w": "nodelist", "-c": "cpus", "-m": "distribution", "-t": "time", "--gres": "gres", "--gpus": "gpus",
    "--mem": "mem", "--cpu-bind": "cpu_bind", "--mpi": "mpi", "--wait": "wait", "--kill-on-bad-exit": "kill", "--export": "export",
    "--ntasks-per-node": "per_node", "--job-name": "name", "--immediate": "immediate",
}  # fmt: skip
FLAGS = {"--overlap", "--exact", "--unbuffered", "--input=none"}


def parse(argv: list[str]) -> tuple[dict, list[str]] | str:
    """(options, command), or what srun says about a bad option."""
    options: dict = {"flags": set()}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in FLAGS:
            options["flags"].add(word)
        elif name in WITH_VALUE:
            options[WITH_VALUE[name]] = value if equals else rest.pop(0)
        else:
            return f"srun: unrecognized option '{word}'"
    return options, rest


def srun(argv: list[str]) -> int:
    told = behaviour()
    parsed = parse(argv)
    if isinstance(parsed, str):
        return complain(parsed + '\nTry "srun --help" for more information')
    options, command = parsed
    job_id = os.environ.get("SLURM_JOB_ID", told["job_id"])
    if told["controller_away"]:
        # TERM is ignored while srun tries.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(told["away_s"])
        return complain(
            f"srun: error: Unable to confirm allocation for job {job_id}: Unable to contact slurm controller (connect failure)\n"
            f"srun: Check SLURM_JOB_ID environment variable. Expired or invalid job {job_id}"
        )
    while (awaited := behaviour()["refuse"]) and num_calls("srun") < awaited[0].get("calls", 1):
        time.sleep(POLL_S)
    with locked():
        mine = behaviour()
        if mine["refuse"]:
            refusal = mine["refuse"][0]
            refusal["times"] = refusal.get("times", 1) - 1
            if refusal["times"] <= 0:
                mine["refuse"].pop(0)
            write(HOME / "behaviour.json", mine)
            return complain(refusal["stderr"], refusal.get("code", 1))
    while behaviour()["hang"]:
        time.sleep(POLL_S)
    time.sleep(told["delay_s"])
    nodes = options.get("nodelist", "").split(",")
    problem = check(options, nodes, told)
    if problem:
        return complain(problem)
    return run_step(options, nodes, command, job_id, told)


def check(options: dict, nodes: list[str], told: dict) -> str:
    """Why there will be no step; "" when there will."""
    inherited = [name for name in os.environ if name.startswith(("SLURM_GPUS", "SLURM_GRES", "SLURM_TRES"))]
    if inherited and options.get("gres") == "none":
        return "srun: error: Unable to create step for job: Invalid Trackable RESource (TRES) specification"
    if options.get("distribution") == "arbitrary" and "nodes" in options and version_of(told) >= (24, 11):
        return "srun: fatal: --nodes is incompatible with --distribution=arbitrary"
    if any(node not in told["nodes"] or node in told["dead_nodes"] for node in nodes):
        return "srun: error: Unable to create step for job: Requested node configuration is not available"
    if int(options.get("nodes", 1)) != len(nodes):
        return f"srun: error: Required nodelist includes more nodes than permitted by max-node count ({len(nodes)} > {options.get('nodes')})"
    per_task = int(options.get("cpus", 1))
    if any(per_task * int(options.get("per_node", 1)) > told["nodes"][node]["cpus"] for node in nodes):
        return "srun: error: Unable to create step for job: More processors requested than permitted"
    least = min(told["nodes"][node]["gpus"] for node in told["nodes"])
    if (num := gres_count(options.get("gres", ""))) is not None and num > least:
        return "srun: error: Unable to create step for job: Invalid generic resource (gres) specification"
    return ""


def gres_count(text: str) -> int | None:
    return None if text in ("", "none") else int(text.rpartition(":")[2])


def run_step(options: dict, nodes: list[str], command: list[str], job_id: str, told: dict) -> int:
    exclusive = "--overlap" not in options["flags"]
    said = False
    while (taken := create(options, nodes, job_id, exclusive)) is None:
        if not said and version_of(told) < (24, 11):
            complain("srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)")
            said = True
        time.sleep(POLL_S)
    step_id, gpus = taken
    read_end, write_end = os.pipe()
    daemon_pid = os.fork()
    if daemon_pid == 0:
        os.close(read_end)
        os.setsid()
        out = os.fdopen(write_end, "w")
        Daemon(step_id, nodes, gpus, options, command, out, told).run()
        os._exit(0)
    os.close(write_end)
    helper_read, helper_write = os.pipe()
    if os.fork() == 0:  # srun's second process
        os.close(helper_write)
        os.close(read_end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.read(helper_read, 1) == b"" and not behaviour()["controller_away"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon_pid, signal.SIGUSR1)
        os._exit(0)
    os.close(helper_read)

    def told_to_end(*_: object) -> None:
        if not behaviour()["controller_away"]:  # else the controller would have to pass it on
            complain("srun: forcing job termination")
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon_pid, signal.SIGUSR1)

    signal.signal(signal.SIGTERM, told_to_end)
    signal.signal(signal.SIGINT, told_to_end)
    code = 0
    with os.fdopen(read_end) as results:
        for line in results:
            kind, _, rest = line.rstrip("\n").partition(" ")
            if kind == "say":
                complain(rest)
            else:
                code = max(code, int(rest))
    with contextlib.suppress(ChildProcessError):
        os.waitpid(daemon_pid, 0)
    os.write(helper_write, b"x")
    return code


def create(
    options: dict, nodes: list[str], job_id: str, exclusive: bool
) -> tuple[str, dict[str, list[int]]] | None:
    """(step id, node -> GPUs); None while an exclusive step has to wait for GPUs."""
    told = behaviour()
    with locked():
        steps = [json.loads(file.read_text()) for file in (HOME / "steps").glob("*.json")]
        gpus: dict[str, list[int]] = {}
        for node in nodes:
            total = told["nodes"][node]["gpus"]
            num = gres_count(options.get("gres", "")) or (int(options["gpus"]) if "gpus" in options else 0)
            held = (
                {gpu for step in steps if step["exclusive"] for gpu in step["gpus"].get(node, [])}
                if exclusive
                else set()
            )
            free = [gpu for gpu in range(total) if gpu not in held]
            if len(free) < num:
                return None
            gpus[node] = free[:num]
        counter = HOME / "next_step"
        number = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(number + 1))
        step_id = f"{job_id}.{number}"
        step = {
            "step_id": step_id,
            "name": options.get("name", ""),
            "nodes": nodes,
            "gpus": gpus,
            "exclusive": exclusive,
            "daemon": 0,
            "srun": os.getpid(),
        }
        write(HOME / "steps" / f"{step_id}.json", step)
        return step_id, gpus


def write(file: Path, value: object) -> None:
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(value))
    part.replace(file)


class Daemon:
    """Owns the tasks of a step."""

    def __init__(self, step_id, nodes, gpus, options, command, out, told) -> None:
        self.step_id, self.nodes, self.gpus, self.options, self.command, self.out = (
            step_id,
            nodes,
            gpus,
            options,
            command,
            out,
        )
        self.told = told
        self.file = HOME / "steps" / f"{step_id}.json"
        self.tasks: dict[int, tuple[int, str]] = {}
        self.terminate_at: float | None = None
        self.kill_all = False
        self.ordered = False
        """Somebody wanted it ended: an unkillable step stays then."""
        self.dead_since: float | None = None
        self.relayed: list[int] = []

    def kill_order(self, *_: object) -> None:
        self.kill_all = self.ordered = True

    def say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.out.write(f"say {text}\n")
            self.out.flush()

    def run(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGUSR1, self.kill_order)
        signal.signal(signal.SIGTERM, lambda *_: self.relayed.append(signal.SIGTERM))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        write(self.file, json.loads(self.file.read_text()) | {"daemon": os.getpid()})
        per_task_gpus = {node: ",".join(map(str, gpus)) for node, gpus in self.gpus.items()}
        for rank, node in enumerate(self.nodes):
            pid = os.fork()
            if pid == 0:
                self.become(rank, node, per_task_gpus[node])
            self.tasks[pid] = (rank, node)
        codes: dict[int, int] = {}
        while True:
            self.follow_orders()
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                time.sleep(POLL_S)
                continue
            if pid not in self.tasks:
                continue
            code = os.waitstatus_to_exitcode(status)
            rank, node = self.tasks[pid]
            codes[rank] = code if code >= 0 else 128 - code
            if node in behaviour()["dead_nodes"]:
                codes[rank] = 0
                continue  # nobody tells
            if code:
                how = (
                    "Killed"
                    if code == -9
                    else f"Exited with exit code {code}"
                    if code > 0
                    else f"Terminated by signal {-code}"
                )
                self.say(f"srun: error: {node}: task {rank}: {how}")
                if (
                    self.options.get("kill") == "1"
                    and self.terminate_at is None
                    and len(codes) < len(self.tasks)
                ):
                    self.say(f"srun: launch/slurm: _step_signal: Terminating StepId={self.step_id}")
                    self.signal_all(signal.SIGTERM)
                    self.terminate_at = time.monotonic() + behaviour()["kill_wait_s"]
            if len(codes) == len(self.tasks):
                self.kill_all = True  # whatever they forked
                if all(node not in behaviour()["dead_nodes"] for node in self.nodes):
                    self.signal_all(signal.SIGKILL)
        while any(node in behaviour()["dead_nodes"] for node in self.nodes) and not self.node_failed():
            time.sleep(POLL_S)
        while self.ordered and behaviour()["unkillable"]:
            time.sleep(POLL_S)
        code = max(codes.values(), default=0)
        if self.dead_since is not None:
            code = 137 if version_of(self.told) < (24, 11) else 1
        with contextlib.suppress(BrokenPipeError):
            self.out.write(f"code {code}\n")
            self.out.flush()
        self.file.unlink(missing_ok=True)

    def become(self, rank: int, node: str, gpus: str) -> None:
        job_id, _, step = self.step_id.partition(".")
        env = dict(os.environ) | {
            "SLURM_JOB_ID": job_id, "SLURM_JOBID": job_id, "SLURM_STEP_ID": step, "SLURM_STEPID": step, "SLURM_PROCID": str(rank),
            "SLURM_NODEID": str(rank), "SLURM_LOCALID": "0", "SLURM_NTASKS": str(len(self.nodes)), "SLURM_STEP_NODELIST": ",".join(self.nodes),
            "SLURMD_NODENAME": node,
        }  # fmt: skip
        if gpus:
            env |= {"CUDA_VISIBLE_DEVICES": gpus, "SLURM_STEP_GPUS": gpus}
        if gpus and "--overlap" not in self.options["flags"]:  # confined: numbers relative to the step
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(i) for i in range(len(gpus.split(","))))
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        try:
            os.execvpe(self.command[0], self.command, env)
        except OSError as error:
            complain(f"slurmstepd: error: execve(): {self.command[0]}: {error.strerror}")
            os._exit(2)

    def follow_orders(self) -> None:
        told = behaviour()
        if told["unkillable"]:
            return
        for number in self.relayed:
            self.signal_all(number)
        self.relayed.clear()
        if self.kill_all or (self.terminate_at is not None and time.monotonic() > self.terminate_at):
            self.signal_all(signal.SIGKILL)
        if any(node in told["dead_nodes"] for node in self.nodes):
            self.node_failed()

    def node_failed(self) -> bool:
        """A node is dead: its tasks go at once, Slurm notices later and ends the step everywhere."""
        told = behaviour()
        dead = [node for node in self.nodes if node in told["dead_nodes"]]
        if self.dead_since is None:
            self.dead_since = time.monotonic()
            for pid, (_, node) in self.tasks.items():
                if node in dead:
                    self.kill_tree(pid)
        if time.monotonic() - self.dead_since < told["node_fail_s"]:
            return False
        if not self.kill_all or self.terminate_at is None:
            self.say(f"srun: error: Node failure on {','.join(dead)}")
            self.terminate_at = 0.0
        self.kill_all = True
        return True

    def signal_all(self, number: int) -> None:
        for pid in tree(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_tree(self, root: int) -> None:
        for pid in [root, *tree(root)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in (entry.name for entry in Path("/proc").iterdir()):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(name))
    found, queue = [], [root]
    while queue:
        new = children.get(queue.pop(), [])
        found += new
        queue += new
    return found


# ---- the others


def live_steps() -> list[dict]:
    found = []
    for file in sorted((HOME / "steps").glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            step = json.loads(file.read_text())
            if step["daemon"] and not alive(step["daemon"]):
                file.unlink(missing_ok=True)
            else:
                found.append(step)
    return found


def names_of(step: dict) -> tuple[str, str, str, str]:
    """What a command may call it: by its own id and as it is printed, the step or all of its job."""
    number = step["step_id"].partition(".")[2]
    job_id, printed = step["step_id"].partition(".")[0], printed_job()
    return f"{job_id}.{number}", job_id, f"{printed}.{number}", printed


def printed_job() -> str:
    return behaviour()["printed"] or behaviour()["job_id"]


def away(what: str) -> int:
    time.sleep(behaviour()["away_s"])
    return complain(f"{what}: Unable to contact slurm controller (connect failure)")


def scancel(argv: list[str]) -> int:
    if behaviour()["controller_away"]:
        return away("slurm_load_jobs error")
    number = "KILL"
    targets = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-s", "--signal"):
            number = rest.pop(0)
        else:
            targets.append(word)
    code = 0
    for target in targets:
        mine = [step for step in live_steps() if target in names_of(step)]
        if not mine:
            code = complain(
                f"scancel: error: Kill job error on job step id {target.partition('.')[0]}: Invalid job id specified",
                225,
            )
        for step in mine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(step["daemon"], signal.SIGUSR1 if number == "KILL" else signal.SIGTERM)
    return code


def scontrol(argv: list[str]) -> int:
    if argv[:1] in (["--version"], ["-V"]):
        print(f"slurm {behaviour()['version']}")
        return 0
    if argv[:2] != ["show", "step"]:
        return complain(f"fake scontrol: {argv} is not imitated")
    if behaviour()["controller_away"]:
        return away("slurm_get_job_steps error")
    which = argv[2]
    if which.partition(".")[0] not in (behaviour()["job_id"], printed_job()):
        return complain("slurm_get_job_steps error: Invalid job id specified")
    mine = [step for step in live_steps() if which in names_of(step)]
    for step in mine:
        print(
            f"StepId={names_of(step)[2]} UserId=0 StartTime=2026-11-30T06:11:48 TimeLimit=UNLIMITED\n"
            f"   State=RUNNING Partition=gpu NodeList={','.join(step['nodes'])}\n"
            f"   Nodes={len(step['nodes'])} CPUs=32 Tasks={len(step['nodes'])} Name={step['name']} Network=(null)\n"
            f"   SrunHost:Pid=vm:{step['srun']}\n"
        )
    if not mine:
        print(f"Job step {which}{'' if '.' in which else '.'} not found")
        return 1
    return 0


def squeue(argv: list[str]) -> int:
    if behaviour()["controller_away"]:
        return away("slurm_load_jobs error")
    if "-s" in argv:
        for step in live_steps():
            print(names_of(step)[2])
    elif "%e" in argv:
        print("NONE")
    else:
        print(behaviour()["job_id"])
    return 0


def main() -> int:
    tool, argv = Path(sys.argv[1]).name, sys.argv[2:]
    (HOME / "steps").mkdir(exist_ok=True)
    record(tool, argv)
    return {"srun": srun, "scontrol": scontrol, "squeue": squeue, "scancel": scancel}[tool](argv)


if __name__ == "__main__":
    assert re.fullmatch(r"[\w./-]+", str(HOME)), "FAKE_SLURM must name a folder"
    sys.exit(main())
