"""One task of an MPI trial: `python -P -m hpcsched.launch.mpi_task LAUNCH_FILE [--node NAME]`, started by srun or mpiexec.

Theory. An MPI library finds its peers by what the launcher gives to *each task* (PMIx, srun(1) --mpi), so the node supervisor
cannot start the ranks out of one environment. Here every rank has a task, and every task starts its own rank as a child, with
its own MPI variables. The first task on a node is its supervisor as ever (`hpcsched.launch.supervisor`); the others are its
hands: they connect to it by a socket of that host (abstract, named after run, trial and incarnation; only processes of the same
user are heard), start what it says, tell the end, and kill what it says::

    hand -> supervisor   Here(rank)   Spawned(pid | error)   Ended(code, killed)   Gone
    supervisor -> hand   Spawn(command, env, cores, log_file)   End

When the supervisor's end of the socket closes, a hand kills what it has and leaves. A hand is the subreaper of its rank, so
"gone" is as true here as there. The last words come in order: a hand ends after its supervisor has said goodbye, since
srun --kill-on-bad-exit ends the whole step with the first task that fails.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from hpcsched.launch.environment import mpi_environment
from hpcsched.launch.processes import CleanersLast, descendants, kill_process
from hpcsched.launch.supervisor import (
    KILL_AGAIN_S,
    PR_SET_CHILD_SUBREAPER,
    ChildEnded,
    Refusal,
    Supervisor,
    serve_trial,
    spawn_rank,
)
from hpcsched.launchspec import LaunchNode, LaunchSpec

HANDS_LIMIT_S = 60.0
"""Longest wait until all tasks of a node have found each other."""
ANSWER_LIMIT_S = 20.0
RANK_VARIABLES = ("SLURM_PROCID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class Here(msgspec.Struct, frozen=True, tag=True):
    rank: int


class Spawned(msgspec.Struct, frozen=True, tag=True):
    pid: int | None
    error: str = ""


class Ended(msgspec.Struct, frozen=True, tag=True):
    code: int
    killed: bool


class Gone(msgspec.Struct, frozen=True, tag=True):
    """Nothing of that rank runs any more."""


class Spawn(msgspec.Struct, frozen=True, tag=True):
    command: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    cores: tuple[int, ...]
    log_file: str


class End(msgspec.Struct, frozen=True, tag=True):
    """Kill all that is left."""


FromHand: TypeAlias = Here | Spawned | Ended | Gone
ToHand: TypeAlias = Spawn | End


def socket_name(spec: LaunchSpec) -> bytes:
    """Abstract (unix(7)): nothing to remove, and of this host's network alone."""
    return b"\0hpcsched-%08x-%d-%d" % (zlib.crc32(spec.run_dir.encode()), spec.trial_id, spec.incarnation)


def rank_of(environ: Mapping[str, str]) -> int | None:
    """This task's rank as its launcher says it."""
    text = next((environ[name] for name in RANK_VARIABLES if environ.get(name, "").isdigit()), None)
    return None if text is None else int(text)


def _same_user(connection: socket.socket) -> bool:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", data)[1]
    return uid == os.geteuid()


# ---- the supervisor's side


class _Hand:
    """Another task of this node. Its messages come by a thread of their own."""

    def __init__(self, connection: socket.socket, rank: int, lines: Any) -> None:
        self.rank = rank
        self.pid: int | None = None
        self.gone = False
        self._connection = connection
        self._lines = lines
        self._told_to_end = False

    def say(self, message: ToHand) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(msgspec.json.encode(message) + b"\n")

    def end(self) -> None:
        if not self._told_to_end:
            self._told_to_end = True
            self.say(End())

    def hear(self, timeout_s: float | None) -> FromHand | None:
        """None: it is gone, or says nothing."""
        self._connection.settimeout(timeout_s)
        try:
            line = self._lines.readline()
            return msgspec.json.decode(line, type=FromHand) if line else None
        except (OSError, msgspec.DecodeError):
            return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class MpiSupervisor(Supervisor):
    """The node supervisor whose ranks are started by tasks: its own by itself, each other one by its hand."""

    def __init__(self, spec: LaunchSpec, node: LaunchNode, **options: Any) -> None:
        super().__init__(spec, node, **options)
        self._hands: dict[int, _Hand] = {}
        self._said: deque[tuple[_Hand, FromHand | None]] = deque()

    def run(self) -> int:
        try:
            return super().run()
        finally:
            for hand in self._hands.values():
                hand.close()

    def _start_ranks(self, devices: Sequence[str] | None, cores: Sequence[int]) -> None:
        self._gather_hands()
        super()._start_ranks(devices, cores)
        for hand in self._hands.values():
            threading.Thread(target=self._listen_to, args=(hand,), daemon=True).start()

    def _gather_hands(self) -> None:
        """Raises Refusal when a task of this node is missing."""
        wanted = set(range(self._node.first_rank + 1, self._node.first_rank + len(self._node.gpus)))
        if not wanted:
            return
        until = time.monotonic() + HANDS_LIMIT_S
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(socket_name(self._spec))
            except OSError as error:
                raise Refusal("error", f"{self._node.node}: the tasks' socket: {error}") from error
            listener.listen(len(wanted))
            while wanted != self._hands.keys():
                listener.settimeout(max(0.01, until - time.monotonic()))
                try:
                    connection, _ = listener.accept()
                except TimeoutError as error:
                    missing = ", ".join(map(str, sorted(wanted - self._hands.keys())))
                    raise Refusal(
                        "error", f"{self._node.node}: no task for rank {missing} within {HANDS_LIMIT_S:g} s"
                    ) from error
                if not _same_user(connection):
                    connection.close()
                    continue
                hand = _Hand(connection, -1, connection.makefile("rb"))
                message = hand.hear(ANSWER_LIMIT_S)
                if isinstance(message, Here) and message.rank in wanted:
                    hand.rank = message.rank
                    self._hands[message.rank] = hand
                else:
                    hand.close()

    def _spawn_rank(self, env: dict[str, str], cores: Sequence[int], log_file: Path) -> int:
        rank = int(env["RANK"])
        if rank == self._node.first_rank:
            return super()._spawn_rank(env | mpi_environment(self._environ), cores, log_file)
        hand = self._hands[rank]
        hand.say(
            Spawn((*self._spec.wrap, *self._spec.command), env, self._spec.cwd, tuple(cores), str(log_file))
        )
        answer = hand.hear(ANSWER_LIMIT_S)
        if not isinstance(answer, Spawned) or answer.pid is None:
            raise OSError(answer.error if isinstance(answer, Spawned) else "its task does not answer")
        hand.pid = answer.pid
        return answer.pid

    def _listen_to(self, hand: _Hand) -> None:
        while True:
            message = hand.hear(None)
            self._said.append((hand, message))
            self._inbox.put(ChildEnded())
            if message is None:
                return

    def _reap(self) -> None:
        super()._reap()
        while self._said:
            hand, message = self._said.popleft()
            rank = self._ranks.get(hand.pid or 0)
            match message:
                case Ended(code=code, killed=killed):
                    if rank is not None and rank.code is None:
                        rank.killed = killed
                        self._rank_ended(rank, code)
                case Gone():
                    hand.gone = True
                case None:  # the task has died, and its rank with it
                    hand.gone = True
                    if rank is not None and rank.code is None:
                        self._rank_ended(rank, -signal.SIGKILL)
                case _:
                    pass

    def _kill_what_is_left(self) -> bool:
        for hand in self._hands.values():
            hand.end()
        return super()._kill_what_is_left()

    def _others_are_gone(self) -> bool:
        return all(hand.gone or hand.pid is None for hand in self._hands.values())


