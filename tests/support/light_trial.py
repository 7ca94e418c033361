"""A trial script without torch: it speaks the channel as rank 0 of the runtime does, and misbehaves as its config says.

Config: `height` (the metric's limit: metric = height * (1 - 1 / (1 + iteration))), `step_s` (seconds of an iteration on one
rank), `save` (after each report: "each", or only on leaving: "leave"), `save_s` (how long a save takes), `do` (what goes wrong, a key of `MISDEEDS`), `at` (in
which iteration), `until` (the last incarnation that does it; 0: all do).

Only rank 0 does anything; the others wait until it is gone, as they would in a collective. Checkpoints are folders that
appear by one rename: `manifest.json` and `state.json`, which holds the iteration.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hpcsched.channel.client import Client
from hpcsched.launchspec import LaunchSpec
from hpcsched.runfolder import RunFolder
from hpcsched.wire import CheckpointTrouble, LeaveOrder, Leaving, RankHello, Reply, Report, SavedCheckpoint


class Light:
    """One incarnation's rank 0."""

    def __init__(self, launch: LaunchSpec) -> None:
        self.launch = launch
        self.config = launch.config
        self.folder = RunFolder(Path(launch.run_dir))
        self.own = self.folder.incarnation(launch.trial_id, launch.incarnation)
        self.ids = (launch.trial_id, launch.incarnation)
        self.client = Client(
            launch.channel.endpoints,
            launch.channel.server_key_file,
            launch.channel.client_key_file,
            f"{launch.trial_id}.{launch.incarnation}.rank0",
        )
        self.iteration = 0
        self.saved = 0
        self.leave: str | None = None
        self.answered = 0
        self.ignores_orders = False

    def restore(self) -> None:
        if self.launch.restore is not None:
            state = json.loads((Path(self.launch.restore) / "state.json").read_text())
            assert state["config"] == self.config, "a checkpoint of another configuration"
            assert state["iteration"] == self.launch.restore_iteration
            self.iteration = self.saved = state["iteration"]

    def save(self) -> None:
        if self.saved == self.iteration:
            return
        began = time.monotonic()
        target = self.folder.checkpoint(*self.ids, self.iteration)
        fresh = target.with_name(f"{target.name}.tmp-light")
        try:
            fresh.mkdir(mode=0o700)
            time.sleep(float(self.config.get("save_s", 0.0)))
            state = {"iteration": self.iteration, "config": self.config}
            for name, value in (
                ("state.json", state),
                ("manifest.json", {"training_iteration": self.iteration}),
            ):
                with (fresh / name).open("w") as file:
                    json.dump(value, file)
                    file.flush()
                    os.fsync(file.fileno())
            fresh.rename(target)
        except OSError as error:
            self.client.send(CheckpointTrouble(*self.ids, training_iteration=self.iteration, why=str(error)))
            return
        self.saved = self.iteration
        self.client.send(
            SavedCheckpoint(
                *self.ids, training_iteration=self.iteration, save_s=time.monotonic() - began, num_bytes=100
            )
        )

    def hear(self, timeout_s: float) -> None:
        message = self.client.receive(timeout_s)
        if isinstance(message, Reply):
            self.answered = max(self.answered, message.seq)
            self.leave = self.leave or message.leave
        elif isinstance(message, LeaveOrder):
            self.leave = self.leave or message.reason

    def report(self, metrics: dict[str, float | None], problems: dict[str, str] | None = None) -> None:
        seq = self.iteration
        self.client.send(
            Report(
                *self.ids, seq=seq, training_iteration=self.iteration, metrics=metrics, problems=problems or {},
                time_this_iter_s=self.step_s,
            )
        )  # fmt: skip
        until = time.monotonic() + 5.0
        while self.answered < seq and self.leave is None and time.monotonic() < until:
            self.hear(0.05)

    @property
    def step_s(self) -> float:
        return float(self.config["step_s"]) / self.launch.world_size

    @property
    def metric(self) -> float:
        return float(self.config["height"]) * (1 - 1 / (1 + self.iteration))

    def misbehaves(self) -> str:
        until = self.config["until"]
        if self.iteration != self.config["at"] or (until and self.launch.incarnation > until):
            return ""
        return str(self.config["do"])

    def run(self) -> int:
        self.restore()
        MISDEEDS[self.misbehaves()](self)
        self.client.send(
            RankHello(
                *self.ids, pid=os.getpid(), world_size=self.launch.world_size, setup_s={}, restored_iteration=self.iteration
            )
        )  # fmt: skip
        while self.iteration < self.launch.max_iterations:
            end = time.monotonic() + self.step_s
            while (left := end - time.monotonic()) > 0:
                self.hear(min(left, 0.05))
            self.iteration += 1
            metrics: dict[str, float | None] = {self.launch.metric: self.metric}
            problems = None
            if self.config["do"] == "nan" and self.iteration >= self.config["at"]:
                metrics, problems = {self.launch.metric: None}, {self.launch.metric: "nan"}
            elif self.config["do"] == "other metric":
                metrics = {"loss": 1.0}
            else:
                MISDEEDS[self.misbehaves()](self)
            self.report(metrics, problems)
            if self.leave is not None and not self.ignores_orders:
                break
            if self.config["save"] == "each":
                self.save()
            self.client.lost_for_s  # noqa: B018 - as the runtime does, it looks whether the driver lives
            if self.client.lost_for_s > self.launch.driver_lost_s:
                self.leave = "the driver is lost"
                break
        self.save()
        done = self.leave is None
        if self.config["do"] != "no goodbye":
            self.client.send(
                Leaving(
                    *self.ids, how="completed" if done else "preempted", training_iteration=self.iteration, why=self.leave or ""
                )
            )  # fmt: skip
        if self.config["do"] == "report after leaving":
            self.iteration += 1
            self.client.send(
                Report(*self.ids, seq=10**6, training_iteration=self.iteration, metrics={self.launch.metric: 99.0}, time_this_iter_s=0.1)
            )  # fmt: skip
        self.client.close(5.0)
        if self.config["do"] == "exit 5 after leaving":
            return 5
        if self.config["do"] == "hang after leaving":
            _for_ever(self)
        return 0


