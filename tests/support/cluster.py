"""A real Slurm cluster for tests: `tests/slurmbox/slurmbox`, one instance a test session.

The fixtures `cluster` (steps unconfined) and `confined_cluster` (devices and cores confined by cgroups, as most sites do)
are session-wide. Use them by importing them where they are wanted::

    from tests.support.cluster import cluster  # noqa: F401

A session takes a free instance number by a file lock, which the kernel gives back however the session ends; a watcher
process takes the cluster down when the session's end of a pipe closes, so that also a SIGKILL of pytest leaves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SLURMBOX = Path(__file__).resolve().parent.parent / "slurmbox" / "slurmbox"
INSTANCES = range(int(os.environ.get("SLURMBOX_FIRST", "1")), 100)
"""Instance 0 is for people at a terminal."""

LEAKING = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")


def why_no_cluster() -> str | None:
    """What this machine lacks to run slurmbox; None when nothing."""
    missing = [
        name
        for name in ("slurmd", "slurmctld", "srun", "munged", "ip", "nsenter")
        if shutil.which(name) is None
    ]
    if missing:
        return f"no {', '.join(missing)} on PATH (tests/slurmbox/slurmbox install)"
    if os.geteuid() != 0:
        return "not root"
    return None


def wait_until(
    condition: Callable[[], object], what: str, *, limit_s: float = 30.0, every_s: float = 0.02
) -> None:
    """Return once `condition()` is true; fail the test with `what` after `limit_s`."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {limit_s:g} s in vain until {what}")
        time.sleep(every_s)


