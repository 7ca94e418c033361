"""Looks at this host: interpreter, limits, ports, the run folder's file system, a process group."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from hpcsched.doctor.finding import Finding, fail, ok, skip, warn
from hpcsched.doctor.peers import WHAT, Peers, finding_of

SLOW_IMPORT_S, SLOW_TORCH_S, SLOW_FSYNC_S = 1.0, 15.0, 0.1
LEAST_FILES, LEAST_FREE_MB = 1024, 1024
PORTS = (20000, 29999)
"""Where ranks meet (contract of the launcher)."""


def look_at_python(environ: Mapping[str, str], python: str = sys.executable) -> Iterator[Finding]:
    yield ok("Python", f"{'.'.join(map(str, sys.version_info[:3]))}, {python}")
    yield _import("hpcsched", SLOW_IMPORT_S, environ, python)
    yield _import("torch", SLOW_TORCH_S, environ, python)


def _import(module: str, slow_s: float, environ: Mapping[str, str], python: str) -> Finding:
    what = f"import {module}"
    began = time.monotonic()
    try:
        done = subprocess.run(
            [python, "-P", "-c", f"import {module}"], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=300.0, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return fail(
            what,
            "took more than 300 s",
            "move the environment off the network file system, or into one archive",
        )
    took = time.monotonic() - began
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        if module == "torch":
            return warn(what, last, "pip install 'hpcsched[train]' (trials may use another interpreter)")
        return fail(what, last, "install hpcsched anew")
    if took > slow_s:
        return warn(
            what,
            f"{took:.1f} s",
            "every start costs this: put the environment on a local disk ([setup] per_node), name modules in [trial] preload",
        )
    return ok(what, f"{took:.2f} s")


def look_at_limits() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < LEAST_FILES:
        yield warn("open files", f"limit {files}", "ulimit -n 4096, in the job script before hpcsched")
    else:
        yield ok("open files", f"limit {_limit(files)}")
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if 0 <= processes < 512:
        yield warn("processes", f"limit {processes}", "ulimit -u 4096")
    else:
        yield ok("processes", f"limit {_limit(processes)}")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked != resource.RLIM_INFINITY and Path("/sys/class/infiniband").is_dir():
        yield warn(
            "locked memory",
            f"limit {locked} bytes with InfiniBand here",
            "ulimit -l unlimited (an administrator's matter), or NCCL_IB_DISABLE=1",
        )
    else:
        yield ok("locked memory", f"limit {_limit(locked)}")


def _limit(value: int) -> str:
    return "none" if value == resource.RLIM_INFINITY else str(value)


def look_at_ports() -> Iterator[Finding]:
    with contextlib.suppress(OSError, ValueError):
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        shared = max(0, min(high, PORTS[1]) - max(low, PORTS[0]) + 1)
        if shared > (PORTS[1] - PORTS[0]) // 2:
            yield warn(
                "ports",
                f"the ephemeral range {low}-{high} covers {shared} of {PORTS[0]}-{PORTS[1]}",
                "collisions are retried; nothing to do unless launches are refused often",
            )
            return
    free = 0
    for port in range(PORTS[0], PORTS[1], 500):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            free += 1
    if free:
        yield ok("ports", f"{free} of 20 tried between {PORTS[0]} and {PORTS[1]} are free")
    else:
        yield fail(
            "ports",
            f"none of 20 tried between {PORTS[0]} and {PORTS[1]} is free",
            "see `ss -ltn` for who holds them",
        )


def look_at_folder(folder: Path) -> Iterator[Finding]:
    """The file system that a run folder would lie on. `folder` need not exist."""
    base = folder.absolute()
    while not base.exists():
        base = base.parent
    what = f"file system of {base}"
    try:
        place = Path(tempfile.mkdtemp(prefix=".hpcsched-doctor-", dir=base))
    except OSError as error:
        yield fail(
            what,
            f"cannot be written: {error.strerror}",
            "give a folder on a shared, writable file system by --run-dir",
        )
        return
    try:
        yield from _try_folder(place, f"{what} ({_kind_of(base)})")
    except OSError as error:
        yield fail(what, f"{error.strerror or error}", "give a folder on another file system by --run-dir")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _try_folder(place: Path, what: str) -> Iterator[Finding]:
    free_mb = shutil.disk_usage(place).free // 2**20
    if free_mb < LEAST_FREE_MB:
        yield warn(
            what, f"only {free_mb} MiB free", "checkpoints need more; free space or use another file system"
        )
    else:
        yield ok(what, f"{free_mb // 1024} GiB free")
    times = []
    with (place / "journal").open("ab", buffering=0) as file:
        for _ in range(20):
            began = time.monotonic()
            file.write(b"x" * 300)
            os.fsync(file.fileno())
            times.append(time.monotonic() - began)
    middle = statistics.median(times)
    said = f"write and fsync {1000 * middle:.1f} ms (worst {1000 * max(times):.1f} ms)"
    if middle > SLOW_FSYNC_S:
        yield warn(
            "fsync",
            said,
            "each decision waits for this; a file system with faster fsync makes starts quicker",
        )
    else:
        yield ok("fsync", said)
    (place / "new").write_text("new")
    (place / "old").write_text("old")
    (place / "new").rename(place / "old")
    if (place / "old").read_text() == "new":
        yield ok("rename", "replaces in one step")
    else:
        yield fail("rename", "does not replace", "use another file system for the run folder")
    try:
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield ok("locks", "flock works")
    except OSError as error:
        yield warn(
            "locks",
            f"flock: {error.strerror}",
            "two drivers are still told apart by the lease; mount with `flock` (Lustre) if you can",
        )
    try:
        os.link(place / "old", place / "link")
        yield ok("hard links", "work: best/ costs no second copy")
    except OSError as error:
        yield warn("hard links", f"{error.strerror}", "best/ is copied instead; nothing to do")
    place.chmod(0o700)
    if place.stat().st_mode & 0o077:
        yield warn(
            "modes", "0700 is not kept", "others may read the keys of a run here; use another file system"
        )


def _kind_of(path: Path) -> str:
    """The file system's type by its mount point, such as "lustre"."""
    best, kind = "", "unknown type"
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, found, *_ = line.split()
            inside = str(path) == mount or str(path).startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def look_at_gpus(environ: Mapping[str, str], python: str = sys.executable) -> Iterator[Finding]:
    tool = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if tool is None:
        yield skip("GPUs here", "no nvidia-smi on PATH", "on a login node that is usual; look inside a job")
        return
    try:
        done = subprocess.run(
            [tool, "-L"], capture_output=True, text=True, timeout=60.0, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        yield fail("GPUs here", "nvidia-smi hangs", "a GPU or its driver is ill: ask for another node")
        return
    names = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    if done.returncode != 0 or not names:
        yield warn(
            "GPUs here",
            (done.stderr or done.stdout).strip()[:200] or "none",
            "look inside a job that asked for GPUs",
        )
    else:
        yield ok("GPUs here", f"{len(names)}: {names[0]}")
    if len(names) > 1:
        yield _peers(environ, python)


def _peers(environ: Mapping[str, str], python: str) -> Finding:
    argv = [python, "-P", "-m", "hpcsched.doctor.peers"]
    try:
        done = subprocess.run(
            argv, env=dict(environ), capture_output=True, text=True, timeout=180.0, check=False, stdin=subprocess.DEVNULL
        )  # fmt: skip
        return finding_of(msgspec.json.decode(done.stdout, type=Peers))
    except subprocess.TimeoutExpired:
        why = "no answer within 180 s"
    except msgspec.DecodeError:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return warn(WHAT, f"could not be looked at: {why}", "python -m hpcsched.doctor.peers shows all")


def look_at_group(environ: Mapping[str, str], python: str = sys.executable) -> Iterator[Finding]:
    """Two processes on this host form a group and add up 16 MiB."""
    what = "group of 2 processes here"
    if subprocess.run([python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('torch') is None)"], env=dict(environ), check=False).returncode:  # fmt: skip
        yield skip(what, "torch is not installed", "pip install 'hpcsched[train]'")
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = []
    for rank in range(2):
        env = {**environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
        ranks.append(
            subprocess.Popen(
                [python, "-P", "-m", "hpcsched.doctor.allreduce"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        answers = [rank.communicate(timeout=180.0) for rank in ranks]
    except subprocess.TimeoutExpired:
        for process in ranks:
            process.kill()
            process.wait()
        yield fail(what, "did not form within 180 s", "a firewall on the loopback device, or a broken torch")
        return
    if any(rank.returncode for rank in ranks):
        last = next(text for rank, (_, text) in zip(ranks, answers, strict=True) if rank.returncode).strip()
        yield fail(
            what, (last.splitlines() or ["it failed"])[-1], "python -m hpcsched.doctor.allreduce shows all"
        )
    else:
        yield ok(what, answers[0][0].strip())
