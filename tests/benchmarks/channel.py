"""From a report to its reply: `python -m tests.benchmarks.channel --ranks 1024 --rate 2000 --seconds 20 --json`.

The driver's own loop, channel, journal and core, over real sockets; only the launcher is a stand-in, and rank 0 and the
supervisor of each trial are simulated peers in a process of their own. Each report is decoded, judged by the core, written to the
journal and synced before its reply leaves. Prints

    {"median_ms", "p99_ms", "dropped", "rss_mb_start", "rss_mb_end", ...}

`median_ms`, `p99_ms`: from a report to its reply as a peer sees it, the peers' own slowness included (`peers_round_p99_ms`: how long
one round of their loop takes, `peers_late_ms`: how late the latest report was sent). `driver_p99_ms`: from the report's frame
taken off the socket to its reply handed to the socket, in the driver. `waits_for_core_*_us`: how long a message's share of all
threads stood ready and waited for a core (Linux's schedstat). `others_cores`: how many cores other programs used meanwhile: times with
more than a tenth of the machine's used by others say little, and `quiet` is false then. The disk is a
parameter: the run folder lies in memory where there is room, and a sync takes `--sync-ms`. `--dir FOLDER` measures with that folder's disk,
whose syncs took `sync_*_ms`: every reply waits for one, so that three in a thousand of half a second are the whole slowest hundredth.
`dropped`: reports without a reply or without a record in the journal, and messages that the
channel gave up. The first 2 s (a quarter of a shorter run) do not count for times. `rss_mb_*` grows until each connection has carried some 500 messages: libzmq
reserves queues of 64 kB a connection and touches their pages one after another. With few peers that is over soon, and what is left is seen:
`--ranks 64 --rate 800 --seconds 110` grows from 40 to 44.6 MB in 24 s, and after 64,000 more reports it has 46.6 MB (1 MB of it
are this benchmark's own times). `--sync-ms 50`: each sync takes so long. `--stall-s 10`: one
sync in the middle takes so long; afterwards everything must be there. `--ranks-per-trial`: how many of the ranks share a rank 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsched.channel.keys import create_keys
from hpcsched.channel.server import Arrived, Server
from hpcsched.config.load import load_experiment
from hpcsched.config.settings import core_settings
from hpcsched.core import events as ev
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver import inbox as ib
from hpcsched.driver.clock import Clock
from hpcsched.driver.loop import Loop
from hpcsched.driver.painter import Painter
from hpcsched.driver.ports import Ports
from hpcsched.eventlog.journal import JournalWriter
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header, Step
from hpcsched.launch.launcher import Launcher, LaunchNotice, StepEnded
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec, SpareSpec
from hpcsched.runfolder import RunFolder
from hpcsched.search.samplers import make_sampler
from hpcsched.sim.machine import simulated_machine
from hpcsched.wire import Report


class StandIn(Launcher):
    """Starts nothing: the peers are there already."""

    def __init__(self, notify: Callable[[LaunchNotice], None], num: int) -> None:
        self._notify = notify
        self.specs: dict[int, LaunchSpec] = {}
        self.num = num
        self.all_started = threading.Event()

    def start(self, spec: LaunchSpec) -> None:
        self.specs[spec.trial_id] = spec
        if len(self.specs) == self.num:
            self.all_started.set()

    def check(self, node: LaunchNode, *, invented: bool) -> str | None:
        return None

    def kill(self, trial_id: int, incarnation: int) -> None:
        nodes = tuple(node.node for node in self.specs[trial_id].nodes)
        self._notify(StepEnded(trial_id, incarnation, 0, "", nodes))

    def start_spare(self, spec: SpareSpec) -> None:
        raise AssertionError("no spares here")

    def adopt(self, spec: LaunchSpec, spares: Sequence[int]) -> None:
        raise AssertionError("no spares here")

    def note_step(self, trial_id: int, incarnation: int, step_id: str) -> None: ...
    def forget(self, trial_id: int, incarnation: int) -> None: ...
    def close(self) -> None: ...


class Nobody:
    """Looks on and shows nothing."""

    def step(self, event: ev.Event, actions: list[Any]) -> None: ...
    def note(self, time_s: float, text: str) -> None: ...
    def refresh(self, now: float) -> None: ...


class Disk:
    """A sync that takes `sync_s`, and once, `stall_at` seconds after it was made, `stall_s`."""

    def __init__(self, sync_s: float, stall_s: float) -> None:
        self._sync_s = sync_s
        self._stall_s = stall_s
        self.stall_at = float("inf")
        self.taken_s = array("d")
        """Of each sync."""

    def __call__(self, fd: int) -> None:
        began = time.monotonic()
        wait_s = self._sync_s
        if time.monotonic() >= self.stall_at:
            self.stall_at = float("inf")
            wait_s = self._stall_s
        if wait_s:
            time.sleep(wait_s)
        os.fdatasync(fd)
        self.taken_s.append(time.monotonic() - began)


class Stopwatch:
    """From a report's frame taken off the socket to its reply handed to the socket, both in the channel's thread."""

    def __init__(self, deliver: Callable[[Arrived], None]) -> None:
        self._deliver = deliver
        self._at: dict[bytes, float] = {}
        self.since = float("inf")
        """Monotonic seconds from which on reports count."""
        self.taken_s = array("d")  # a list would be what grows in the driver

    def deliver(self, arrived: Arrived) -> None:
        if isinstance(arrived.message, Report):
            self._at[arrived.peer.encode()] = arrived.at  # a peer has one report under way
        self._deliver(arrived)

    def watch(self, server: Server) -> None:
        transmit = server._transmit

        def watched(peer: Any, frames: list[bytes]) -> bool:
            done = transmit(peer, frames)
            at = self._at.pop(peer.identity, None) if frames[1] and done else None
            if at is not None and at >= self.since:
                self.taken_s.append(time.monotonic() - at)
            return done

        server._transmit = watched  # type: ignore[method-assign]


@dataclass
class Usage:
    """Seconds of processor time so far: of this process (the driver), of the peers, of everybody else."""

    wall_s: float
    driver_s: float
    driver_waited_s: float
    peers_s: float
    peers_waited_s: float
    others_s: float
    threads_s: dict[str, float]

    @staticmethod
    def now(peers: int) -> Usage:
        mine, theirs = threads_of(os.getpid()), threads_of(peers)
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        threads: dict[str, float] = {}
        for tid, (comm, cpu_s, _) in mine.items():
            name = names.get(tid, comm)
            threads[name] = threads.get(name, 0.0) + cpu_s
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy_s = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        driver_s, peers_s = (sum(cpu_s for _, cpu_s, _ in known.values()) for known in (mine, theirs))
        return Usage(
            wall_s=time.monotonic(), driver_s=driver_s, driver_waited_s=sum(wait_s for *_, wait_s in mine.values()),
            peers_s=peers_s, peers_waited_s=sum(wait_s for *_, wait_s in theirs.values()),
            others_s=busy_s - driver_s - peers_s, threads_s=threads,
        )  # fmt: skip

    def __sub__(self, other: Usage) -> Usage:
        threads = {name: cpu_s - other.threads_s.get(name, 0.0) for name, cpu_s in self.threads_s.items()}
        return Usage(
            self.wall_s - other.wall_s, self.driver_s - other.driver_s, self.driver_waited_s - other.driver_waited_s,
            self.peers_s - other.peers_s, self.peers_waited_s - other.peers_waited_s, self.others_s - other.others_s, threads,
        )  # fmt: skip


def threads_of(pid: int) -> dict[int, tuple[str, float, float]]:
    """Name, seconds on a core, and seconds ready but without one, of each thread (Linux: /proc/PID/task/TID/schedstat)."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            ran, waited, _ = (task / "schedstat").read_text().split()
            found[int(task.name)] = ((task / "comm").read_text().strip(), int(ran) / 1e9, int(waited) / 1e9)
        except OSError:
            continue
    return found


