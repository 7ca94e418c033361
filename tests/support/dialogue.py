"""A driver's end of the channel for tests of supervisors and launchers: a real Server, launch files, and waiting.

Pure waiting on conditions with a limit; nothing sleeps for a fixed time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpcsched.channel.keys import Keys, create_keys
from hpcsched.channel.server import Arrived, Server
from hpcsched.launch.launcher import LaunchNotice
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec
from hpcsched.runfolder import RunFolder
from hpcsched.wire import FromDriver, Heartbeat, KillRanks, SupervisorHello, SupervisorWelcome

LIMIT_S = 30.0

T = TypeVar("T")


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as test:
        test.bind((address, 0))
        return int(test.getsockname()[1])


@dataclass
class FakeDriver:
    """Listens, welcomes, remembers. `endpoint_host`: the address that supervisors reach it by."""

    folder: RunFolder
    endpoint_host: str = "127.0.0.1"
    messages: list[Any] = field(default_factory=list)
    notices: list[LaunchNotice] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    on_hello: Callable[[SupervisorHello], None] | None = None

    def __post_init__(self) -> None:
        self.keys: Keys = create_keys(self.folder.keys)
        self.server: Server = Server(self.keys, deliver=self._deliver)

    # ---- channel

    def _deliver(self, arrived: Arrived) -> None:
        message = arrived.message
        if isinstance(message, SupervisorHello | Heartbeat):
            self.server.send(arrived.peer, SupervisorWelcome(message.trial_id, message.incarnation))
        if isinstance(message, SupervisorHello) and self.on_hello is not None:
            self.on_hello(message)
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def notify(self, notice: LaunchNotice) -> None:
        with self.changed:
            self.notices.append(notice)
            self.changed.notify_all()

    def all_of(self, kind: type[T], **fields: object) -> list[T]:
        with self.changed:
            return [
                each
                for each in [*self.messages, *self.notices]
                if isinstance(each, kind)
                and all(getattr(each, name) == value for name, value in fields.items())
            ]

    def wait_for(self, kind: type[T], *, num: int = 1, limit_s: float = LIMIT_S, **fields: object) -> list[T]:
        """The first `num` messages or notices of a kind, with these field values."""
        end = time.monotonic() + limit_s
        with self.changed:
            while len(found := self.all_of(kind, **fields)) < num:
                left = end - time.monotonic()
                assert left > 0, (
                    f"{num} {kind.__name__} {fields} did not come within {limit_s:g} s; came: "
                    f"{[m for m in self.messages if not isinstance(m, Heartbeat)]}, notices: {self.notices}; logs:\n{self.logs()}"
                )
                self.changed.wait(min(left, 0.5))
        return found[:num]

    def one(self, kind: type[T], *, limit_s: float = LIMIT_S, **fields: object) -> T:
        return self.wait_for(kind, limit_s=limit_s, **fields)[0]

    def tell_supervisors(self, spec: LaunchSpec, message: FromDriver) -> None:
        for node in spec.nodes:
            self.server.send(f"{spec.trial_id}.{spec.incarnation}.sup.{node.node}", message)

    def kill(self, spec: LaunchSpec, why: str = "test") -> None:
        self.tell_supervisors(spec, KillRanks(spec.trial_id, spec.incarnation, why))

    def logs(self) -> str:
        return "\n".join(
            f"--- {file.relative_to(self.folder.root)}\n{file.read_text(errors='replace')[-1500:]}"
            for file in sorted(self.folder.root.glob("trials/*/*/*.log"))
        )

    # ---- launch files

    def spec(
        self,
        script: str | Sequence[str],
        *,
        trial_id: int = 0,
        incarnation: int = 1,
        nodes: Sequence[LaunchNode] = (),
        num_ranks: int = 1,
        **changes: Any,
    ) -> LaunchSpec:
        """Write a launch file. `script`: Python source that each rank runs, or a whole command."""
        command = (sys.executable, "-c", script) if isinstance(script, str) else tuple(script)
        gpus = tuple(str(number) for number in range(num_ranks))
        cores = tuple(sorted(os.sched_getaffinity(0)))
        fields: dict[str, Any] = {
            "trial_id": trial_id,
            "incarnation": incarnation,
            "config": {"learning_rate": 0.1},
            "command": command,
            "cwd": str(self.folder.root),
            "env": {},
            "nodes": tuple(nodes) or (LaunchNode("here", gpus, cores, None, 0, gpus),),
            "master_addr": "127.0.0.1",
            "master_port": free_port(),
            "channel": Channel(
                (f"tcp://{self.endpoint_host}:{self.server.port}",),
                str(self.keys.server_public_file),
                str(self.keys.client_secret_file),
            ),
            "run_dir": str(self.folder.root),
            "metric": "accuracy",
            "mode": "max",
            "max_iterations": 10,
            "seed": 0,
            "restore": None,
            "restore_iteration": 0,
            "invented_gpus": True,
            "heartbeat_s": 0.2,
        }
        made = LaunchSpec(**(fields | changes))
        file = self.folder.launch_file(trial_id, incarnation)
        file.parent.mkdir(mode=0o700, parents=True)
        file.write_bytes(msgspec.json.encode(made))
        file.chmod(0o600)
        return made

    def rank_log(self, spec: LaunchSpec, rank: int = 0) -> str:
        return self.folder.rank_log(spec.trial_id, spec.incarnation, rank).read_text(errors="replace")

    def wait_log(self, spec: LaunchSpec, text: str, *, rank: int = 0, limit_s: float = LIMIT_S) -> str:
        """The rank's log once it holds `text`."""
        file = self.folder.rank_log(spec.trial_id, spec.incarnation, rank)
        wait_until(
            lambda: file.exists() and text in file.read_text(errors="replace"),
            lambda: f"{text!r} is in the log of rank {rank}; logs:\n{self.logs()}",
            limit_s=limit_s,
        )
        return file.read_text(errors="replace")


def wait_until(
    condition: Callable[[], object], what: str | Callable[[], str], *, limit_s: float = LIMIT_S
) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(
                f"waited {limit_s:g} s in vain until {what if isinstance(what, str) else what()}"
            )
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """The process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


@contextlib.contextmanager
def driver_in(root: Path, *, endpoint_host: str = "127.0.0.1") -> Iterator[FakeDriver]:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = FakeDriver(RunFolder(root), endpoint_host)
    try:
        yield made
    finally:
        made.server.close()
