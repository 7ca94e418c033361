"""The node supervisor: one process a node and incarnation, between the driver and the ranks.

`python -m hpcsched.launch.supervisor LAUNCH_FILE [--node NAME] [--slurm-picks]`

Theory. The supervisor is a small machine with one queue. Three things come in: the end of a child (SIGCHLD), a word of
the driver (a thread that waits on the channel), and time. Heartbeats come from a thread of their own, from the hello to the goodbye
(what they say: `pulse`). Its phases go one way::

    CHECKING -> RUNNING -> ENDING -> gone
         \\-> refused (nothing was started)

RUNNING ends when all ranks have ended, one has failed, the driver says so, or the driver has been away too long. ENDING
kills every descendant until there is none. The supervisor is the *child subreaper* of its processes (prctl(2)), so
whatever a rank forked, however often it forked again and whatever session it made, becomes a child of the supervisor
when its parent ends, and is found there. So "nothing is left" is a fact that it reads, not a hope; only then it says
goodbye. Should the supervisor itself be killed, its ranks die by PR_SET_PDEATHSIG, and the step or the launcher ends the
rest.

Exit code: 0 when every rank ended with code 0; 1 when one failed or was killed; 2 for a launch file that is none; 3 when it
refused to start the ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import enum
import errno
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from hpcsched.channel.client import Client
from hpcsched.errors import HpcschedError, LaunchError
from hpcsched.launch.cgroups import count_oom_kills, oom_files
from hpcsched.launch.checks import check_node
from hpcsched.launch.devices import MismatchError, cores_of_ranks
from hpcsched.launch.environment import rank_environment
from hpcsched.launch.probe_node import core_groups
from hpcsched.launch.processes import CLEANER_S, CleanersLast, descendants, is_cleaner, kill_process
from hpcsched.launch.pulse import Pulse
from hpcsched.launch.still import Watch
from hpcsched.launch.tails import LONG_TAIL_BYTES, gpu_failure_in, tail_of, tells_out_of_memory
from hpcsched.launch.zygote import Fork, script_of
from hpcsched.launch.zygote_process import ZygoteProcess, environment_fits
from hpcsched.launchspec import LaunchNode, LaunchSpec
from hpcsched.progress import VARIABLE as PROGRESS
from hpcsched.progress import Board
from hpcsched.runfolder import RunFolder
from hpcsched.wire import (
    FromDriver,
    Heartbeat,
    KillRanks,
    RankExited,
    RankProgress,
    RanksStarted,
    SupervisorGoodbye,
    SupervisorHello,
    SupervisorRefuses,
)

log = logging.getLogger("hpcsched.supervisor")

PR_SET_CHILD_SUBREAPER = 36
FIRST_CONTACT_S = 60.0
"""Nothing is started for a driver that does not answer for so long."""
GOODBYE_LIMIT_S = 10.0
"""Longest wait until the driver has the goodbye."""
KILL_AGAIN_S = (0.005, 0.5)
"""Between two rounds of killing what is left: at first, at most."""
CLEANER_LOOK_S = 0.05
"""Between two looks at those who clean up after the ranks."""
PROGRESS_BEATS = 5
"""The driver hears where the ranks are each so many heartbeats' time."""
RANK_EXEC = Path(__file__).with_name("rank_exec.py")

# See `spawn_rank`. Both are documented beside `subprocess.Popen`.
subprocess._USE_POSIX_SPAWN = False  # type: ignore[misc]
subprocess._USE_VFORK = False  # type: ignore[misc]


class ChildEnded:
    """SIGCHLD has come."""


class Phase(enum.Enum):
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"