# ---- a hand


def be_a_hand(spec: LaunchSpec, rank: int) -> int:
    """To the end; the exit code."""
    connection = _connect(socket_name(spec))
    if connection is None:
        print(f"hpcsched: rank {rank} found no supervisor on this host", file=sys.stderr, flush=True)
        return 3
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor decides
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def say(message: FromHand) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(msgspec.json.encode(message) + b"\n")

    say(Here(rank))
    pid, code, ending, told_gone, lost = 0, None, False, False, False
    pause_s, pending = KILL_AGAIN_S[0], b""
    cleaners_last = CleanersLast()
    while True:
        left = []
        if ending:
            left = descendants(os.getpid())
            for process in cleaners_last.of(left, time.monotonic()):
                kill_process(process)
        code = _reap(pid, code, ending, say)
        if ending and not left and (pid == 0 or code is not None):
            if not told_gone:
                told_gone = True
                say(Gone())
            if lost:
                return 0 if code == 0 else 1
        timeout_s = pause_s if ending and not told_gone else None
        pause_s = min(2 * pause_s, KILL_AGAIN_S[1]) if ending else pause_s
        sources: list[Any] = [wake_read] if lost else [connection, wake_read]
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if wake_read in ready:
            os.read(wake_read, 4096)
        if connection not in ready:
            continue
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(1 << 20)
        if not data:
            ending = lost = True
            continue
        pending += data
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            match msgspec.json.decode(line, type=ToHand):
                case Spawn() as order:
                    try:
                        os.chdir(order.cwd)
                        env = order.env | mpi_environment(os.environ)
                        pid = spawn_rank(order.command, env, order.cores, Path(order.log_file))
                        say(Spawned(pid))
                    except (OSError, ValueError) as error:
                        say(Spawned(None, str(error)))
                case End():
                    ending = True


def _reap(pid: int, code: int | None, ending: bool, say: Any) -> int | None:
    """Take note of every child that has ended; the rank's exit code once it is known."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if ended == 0:
            return code
        if ended == pid and code is None:
            code = os.waitstatus_to_exitcode(status)
            say(Ended(code, killed=ending and code == -signal.SIGKILL))


def _connect(name: bytes) -> socket.socket | None:
    until = time.monotonic() + HANDS_LIMIT_S
    while time.monotonic() < until:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(name)
            if _same_user(connection):
                return connection
        except OSError:
            pass
        connection.close()
        time.sleep(0.05)  # the supervisor first waits for the driver's first word
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hpcsched.launch.mpi_task")
    parser.add_argument("launch_file", type=Path)
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME"))
    args = parser.parse_args(argv)
    try:
        spec = msgspec.json.decode(args.launch_file.read_bytes(), type=LaunchSpec)
    except (OSError, msgspec.DecodeError) as error:
        print(f"hpcsched: {args.launch_file}: {error}", file=sys.stderr)
        return 2
    rank = rank_of(os.environ)
    node = next(
        (each for each in spec.nodes if rank is not None and 0 <= rank - each.first_rank < len(each.gpus)),
        None,
    )
    if node is None or rank is None or node.node != args.node:
        where = "nowhere" if node is None else f"on {node.node}"
        print(
            f"hpcsched: task of rank {rank} runs on {args.node}, and is to run {where}: the launcher has not followed "
            "the host file",
            file=sys.stderr,
        )
        return 3
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if rank != node.first_rank:
        return be_a_hand(spec, rank)
    return serve_trial(args.launch_file, args.node, slurm_picks=False, kind=MpiSupervisor)


if __name__ == "__main__":
    code = main()
    os._exit(code)  # as the supervisor: no thread of the channel may keep the process