EXPERIMENT = """\
[experiment]
metric = "accuracy"
[trial]
command = ["true"]
max_iterations = 1000000000
[scheduler]
policy = "{policy}"
[timeouts]
reserve = "1s"
[search]
num_trials = {num}
[search.space]
x = {{ uniform = [0.0, 1.0] }}
"""


def measure(
    *, ranks: int, ranks_per_trial: int, rate: float, seconds: float, sync_s: float, stall_s: float, policy: str, seed: int,
    directory: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    num = ranks // ranks_per_trial
    directory = directory or _memory(round(rate * seconds))
    with tempfile.TemporaryDirectory(dir=directory) as name, contextlib.ExitStack() as stack:
        root = Path(name)
        folder = RunFolder(root / "run")
        folder.root.mkdir(mode=0o700)
        folder.journal.mkdir()
        file = root / "experiment.toml"
        file.write_text(EXPERIMENT.format(policy=policy, num=num))
        spec = load_experiment(file, overrides={"experiment.seed": seed}, simulate=False)
        settings = core_settings(spec)
        keys = create_keys(folder.keys / "1")
        inbox = ib.Inbox()
        disk = Disk(sync_s, stall_s)
        stopwatch = Stopwatch(inbox.put)
        server = Server(keys, "tcp://127.0.0.1", deliver=stopwatch.deliver)
        stopwatch.watch(server)
        stack.callback(server.close)
        channel = Channel(
            (f"tcp://127.0.0.1:{server.port}",), str(keys.server_public_file), str(keys.client_secret_file)
        )
        machine = simulated_machine(num, 8)
        began_at = time.time()
        header = Header(1, spec.text, "channel", "accuracy", settings, began_at)
        writer = JournalWriter(folder, header, durable=lambda n: inbox.put(ib.Durable(n)), sync=disk)
        launcher = StandIn(inbox.put, num)
        scheduler = Scheduler(settings)
        loop = Loop(
            spec=spec, folder=folder, scheduler=scheduler, sampler=make_sampler(spec, seed=seed), machine=machine,
            launcher=launcher, server=server, channel=channel, writer=writer, inbox=inbox, clock=Clock(0.0),
            ports=Ports(salt="channel"), onlooker=Nobody(), painter=Painter(folder, header, scheduler), local=True, invented_gpus=True, began_at_unix_s=began_at,
            file_deadline_s=None, allocation_ends_s=None, warm=False, one_node_spares=False, first_n=0, told={}, order_ids=(),
        )  # fmt: skip
        run_loop: Callable[[ev.Event], object] = loop.run
        if os.environ.get("PROFILE"):
            run_loop = _profiled(loop.run)
        thread = threading.Thread(
            target=run_loop, args=(ev.ExperimentBegan(0.0, machine, None),), name="loop"
        )
        thread.start()
        if not launcher.all_started.wait(120.0):
            raise RuntimeError(f"only {len(launcher.specs)} of {num} trials were started")
        facts = root / "facts.json"
        nodes = [launcher.specs[trial].nodes[0].node for trial in range(num)]
        facts.write_text(
            json.dumps(
                {
                    "endpoint": channel.endpoints[0], "server_key_file": channel.server_key_file,
                    "client_key_file": channel.client_key_file, "trials": num, "nodes": nodes, "rate": rate,
                    "seconds": seconds, "wait_s": stall_s + 20.0, "latencies_file": str(root / "latencies"),
                }
            )
        )  # fmt: skip
        peers = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.channel_peers", str(facts)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        stack.callback(peers.kill)
        assert peers.stdin is not None
        assert peers.stdout is not None
        assert peers.stdout.readline() == "ready\n"
        peers.stdin.write("go\n")
        peers.stdin.flush()
        began = time.monotonic()
        stopwatch.since = began + min(3.0, seconds / 4)
        before = Usage.now(peers.pid)
        disk.stall_at = began + seconds / 2 if stall_s else float("inf")
        time.sleep(min(4.0, seconds / 2))  # all are up, and tables have their size
        rss_start = rss_mb()
        seen = json.loads(peers.stdout.readline())
        rss_end = rss_mb()
        used = Usage.now(peers.pid) - before
        peers.wait(60.0)
        inbox.put(ib.SignalCaught("SIGTERM"))
        thread.join(60.0)
        loop.wind_up()
        closed = writer.close(60.0)
        counts = server.counts
        steps = [record for record in read_journal(folder) if isinstance(record, Step)]
        logged = sum(isinstance(step.event, ev.ResultReported) for step in steps)
        failed = sum(
            isinstance(step.event, ev.TrialExited) and step.event.outcome.value != "killed" for step in steps
        )
        taken_s = array("d", (root / "latencies").read_bytes())
    latencies = sorted(1000.0 * latency for latency in taken_s)
    inside = sorted(1000.0 * taken_s for taken_s in stopwatch.taken_s)
    syncs = sorted(1000.0 * taken_s for taken_s in disk.taken_s)
    num = max(1, seen["sent"] + seen["welcomes"])
    return {
        "median_ms": round(quantile(latencies, 0.5), 3),
        "p99_ms": round(quantile(latencies, 0.99), 3),
        "dropped": (seen["sent"] - seen["answered"]) + (seen["sent"] - logged) + counts.malformed + counts.flooded + counts.undelivered,
        "rss_mb_start": round(rss_start, 1),
        "rss_mb_end": round(rss_end, 1),
        "max_ms": round(latencies[-1], 3) if latencies else None,
        "reports": seen["sent"],
        "per_s": round(seen["sent"] / seconds, 1),
        "heartbeats_answered": seen["welcomes"],
        "trials_lost": failed,
        "driver_median_ms": round(quantile(inside, 0.5), 3),
        "driver_p99_ms": round(quantile(inside, 0.99), 3),
        "peers_late_ms": round(1000.0 * seen["late_s"], 1),
        "peers_round_p99_ms": round(1000.0 * seen["round_p99_s"], 3),
        "journal_complete": closed,
        "folder": str(root.parent),
        "syncs": len(syncs),
        "sync_median_ms": round(quantile(syncs, 0.5), 3),
        "sync_p99_ms": round(quantile(syncs, 0.99), 3),
        "sync_max_ms": round(syncs[-1], 3),
        "driver_cpu_us": round(1e6 * used.driver_s / num, 1),
        "driver_threads_us": {name: round(1e6 * cpu_s / num, 1) for name, cpu_s in used.threads_s.items()},
        "peers_cpu_us": round(1e6 * used.peers_s / num, 1),
        "waits_for_core_driver_us": round(1e6 * used.driver_waited_s / num, 1),
        "waits_for_core_peers_us": round(1e6 * used.peers_waited_s / num, 1),
        "others_cores": round(used.others_s / used.wall_s, 2),
        "quiet": used.others_s / used.wall_s < 0.1 * (os.cpu_count() or 1),
    }  # fmt: skip


def _profiled(run: Callable[[ev.Event], object]) -> Callable[[ev.Event], object]:
    import cProfile

    def profiled(first: ev.Event) -> None:
        profile = cProfile.Profile()
        profile.runcall(run, first)
        profile.print_stats("tottime")

    return profiled


MEMORY = Path("/dev/shm")
BYTES_PER_REPORT = 2000
"""More than the journal and the peers' times take."""


def _memory(num_reports: int) -> Path | None:
    """A folder in memory; None where there is none, or too little of it (containers often have 64 MB)."""
    try:
        has_room = shutil.disk_usage(MEMORY).free > num_reports * BYTES_PER_REPORT
    except OSError:
        return None
    return MEMORY if has_room and os.access(MEMORY, os.W_OK) else None


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank; NaN of nothing."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.channel", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--ranks-per-trial", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2000.0, help="reports a second, all trials together")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sync-ms", type=float, default=0.0)
    parser.add_argument("--stall-s", type=float, default=0.0)
    parser.add_argument("--dir", type=Path, help="where the run folder lies, by default in memory")
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    result = measure(
        ranks=given.ranks, ranks_per_trial=given.ranks_per_trial, rate=given.rate, seconds=given.seconds,
        sync_s=given.sync_ms / 1000.0, stall_s=given.stall_s, policy=given.policy, seed=given.seed, directory=given.dir,
    )  # fmt: skip
    print(
        json.dumps(result) if given.json else "\n".join(f"{name}: {value}" for name, value in result.items())
    )
    return 0 if result["dropped"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