@dataclass
class Allocation:
    """A job that holds nodes and runs nothing; `env` is what a shell inside would give to srun and to the driver."""

    cluster: Cluster
    job_id: str
    env: dict[str, str]

    def srun(self, *args: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(["srun", *args], env=self.env, timeout_s=timeout_s)

    def steps(self) -> list[str]:
        """Live steps of the job ("JOB.STEP"), extern and batch left out."""
        told = self.cluster.run(["squeue", "-h", "-s", "-j", self.job_id, "-o", "%i"], env=self.env).stdout
        return [step for step in told.split() if step.partition(".")[2].isdigit()]


@dataclass
class Cluster:
    """A running slurmbox."""

    instance: int
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return Path(f"/tmp/slurmbox-{self.instance}")

    @property
    def env(self) -> dict[str, str]:
        """This process's environment, less Slurm's variables, plus what a client needs."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(LEAKING)}
        return clean | {"SLURM_CONF": str(self.root / "slurm.conf")}

    @property
    def nodes(self) -> list[str]:
        return [f"n{number}" for number in range(1, int(self.settings.get("NODES", "4")) + 1)]

    @property
    def driver_address(self) -> str:
        """Address of this machine as the nodes see it."""
        return f"10.77.{self.instance}.1"

    # ---- the box

    def box(self, *args: str, timeout_s: float = 60.0) -> str:
        """Run slurmbox; its standard output."""
        env = self.env | self.settings | {"SLURMBOX_INSTANCE": str(self.instance)}
        done = subprocess.run(
            [str(SLURMBOX), *args], env=env, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )  # fmt: skip
        assert done.returncode == 0, f"slurmbox {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def kill_node(self, node: str) -> None:
        """SIGKILL all that runs on it, slurmd included, and cut its link."""
        self.box("kill-node", node)

    def drop_link(self, node: str) -> None:
        """Cut it off the network; its processes live on."""
        self.box("drop-link", node)

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL the node's slurmd; its steps live on."""
        self.box("kill-slurmd", node)

    def restore_node(self, node: str, *, limit_s: float = 60.0) -> None:
        """Bring link and slurmd back; returns once Slurm counts the node as idle or in use."""
        self.box("restore-node", node)
        wait_until(lambda: self._slurmd_listens(node), f"slurmd listens on {node}", limit_s=limit_s)
        self.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        wait_until(
            lambda: self.node_state(node).rstrip("*") in {"idle", "mixed", "allocated"},
            f"{node} is back",
            limit_s=limit_s,
            every_s=0.1,
        )

    def _slurmd_listens(self, node: str) -> bool:
        where = (f"10.77.{self.instance}.{10 + int(node.removeprefix('n'))}", 16818 + 10 * self.instance)
        try:
            socket.create_connection(where, timeout=1.0).close()
        except OSError:
            return False
        return True

    def stop_controller(self) -> None:
        self.box("stop-controller")

    def start_controller(self) -> None:
        self.box("start-controller")
        wait_until(
            lambda: self.run(["sinfo", "-h"], timeout_s=30).returncode == 0,
            "the controller answers",
            every_s=0.1,
        )

    def node_state(self, node: str) -> str:
        """As sinfo says it ("idle", "mixed", "down*", ...)."""
        return self.run(["sinfo", "-h", "-n", node, "-o", "%T"]).stdout.strip()

    # ---- commands of Slurm

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(argv), env=dict(env or self.env), capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def srun(self, *args: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """srun that makes its own job."""
        return self.run(["srun", *args], timeout_s=timeout_s)

    def salloc(self, *args: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """`salloc ARGS`: give the command to run inside at the end of `args`."""
        return self.run(["salloc", *args], timeout_s=timeout_s)

    def sbatch(self, *args: str, timeout_s: float = 60.0) -> str:
        """`sbatch --parsable ARGS`; the job id."""
        done = self.run(["sbatch", "--parsable", *args], timeout_s=timeout_s)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().partition(";")[0]

    def job_state(self, job_id: str) -> str:
        """As squeue says it ("RUNNING", "COMPLETED", ...); "" once it is forgotten."""
        return self.run(["squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T"]).stdout.strip()

    def jobs(self) -> list[str]:
        """Ids of all jobs that are pending, running or ending."""
        return self.run(["squeue", "-h", "-o", "%A"]).stdout.split()

    @contextlib.contextmanager
    def allocation(self, *args: str) -> Iterator[Allocation]:
        """A job made by `salloc ARGS`, held while the block runs (options only; all nodes exclusively by default).

        The environment is the one that salloc gives to a command, read from inside."""
        options = args or (
            "-N",
            str(len(self.nodes)),
            "--exclusive",
            "--no-kill",
            f"--gres=gpu:{self.settings.get('GPUS', '4')}",
        )
        with tempfile.TemporaryDirectory() as folder:
            ready, seen = Path(folder) / "ready", Path(folder) / "environ"
            command = ["sh", "-c", 'env -0 >"$0.part" && mv "$0.part" "$0" && exec sleep infinity', str(seen)]
            with (Path(folder) / "salloc.log").open("wb") as log:
                holder = subprocess.Popen(
                    ["salloc", *options, *command], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )  # fmt: skip
            try:
                wait_until(
                    lambda: seen.exists() or holder.poll() is not None, "salloc gives the nodes", limit_s=60.0
                )
                assert seen.exists(), (Path(folder) / "salloc.log").read_text()
                env = dict(item.split("=", 1) for item in seen.read_text().split("\0") if "=" in item)
                job_id = env["SLURM_JOB_ID"]
                yield Allocation(self, job_id, env)
            finally:
                del ready
                if seen.exists():
                    self.run(["scancel", job_id])
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(holder.pid, signal.SIGKILL)
                holder.wait()
        wait_until(lambda: job_id not in self.jobs(), f"job {job_id} is gone", every_s=0.05)


@contextlib.contextmanager
def slurmbox(**settings: str) -> Iterator[Cluster]:
    """A cluster of its own on a free instance number; taken down whatever happens. Skips the test without Slurm."""
    why = why_no_cluster()
    if why is not None:
        pytest.skip(f"no test cluster: {why}")
    for instance in INSTANCES:
        lock = Path(f"/tmp/slurmbox-{instance}.lock").open("w")  # noqa: SIM115 - held while the cluster is up
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        break
    else:
        pytest.fail("no free slurmbox instance: /tmp/slurmbox-*.lock are all held")
    with lock:
        made = Cluster(instance, dict(settings))
        made.box("down")  # what a killed session left
        watcher = subprocess.Popen(
            ["sh", "-c", 'read -r _; exec "$0" down', str(SLURMBOX)], stdin=subprocess.PIPE, start_new_session=True,
            env=made.env | made.settings | {"SLURMBOX_INSTANCE": str(instance)},
        )  # fmt: skip
        try:
            made.box("up")
            yield made
        finally:
            assert watcher.stdin is not None
            watcher.stdin.close()  # end of file: it runs `slurmbox down`
            watcher.wait(60.0)
            shutil.rmtree(made.root, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four hosts of four invented GPUs and 16 invented cores each."""
    with slurmbox() as made:
        yield made


@pytest.fixture(scope="session")
def confined_cluster() -> Iterator[Cluster]:
    """The same with every step confined to its devices and cores by cgroups; as many cores as this machine has."""
    with slurmbox(CONFINE="1") as made:
        yield made
