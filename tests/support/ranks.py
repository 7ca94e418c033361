"""Runs the real ranks of one incarnation against a real channel server, without supervisor or driver.

`Stage` plays the driver: it records what rank 0 says and answers each report by a function of the test. Ranks are real
processes of real scripts.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpcsched.channel.keys import create_keys
from hpcsched.channel.server import Arrived, Server
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec
from hpcsched.runfolder import RunFolder
from hpcsched.wire import FromDriver, LeaveOrder, Leaving, Reply, Report

T = TypeVar("T")
LIMIT_S = 200.0
"""Longest wait for anything. Four ranks that start on two busy cores took more than 60 s of importing."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stage:
    """A run folder, a server, and the ranks of one trial at a time."""

    def __init__(self, root: Path, *, answer: Callable[[Report], str | None] = lambda report: None) -> None:
        self.folder = RunFolder(root)
        root.mkdir(mode=0o700, exist_ok=True)
        self.keys = create_keys(self.folder.keys)
        self.heard: list[Any] = []
        self.answer = answer
        self.silent = False
        self._news: queue.Queue[Any] = queue.Queue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.server = Server(self.keys, "tcp://127.0.0.1", deliver=self._deliver)

    def _deliver(self, arrived: Arrived) -> None:
        message = arrived.message
        self.heard.append(message)
        if isinstance(message, Report) and not self.silent:
            self.say(
                message,
                Reply(
                    trial_id=message.trial_id,
                    incarnation=message.incarnation,
                    seq=message.seq,
                    leave=self.answer(message),
                ),
            )
        self._news.put(message)

    def say(self, to: Any, message: FromDriver) -> None:
        self.server.send(f"{to.trial_id}.{to.incarnation}.rank0", message)

    def order_leave(self, spec: LaunchSpec, reason: str) -> None:
        self.say(spec, LeaveOrder(trial_id=spec.trial_id, incarnation=spec.incarnation, reason=reason))

    def spec(self, script: Path, *, world_size: int = 1, incarnation: int = 1, **changes: Any) -> LaunchSpec:
        return msgspec.structs.replace(
            LaunchSpec(
                trial_id=3,
                incarnation=incarnation,
                config={"learning_rate": 0.1},
                command=(sys.executable, str(script)),
                cwd=str(script.parent),
                env={},
                nodes=(LaunchNode("here", tuple(map(str, range(world_size))), (0,), None, 0, ()),),
                master_addr="127.0.0.1",
                master_port=free_port(),
                channel=Channel(
                    (f"tcp://127.0.0.1:{self.server.port}",),
                    str(self.keys.server_public_file),
                    str(self.keys.client_secret_file),
                ),
                run_dir=str(self.folder.root),
                metric="accuracy",
                mode="max",
                max_iterations=5,
                seed=7,
                restore=None,
                restore_iteration=0,
                invented_gpus=True,
                group_timeout_s=150.0,
            ),
            **changes,
        )

    def start(
        self, spec: LaunchSpec, *, preexec: Callable[[], None] | None = None
    ) -> list[subprocess.Popen[bytes]]:
        """What a supervisor does, as little as a rank needs."""
        file = self.folder.launch_file(spec.trial_id, spec.incarnation)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(spec))
        ranks = []
        for rank in range(spec.world_size):
            log = self.folder.rank_log(spec.trial_id, spec.incarnation, rank)
            environ = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(spec.world_size),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": spec.master_addr,
                "MASTER_PORT": str(spec.master_port),
                "OMP_NUM_THREADS": "1",
                "HPCSCHED_LAUNCH": str(file),
            }
            with log.open("wb") as out:
                ranks.append(
                    subprocess.Popen(spec.command, env=environ, cwd=spec.cwd, stdout=out, stderr=out)
                )
        self._processes += ranks
        return ranks

    def run(self, spec: LaunchSpec) -> list[int]:
        """Exit codes, once all ranks have ended."""
        return [process.wait(LIMIT_S) for process in self.start(spec)]

    def wait_for(self, kind: type[T], such: Callable[[T], bool] = lambda message: True) -> T:
        """The next message of that kind, from now on."""
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                message = self._news.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind.__name__} in {LIMIT_S} s; heard {self.heard}") from None
            if isinstance(message, kind) and such(message):
                return message

    def of(self, kind: type[T]) -> list[T]:
        return [message for message in self.heard if isinstance(message, kind)]

    @property
    def goodbye(self) -> Leaving:
        return self.of(Leaving)[-1]

    def log(self, spec: LaunchSpec, rank: int = 0) -> str:
        return self.folder.rank_log(spec.trial_id, spec.incarnation, rank).read_text()

    def checkpoints(self, incarnation: int = 1) -> list[str]:
        return sorted(path.name for path in self.folder.incarnation(3, incarnation).glob("checkpoint-*"))

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.server.close(flush_s=0.1)
