"""Everything fails at random for a while: `python -m tests.faults.soak --minutes 1 --json [--seed S]`.

Runs of light trials on this computer, one after another: trials that crash, hang, ignore orders, flood, fork daemons; supervisors
and ranks that are killed; drivers that are killed, stopped for a moment, ended by every signal, and resumed. After each run nothing
may be left. Prints {"runs", "lives", "processes", "fds", "ports", "tmp_files", "rss_mb_first", "rss_mb_last", "failed"}: what was left over all
(processes, this process's descriptors, listening ports of ours, files in the temporary folder) and the largest memory of a driver
in the first and in the last run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import psutil

from hpcsched.core.enums import ExperimentState
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header
from hpcsched.eventlog.status import read_status
from tests.support.e2e import Run, light_job, processes_of
from tests.support.lives import double_holdings, restores_what_is_not_there

MISDEEDS = (
    "", "", "", "crash", "hang", "exit 0", "killed", "daemon", "child, then crash", "ignore", "nan", "flood", "huge line",
    "exit 5 after leaving", "no goodbye", "report after leaving", "slow start", "segfault",
)  # fmt: skip
EARLY = 130
"""A Ctrl-C before the driver catches signals, while Python imports."""
INPUT_ERROR = 2
POLICIES = ("fifo", "asha", "hypersched", "rasda")


@dataclass
class Soak:
    runs: int = 0
    lives: int = 0
    processes: int = 0
    fds: int = 0
    ports: int = 0
    tmp_files: int = 0
    rss_mb_first: float = 0.0
    rss_mb_last: float = 0.0
    failed: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.failed or self.processes or self.fds or self.ports or self.tmp_files)


def soak(minutes: float, seed: int) -> Soak:
    seen = Soak()
    end = time.monotonic() + 60.0 * minutes
    fds = len(list(Path("/proc/self/fd").iterdir()))
    number = seed
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        temporary = root / "tmp"
        temporary.mkdir()
        while time.monotonic() < end:
            folder = root / str(number)
            ports = _listening()
            try:
                rss_mb = _one(number, folder, temporary, seen)
                seen.rss_mb_first = seen.rss_mb_first or rss_mb
                seen.rss_mb_last = rss_mb
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # pytest.fail is no Exception
                seen.failed.append(f"seed {number}: {type(error).__name__}: {error}")
            seen.runs += 1
            left = list(processes_of(folder / "run"))
            seen.processes += len(left)
            for pid, _ in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            seen.ports += len(_listening() - ports)
            number += 1
        left_files = sorted(path.name for path in temporary.iterdir())
        seen.tmp_files = len(left_files)
        if left_files:
            seen.failed.append(f"in the temporary folder: {left_files[:20]}")
    seen.fds = max(0, len(list(Path("/proc/self/fd").iterdir())) - fds)
    return seen


def _one(number: int, folder: Path, temporary: Path, seen: Soak) -> float:
    rng = Random(f"soak {number}")
    configs = [
        {
            "height": round(0.3 + 0.6 * rng.random(), 4), "step_s": rng.choice([0.05, 0.1, 0.3]), "save": rng.choice(["each", "leave"]),
            "do": rng.choice(MISDEEDS), "at": rng.randrange(0, 6), "until": rng.choice([1, 1, 0]),
        }
        for _ in range(rng.randrange(4, 12))
    ]  # fmt: skip
    job = light_job(
        folder, configs, policy=rng.choice(POLICIES), max_iterations=rng.choice([4, 9]), deadline=f"{rng.randrange(10, 25)}s",
        warm=rng.random() < 0.3, extra='[timeouts]\nsilence = "3s"\npreempt_grace = "2s"\n[retries]\nfail_fast = 0\n[scaling]\nassume = "linear"\n',
    )  # fmt: skip
    # Importing torch._dynamo, as spares do, makes torch's cache, which is the user's and stays.
    environ = {"TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": str(temporary.with_name("torch-cache"))}
    run = job.start(environ=environ)
    seen.lives += 1
    rss_mb = 0.0
    for _ in range(rng.randrange(1, 4)):
        until = time.monotonic() + rng.uniform(0.5, 4.0)
        while time.monotonic() < until and run.process.poll() is None:
            rss_mb = max(rss_mb, _rss_mb(run))
            time.sleep(0.2)
        if run.process.poll() is not None:
            break
        match rng.choice(["kill", "stop", "interrupt", "terminate", "rank", "supervisor", "nothing"]):
            case "kill":
                run.kill()
                run = job.start(
                    resume=run.folder.experiment.exists(), environ=environ
                )  # else nothing was made yet
                seen.lives += 1
            case "stop":
                run.signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0.1, 3.0))
                run.signal(signal.SIGCONT)
            case "interrupt" | "terminate" as how if run.folder.experiment.exists():
                run.signal(signal.SIGINT if how == "interrupt" else signal.SIGTERM)
                code = run.ends(60.0)
                assert code in (0, 1, 75, EARLY, -signal.SIGTERM), f"exit code {code}\n{run.told()}"
                if code not in (0, 1):  # suspended, or ended before it caught signals
                    run = job.start(resume=True, environ=environ)
                    seen.lives += 1
            case "rank" | "supervisor" as what:
                victims = [
                    pid
                    for pid, line in processes_of(job.run_dir)
                    if ("launch.supervisor" in line) == (what == "supervisor")
                    and "hpcsched run" not in line
                    and pid != run.process.pid
                ]
                if victims:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(victims), signal.SIGKILL)
            case _:
                pass
    code = run.ends(90.0)
    if code == INPUT_ERROR and _is_too_late(run):
        run.check(best=run.status["best"] is not None)
    else:
        assert code in (0, 1), f"exit code {code}\n{run.told()}"  # 1: no trial came to a checkpoint
        run.check(best=code == 0)
    wrong = double_holdings(run.folder) + restores_what_is_not_there(run.folder)
    assert not wrong, wrong
    return rss_mb


def _is_too_late(run: Run) -> bool:
    """It was suspended, and on a busy machine its deadline had passed when it was to go on: that is refused, and it stands as it was."""
    standing = read_status(run.folder)
    deadline_s = standing.status.deadline_s
    (header, *_) = (record for record in read_journal(run.folder) if isinstance(record, Header))
    suspended = standing.status.state is ExperimentState.SUSPENDED
    return suspended and deadline_s is not None and time.time() - header.began_at >= deadline_s


def _rss_mb(run: Run) -> float:
    try:
        return float(psutil.Process(run.process.pid).memory_info().rss) / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def _listening() -> set[int]:
    """Ports of this user that something listens at in the ranges that are ours."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        port = int(fields[1].rpartition(":")[2], 16)
        if fields[3] == "0A" and int(fields[7]) == os.getuid() and _is_orphan(port):
            found.add(port)
    return found


def _is_orphan(port: int) -> bool:
    """Others use this machine, too: what counts is a master port, which only trials of ours bind."""
    return 20_000 <= port <= 29_999


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    seen = soak(given.minutes, given.seed)
    for text in seen.failed:
        print(text, file=sys.stderr)
    result = asdict(seen) | {"failed": len(seen.failed)}
    print(
        json.dumps(result) if given.json else "\n".join(f"{name}: {value}" for name, value in result.items())
    )
    return 0 if seen.good else 1


if __name__ == "__main__":
    sys.exit(main())