class Refusal(HpcschedError):  # noqa: N818 - an answer, not a failure of ours
    """The ranks cannot be started here."""

    def __init__(self, problem: str, why: str, gpus: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.problem = problem
        self.gpus = gpus


class Rank(msgspec.Struct):
    """One rank of this node. `code` is None while it lives; negative: the signal that ended it."""

    rank: int
    pid: int
    log_file: Path
    code: int | None = None
    killed: bool = False
    """We ended it, so its code says nothing about the trial."""


class Supervisor:
    """Starts and watches the ranks of `node`. Use once, from the main thread: `run()`."""

    def __init__(
        self,
        spec: LaunchSpec,
        node: LaunchNode,
        *,
        environ: Mapping[str, str],
        client: Client,
        slurm_picks: bool = False,
        zygote: ZygoteProcess | None = None,
    ) -> None:
        self._spec = spec
        # Where Slurm picks the cores, nobody knows beforehand which NUMA nodes they are of.
        self._node = msgspec.structs.replace(node, memory_nodes=()) if slurm_picks else node
        self._environ = environ
        self._client = client
        self._slurm_picks = slurm_picks
        self._zygote = zygote
        self._folder = RunFolder(Path(spec.run_dir))
        self._inbox: queue.SimpleQueue[FromDriver | ChildEnded] = queue.SimpleQueue()
        self._ranks: dict[int, Rank] = {}
        self._phase = Phase.RUNNING
        self._oom_files: list[Path] = []
        self._num_oom_kills = 0
        self._kill_pause_s = KILL_AGAIN_S[0]
        self._save_until: float | None = None
        """The driver is lost: ranks may save until then."""
        self._in_step = "SLURM_STEP_ID" in environ
        self._uuids: tuple[str, ...] = ()
        """Of our GPUs, where NVML tells them."""
        self._board: Board | None = None
        """Where ranks write how far they are."""
        with contextlib.suppress(OSError):
            self._board = Board(len(node.gpus))
        self._watch = Watch()
        beat = Heartbeat(spec.trial_id, spec.incarnation, node=node.node)
        self._pulse = Pulse(lambda: client.send(beat), spec.heartbeat_s)

    # ---- the life

    def run(self) -> int:
        """To the end; the exit code."""
        try:
            return self._run()
        finally:
            self._pulse.stop()

    def _run(self) -> int:
        ids = (self._spec.trial_id, self._spec.incarnation)
        self._catch_signals()
        threading.Thread(target=self._listen, name="hpcsched-listen", daemon=True).start()
        try:
            devices, cores = self._check()
        except Refusal as refusal:
            log.error("refused: %s", refusal)
            self._client.send(self._hello((), ()))
            self._client.send(
                SupervisorRefuses(
                    *ids,
                    node=self._node.node,
                    problem=refusal.problem,  # type: ignore[arg-type]  # one of the three by construction
                    why=str(refusal),
                    gpus=refusal.gpus,
                )
            )
            self._client.close(GOODBYE_LIMIT_S)
            return 3
        self._client.send(self._hello(devices or (), cores))
        self._pulse.start()
        if not self._client.wait_connected(FIRST_CONTACT_S):
            log.error(
                "no driver at %s within %g s; nothing was started",
                ", ".join(self._spec.channel.endpoints),
                FIRST_CONTACT_S,
            )
            self._pulse.stop()
            self._client.close(0)
            return 3
        if self._told_to_go():
            log.info("told to go before the ranks were started")
            self._pulse.stop()
            self._client.send(SupervisorGoodbye(*ids, node=self._node.node, exits={}))
            self._client.close(GOODBYE_LIMIT_S)
            return 1
        try:
            self._test_port()
            self._start_ranks(devices, cores)
        except Refusal as refusal:
            log.error("refused: %s", refusal)
            self._end_everything("refused")
            while self._phase is not Phase.GONE:
                self._step()
            self._pulse.stop()
            self._client.send(
                SupervisorRefuses(*ids, node=self._node.node, problem=refusal.problem, why=str(refusal))  # type: ignore[arg-type]  # as above
            )
            self._client.close(GOODBYE_LIMIT_S)
            return 3
        self._client.send(
            RanksStarted(
                *ids, node=self._node.node, pids={rank.rank: rank.pid for rank in self._ranks.values()}
            )
        )
        period_s = self._spec.heartbeat_s
        next_look = time.monotonic()
        next_progress = next_look + PROGRESS_BEATS * period_s
        while self._phase is not Phase.GONE:
            self._pulse.came_round()
            now = time.monotonic()
            if now >= next_progress:
                self._tell_progress(now)
                next_progress = now + PROGRESS_BEATS * period_s
            if now >= next_look:
                self._watch_driver(now)
                # After a pause of the whole machine one look is enough.
                next_look = max(next_look + period_s, now)
            self._step(max(0.0, next_look - now))
        self._pulse.stop()
        exits = {rank.rank: rank.code for rank in self._ranks.values() if rank.code is not None}
        self._client.send(SupervisorGoodbye(*ids, node=self._node.node, exits=exits))
        delivered = self._client.close(GOODBYE_LIMIT_S if self._save_until is None else 1.0)
        log.info("gone: %s%s", exits, "" if delivered else "; the driver was not there to hear the goodbye")
        self._let_cleaners_end()
        return 0 if all(code == 0 for code in exits.values()) else 1

    def _step(self, timeout_s: float = 0.0) -> None:
        """Wait for one thing at most `timeout_s`, and act on it."""
        if self._phase is Phase.ENDING:
            if self._kill_what_is_left():
                return
            timeout_s = self._kill_pause_s
        with contextlib.suppress(queue.Empty):
            item = self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
            if isinstance(item, KillRanks):
                self._end_everything(f"the driver says so: {item.why}")
        self._reap()
        if self._phase is Phase.RUNNING and all(rank.code is not None for rank in self._ranks.values()):
            self._end_everything("all ranks have ended")

    # ---- before the ranks

    def _hello(self, devices: tuple[str, ...], cores: tuple[int, ...]) -> SupervisorHello:
        env = self._environ
        job, step = env.get("SLURM_JOB_ID", ""), env.get("SLURM_STEP_ID", "")
        return SupervisorHello(
            self._spec.trial_id,
            self._spec.incarnation,
            node=self._node.node,
            pid=os.getpid(),
            step_id=f"{job}.{step}" if job and step else "",
            devices=devices,
            cores=cores,
            uuids=self._uuids,
            picked=self._slurm_picks,
        )

    def _check(self) -> tuple[tuple[str, ...] | None, tuple[int, ...]]:
        """(CUDA names of our GPUs, or None where they are invented; cores). Raises Refusal."""
        try:
            found = check_node(
                self._node,
                self._environ,
                invented=self._spec.invented_gpus,
                slurm_picks=self._slurm_picks,
                ours={process.pid for process in descendants(os.getpid())},
            )
            self._uuids = found.uuids
            return found.devices, found.cores
        except MismatchError as error:
            raise Refusal("mismatch", str(error), error.gpus) from error

    def _test_port(self) -> None:
        """The supervisor of rank 0 binds the group's port for a moment. Raises Refusal."""
        if self._node.first_rank != 0:
            return
        family = socket.AF_INET6 if ":" in self._spec.master_addr else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as test:
            test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                test.bind(("", self._spec.master_port))
                test.listen(1)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise Refusal(
                        "error", f"{self._node.node}: port {self._spec.master_port}: {error.strerror}"
                    ) from error
                raise Refusal(
                    "port", f"{self._node.node}: port {self._spec.master_port} is in use"
                ) from error

    def _start_ranks(self, devices: Sequence[str] | None, cores: Sequence[int]) -> None:
        spec, node = self._spec, self._node
        if not Path(spec.cwd).is_dir():
            raise Refusal("error", f"{node.node}: there is no folder {spec.cwd} to run the command in")
        os.chdir(spec.cwd)
        with contextlib.suppress(OSError):
            self._oom_files = oom_files(Path("/proc/self/cgroup").read_text())
        self._num_oom_kills = count_oom_kills(self._oom_files)
        virtual_env = os.path.dirname(sys.executable) if sys.prefix != sys.base_prefix else None  # noqa: PTH120 - sys.executable must not be resolved
        shares = cores_of_ranks(
            node,
            cores,
            slurm_picks=self._slurm_picks,
            core_groups=core_groups(Path("/sys")) if self._slurm_picks else (),
        )
        for local_rank, own in enumerate(shares):
            env = rank_environment(
                spec, node, local_rank, inherited=self._environ, devices=devices, num_cores=len(own), python_dir=virtual_env
            )  # fmt: skip
            if self._board is not None:
                env[PROGRESS] = self._board.path
            rank = node.first_rank + local_rank
            file = self._folder.rank_log(spec.trial_id, spec.incarnation, rank)
            try:
                pid = self._fork_rank(env, own, file)
                if pid is None:
                    pid = self._spawn_rank(env, own, file)
            except (OSError, ValueError) as error:
                raise Refusal("error", f"{node.node}: rank {rank} could not be started: {error}") from error
            self._ranks[pid] = Rank(rank=rank, pid=pid, log_file=file)
            log.info(
                "rank %d: pid %d, cores %s, GPUs %s",
                rank,
                pid,
                list(own),
                "invented" if devices is None else list(devices),
            )

        if self._zygote is not None:
            self._zygote.close()

    def _spawn_rank(self, env: dict[str, str], cores: Sequence[int], log_file: Path) -> int:
        """A cold start: a new process."""
        return spawn_rank((*self._spec.wrap, *self._spec.command), env, cores, log_file)

    def _fork_rank(self, env: dict[str, str], cores: Sequence[int], log_file: Path) -> int | None:
        """A warm start: a fork of the zygote. None: cold, and the log says why."""
        if self._zygote is None:
            return None
        ready = self._zygote.poll_ready()
        script = script_of(self._spec.command, self._spec.wrap, env.get("PATH", ""))
        cold = "not ready" if ready is None else ready.cold
        cold = cold or environment_fits(self._spec.env, self._zygote.env)
        if script is None:
            cold = "the command is no script of this Python"
        if cold is None and script is not None:
            request = Fork(os.getpid(), script, env, self._spec.cwd, tuple(cores), str(log_file))
            try:
                return self._zygote.fork(request)
            except LaunchError as error:
                cold = str(error)
        log.warning("ranks start cold: %s", cold)
        self._zygote.close()
        self._zygote = None
        return None

    # ---- while they run

    def _reap(self) -> None:
        """Take note of every child that has ended; orphans that became ours included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._ranks.get(pid)
            if rank is not None and rank.code is None:
                self._rank_ended(rank, os.waitstatus_to_exitcode(status))

    def _rank_ended(self, rank: Rank, code: int) -> None:
        rank.code = code
        tail, out_of_memory, gpu_failure = "", False, ""
        if code != 0 and not rank.killed:
            tail = tail_of(rank.log_file)
            out_of_memory = tells_out_of_memory(tail) or (
                code == -signal.SIGKILL and count_oom_kills(self._oom_files) > self._num_oom_kills
            )
        if code != 0 and not self._spec.invented_gpus:
            # Also of those that were killed: whoever waited for them in a collective may have ended first.
            gpu_failure = gpu_failure_in(tail_of(rank.log_file, LONG_TAIL_BYTES))
        why = gpu_failure or ("out of memory" if out_of_memory else "")
        log.info("rank %d ended with code %d%s", rank.rank, code, f" ({why})" if why else "")
        self._client.send(
            RankExited(
                self._spec.trial_id,
                self._spec.incarnation,
                node=self._node.node,
                rank=rank.rank,
                code=code,
                tail=tail,
                out_of_memory=out_of_memory,
                gpu_failure=gpu_failure,
            )
        )
        if code != 0 and self._phase is Phase.RUNNING:
            self._end_everything(f"rank {rank.rank} ended with code {code}")

    def _tell_progress(self, now: float) -> None:
        if self._board is None:
            return
        seen = [
            self._watch.look(rank.rank, rank.pid, self._board.mark(rank.rank - self._node.first_rank), now)
            for rank in self._ranks.values()
            if rank.code is None
        ]
        ranks = tuple(each for each in seen if each is not None)
        if ranks:
            self._client.send(
                RankProgress(self._spec.trial_id, self._spec.incarnation, node=self._node.node, ranks=ranks)
            )

    def _watch_driver(self, now: float) -> None:
        """A driver that stays away: rank 0 notices it, too, and saves; then all ranks end."""
        if self._phase is not Phase.RUNNING:
            return
        if self._client.lost_for_s < self._spec.driver_lost_s:
            if self._save_until is not None:
                log.info("the driver is back")
            self._save_until = None
        elif self._save_until is None:
            self._save_until = now + self._spec.save_on_exit_s
            log.error(
                "the driver has been silent for %.0f s: ranks have %g s to save and leave",
                self._client.lost_for_s,
                self._spec.save_on_exit_s,
            )
        elif now >= self._save_until:
            self._end_everything("the driver is lost")

    # ---- the end

    def _end_everything(self, why: str) -> None:
        if self._phase is Phase.RUNNING:
            log.info("ending all that runs here: %s", why)
            self._phase = Phase.ENDING
            self._kill_what_is_left()

    def _kill_what_is_left(self) -> bool:
        """One round: SIGKILL each descendant but those that clean up after the others. True, and GONE, once there is none and every
        rank was reaped."""
        found = descendants(os.getpid())
        left = [process for process in found if process.pid in self._ranks or not is_cleaner(process)]
        for process in left:
            rank = self._ranks.get(process.pid)
            if kill_process(process) and rank is not None and rank.code is None:
                rank.killed = True
        self._reap()
        if (
            not left
            and all(rank.code is not None for rank in self._ranks.values())
            and self._others_are_gone()
        ):
            self._phase = Phase.GONE
            return True
        self._kill_pause_s = min(2 * self._kill_pause_s, KILL_AGAIN_S[1])
        return False

    def _let_cleaners_end(self) -> None:
        """They hold no device, and nobody waits for them: the goodbye is said. With their step they would be killed too early."""
        cleaners_last = CleanersLast()
        end = time.monotonic() + 2 * CLEANER_S
        while (left := descendants(os.getpid())) and time.monotonic() < end:
            for process in cleaners_last.of(left, time.monotonic()):
                kill_process(process)
            time.sleep(CLEANER_LOOK_S)
            self._reap()

    def _others_are_gone(self) -> bool:
        """Of this node's ranks, those that are no children of this process (MPI trials)."""
        return True

    # ---- what wakes it

    def _told_to_go(self) -> bool:
        with contextlib.suppress(queue.Empty):
            while True:
                if isinstance(self._inbox.get_nowait(), KillRanks):
                    return True
        return False

    def _listen(self) -> None:
        while True:
            message = self._client.receive(3600.0)
            if message is not None:
                self._inbox.put(message)

    def _catch_signals(self) -> None:
        # SimpleQueue.put is reentrant: it may be called from a signal handler.
        signal.signal(signal.SIGCHLD, lambda *_: self._inbox.put(ChildEnded()))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        """In a step Slurm signals everybody, and SIGKILL follows: the channel decides. Elsewhere somebody means us."""
        if self._in_step:
            log.warning("signal %d: not followed inside a step", number)
            return
        ids = (self._spec.trial_id, self._spec.incarnation)
        self._inbox.put(KillRanks(*ids, why=f"signal {number} to the supervisor"))


def spawn_rank(command: Sequence[str], env: Mapping[str, str], cores: Sequence[int], log_file: Path) -> int:
    """Start a rank as a child of this process; its pid. Raises OSError.

    Files may take their time, on a shared file system many seconds, and the heartbeats go on: `os.posix_spawn` and a `vfork` hold
    Python's lock until the child has opened its log and become the program, so the log is opened here, and the child is forked.
    """
    argv = [
        sys.executable, "-I", "-S", str(RANK_EXEC), str(os.getpid()), ",".join(map(str, cores)), *command,
    ]  # fmt: skip
    output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # until it ignores them
    try:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, close_fds=False, restore_signals=False
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(output)
    process.returncode = 0  # it is reaped here, not by `subprocess`
    return process.pid


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hpcsched.launch.supervisor", description="Starts the ranks of a trial on one node."
    )
    parser.add_argument("launch_file", type=Path)
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME"))
    parser.add_argument(
        "--slurm-picks",
        action="store_true",
        help='binding "slurm": take the GPUs and cores that the step shows',
    )
    args = parser.parse_args(argv)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return serve_trial(args.launch_file, args.node, slurm_picks=args.slurm_picks)