def _nothing(_: Light) -> None:
    pass


def _crash(light: Light) -> None:
    raise RuntimeError(f"the script breaks in iteration {light.iteration}")


def _for_ever(_: Light) -> None:
    while True:
        time.sleep(3600)


def _huge_line(_: Light) -> None:
    sys.stdout.write("x" * 20_000_000 + "\n")
    sys.stdout.flush()


def _huge_line_then_crash(light: Light) -> None:
    _huge_line(light)
    _crash(light)


def _silent_exit(_: Light) -> None:
    os._exit(0)


def _killed(_: Light) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault(_: Light) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _ignore(light: Light) -> None:
    light.ignores_orders = True


def _out_of_memory(light: Light) -> None:
    raise MemoryError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB")


def _child(light: Light) -> None:
    """A child of its own process group. Its argument tells whose it is."""
    subprocess.Popen(["tail", "-f", str(light.folder.experiment)], process_group=0)


def _child_then_crash(light: Light) -> None:
    _child(light)
    _crash(light)


def _daemon(light: Light) -> None:
    """A grandchild with a session, a parent (init or a reaper) and an environment of its own, deaf to signals."""
    script = 'trap "" TERM INT HUP; (setsid env -i tail -f "$0" &)'
    subprocess.run(["sh", "-c", script, str(light.folder.experiment)], check=True)


def _escape(light: Light) -> None:
    print("\x1b]0;owned\x07\x1b[2J\x1b[31mred\x00")
    raise RuntimeError("\x1b[2J$(touch owned); `touch owned`")


def _huge_message(light: Light) -> None:
    light.report(
        {f"m{number}": float(number) for number in range(20_000)} | {light.launch.metric: light.metric}
    )


def _too_large_message(light: Light) -> None:
    """Our own end refuses it, as it would for the real runtime."""
    light.report({f"metric-{number:060}": float(number) for number in range(30_000)})


def _infinite(light: Light) -> None:
    light.report({light.launch.metric: math.inf})


def _flood(light: Light) -> None:
    iteration = light.iteration
    for _ in range(50_000):
        light.client.send(
            Report(*light.ids, seq=iteration, training_iteration=iteration, metrics={light.launch.metric: 0.1}, time_this_iter_s=0.0)
        )  # fmt: skip


def _slow_start(_: Light) -> None:
    time.sleep(2.0)


MISDEEDS: dict[str, Callable[[Light], None]] = {
    "": _nothing,
    "crash": _crash,
    "hang": _for_ever,
    "nan": _nothing,
    "other metric": _nothing,
    "no goodbye": _nothing,
    "report after leaving": _nothing,
    "exit 5 after leaving": _nothing,
    "hang after leaving": _nothing,
    "huge line": _huge_line,
    "huge line, then crash": _huge_line_then_crash,
    "exit 0": _silent_exit,
    "killed": _killed,
    "segfault": _segfault,
    "ignore": _ignore,
    "out of memory": _out_of_memory,
    "child": _child,
    "child, then crash": _child_then_crash,
    "daemon": _daemon,
    "escape": _escape,
    "huge message": _huge_message,
    "too large message": _too_large_message,
    "infinite": _infinite,
    "flood": _flood,
    "slow start": _slow_start,
}


def main() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    launch = msgspec.json.decode(Path(os.environ["HPCSCHED_LAUNCH"]).read_bytes(), type=LaunchSpec)
    gone = RunFolder(Path(launch.run_dir)).incarnation(launch.trial_id, launch.incarnation) / "rank-0-is-gone"
    if int(os.environ["RANK"]) != 0:
        while not gone.exists():
            time.sleep(0.02)
        return 0
    code = Light(launch).run()
    gone.touch()
    return code


if __name__ == "__main__":
    sys.exit(main())