def serve_trial(
    launch_file: Path,
    node_name: str | None,
    *,
    slurm_picks: bool,
    zygote: ZygoteProcess | None = None,
    kind: type[Supervisor] = Supervisor,
) -> int:
    """Be the supervisor of the incarnation that `launch_file` describes, to its end; the exit code."""
    try:
        spec = msgspec.json.decode(launch_file.read_bytes(), type=LaunchSpec)
    except (OSError, msgspec.DecodeError) as error:
        print(f"hpcsched supervisor: {launch_file}: {error}", file=sys.stderr)
        return 2
    node = next((each for each in spec.nodes if each.node == node_name), None)
    if node is None:
        names = ", ".join(each.node for each in spec.nodes)
        print(f"hpcsched supervisor: node {node_name} is not in {launch_file} ({names})", file=sys.stderr)
        return 2
    log_to(RunFolder(Path(spec.run_dir)).supervisor_log(spec.trial_id, spec.incarnation, node.node))
    log.info(
        "supervisor of trial %d incarnation %d on %s: pid %d, %s",
        spec.trial_id, spec.incarnation, node.node, os.getpid(), json.dumps(_shown(os.environ)),
    )  # fmt: skip
    client: Client | None = None
    try:
        client = Client(
            spec.channel.endpoints,
            spec.channel.server_key_file,
            spec.channel.client_key_file,
            f"{spec.trial_id}.{spec.incarnation}.sup.{node.node}",
        )
        return kind(
            spec, node, environ=dict(os.environ), client=client, slurm_picks=slurm_picks, zygote=zygote
        ).run()
    except Exception as error:
        log.exception("the supervisor itself failed")
        for process in descendants(os.getpid()):
            kill_process(process)
        if client is not None:
            with contextlib.suppress(HpcschedError):
                why = f"{node.node}: {type(error).__name__}: {error}"
                client.send(
                    SupervisorRefuses(
                        spec.trial_id, spec.incarnation, node=node.node, problem="error", why=why
                    )
                )
                client.close(GOODBYE_LIMIT_S)
        return 3


def _shown(environ: Mapping[str, str]) -> dict[str, str]:
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME")
    return {name: environ[name] for name in names if name in environ}


def log_to(file: Path) -> None:
    """This process's own log, its standard output and error included (a traceback must not be lost)."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )


if __name__ == "__main__":
    code = main()
    # No thread of the channel may keep the process: all that matters has been said.
    logging.shutdown()
    os._exit(code)
