"""What a restart costs, cold, warm, and at the least: `python -m tests.benchmarks.restart [--json] [--launcher srun]`.

For 2, 4 and 8 ranks, side by side in one run, with the real launcher, supervisors, spares, channel and runtime, and a small
model that is saved and restored. Prints for each number of ranks::

    {"cold_s": from the order to start until all ranks are up and restored, by a new process a rank,
     "warm_s": the same by ranks forked from spares that were waiting,
     "limit_s": the same ranks leave their process groups and form them again, nothing else,
     "parts": {"cold": {"leave", "save", "end", "step", "imports", "group", "restore", "first_iteration", "other"}, "warm": ...}}

`leave`: from the order until rank 0 has said goodbye, less `save`; `end`: from then until the supervisors have proven all
processes gone; `step`: until the last supervisor is there; `imports`: from the begin of rank 0's process to hpcsched.trial(); `prepare`: the
model; `other`: what is left of cold_s or warm_s (starting processes, messages). All numbers are of this machine, now: compare
those of one run with each other. With `--launcher srun` it must run inside an allocation, one supervisor a node; the ranks
are spread over `--nodes` (2) of them.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from hpcsched import wire
from hpcsched.channel.keys import create_keys
from hpcsched.channel.server import Arrived, Server
from hpcsched.launch.launcher import Launcher, LaunchNotice, StepEnded, StepRefused
from hpcsched.launch.local import LocalLauncher
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec, SpareSpec
from hpcsched.runfolder import RunFolder

RANKS = (2, 4, 8)
TRIAL = Path(__file__).with_name("restart_trial.py")
LIMIT_S = 300.0
ITERATIONS = 10**6
ENV = {"OMP_NUM_THREADS": "1"}


class Bench:
    """A driver that does nothing but start, ask to leave, and look at the clock."""

    def __init__(self, folder: RunFolder, addresses: Sequence[str], nodes: Sequence[tuple[str, str]]) -> None:
        """`nodes`: name, and the address that other nodes reach it by."""
        self._folder = folder
        self._nodes = nodes
        self._inbox: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()
        self._keys = create_keys(folder.keys)
        self._server = Server(self._keys, "tcp://0.0.0.0", deliver=self._deliver)
        self._channel = Channel(
            tuple(f"tcp://{address}:{self._server.port}" for address in addresses),
            str(self._keys.server_public_file),
            str(self._keys.client_secret_file),
        )
        self._launcher: Launcher | None = None
        self._num_spares = 0

    def use(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def notify(self, notice: LaunchNotice) -> None:
        self._inbox.put((time.monotonic(), notice))

    def close(self) -> None:
        assert self._launcher is not None
        self._launcher.close()
        self._server.close()

    def _deliver(self, arrived: Arrived) -> None:
        message = arrived.message
        ids = (message.trial_id, message.incarnation)
        match message:
            case wire.SupervisorHello() | wire.Heartbeat():
                self._server.send(arrived.peer, wire.SupervisorWelcome(*ids))
            case wire.Report(seq=seq):
                self._server.send(arrived.peer, wire.Reply(*ids, seq))
            case _:
                pass
        self._inbox.put((time.monotonic(), message))

    def _until(self, *wanted: Callable[[Any], bool]) -> list[tuple[float, Any]]:
        """(when, message) of the first that each of `wanted` takes; what else comes is passed over."""
        found: list[tuple[float, Any] | None] = [None] * len(wanted)
        end = time.monotonic() + LIMIT_S
        while None in found:
            try:
                at, message = self._inbox.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise SystemExit(f"restart: waited {LIMIT_S:g} s in vain; see {self._folder.root}") from None
            if isinstance(message, StepRefused | wire.SupervisorRefuses | wire.CheckpointTrouble) or (
                isinstance(message, wire.Leaving) and message.how == "failed"
            ):
                raise SystemExit(f"restart: {message}")
            for place, takes in enumerate(wanted):
                if found[place] is None and takes(message):
                    found[place] = (at, message)
        return [item for item in found if item is not None]

    # ---- one trial

    def spec(self, trial_id: int, incarnation: int, num_ranks: int, restore: int | None) -> LaunchSpec:
        share = num_ranks // len(self._nodes)
        gpus = tuple(str(number) for number in range(share))
        nodes = tuple(
            LaunchNode(name, gpus, (), None, place * share, gpus)
            for place, (name, _) in enumerate(self._nodes)
        )
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        before = self._folder.checkpoint(trial_id, incarnation - 1, restore or 0)
        spec = LaunchSpec(
            trial_id=trial_id,
            incarnation=incarnation,
            config={},
            command=(sys.executable, str(TRIAL)),
            cwd=str(TRIAL.parent),
            env=ENV,
            nodes=nodes,
            master_addr=self._nodes[0][1],
            master_port=port,
            channel=self._channel,
            run_dir=str(self._folder.root),
            metric="score",
            mode="max",
            max_iterations=ITERATIONS,
            seed=0,
            restore=None if restore is None else str(before),
            restore_iteration=restore or 0,
            invented_gpus=True,
            checkpoint_budget=0.0,
        )
        file = self._folder.launch_file(trial_id, incarnation)
        file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        file.touch(0o600)
        file.write_bytes(msgspec.json.encode(spec))
        return spec

    def start(self, spec: LaunchSpec, spares: dict[str, int] | None = None) -> dict[str, float]:
        """Parts of the start, and "total"; returns after the first report."""
        assert self._launcher is not None
        began = time.monotonic()
        if spares is None:
            self._launcher.start(spec)
        else:
            file = str(self._folder.launch_file(spec.trial_id, spec.incarnation))
            for node, number in spares.items():
                self._server.send(f"{number}.0.sup.{node}", wire.TakeTrial(number, 0, file))
            self._launcher.adopt(spec, list(spares.values()))
        ids = (spec.trial_id, spec.incarnation)

        def of(kind: type[Any], node: str | None = None) -> Callable[[Any], bool]:
            return lambda message: (
                isinstance(message, kind)
                and (message.trial_id, message.incarnation) == ids
                and (node is None or message.node == node)
            )

        hellos = [of(wire.SupervisorHello, node.node) for node in spec.nodes]
        *stood, (up_at, hello), (_, report) = self._until(*hellos, of(wire.RankHello), of(wire.Report))
        parts = {"step": max(at for at, _ in stood) - began}
        parts |= {
            name: float(hello.setup_s.get(name, 0.0)) for name in ("imports", "group", "prepare", "restore")
        }
        parts["other"] = max(0.0, up_at - began - sum(parts.values()))
        parts["first_iteration"] = report.time_this_iter_s
        parts["total"] = up_at - began
        return parts

    def leave(self, spec: LaunchSpec) -> tuple[int, dict[str, float]]:
        """(iteration of the checkpoint, parts)."""
        ids = (spec.trial_id, spec.incarnation)
        began = time.monotonic()
        peer = f"{spec.trial_id}.{spec.incarnation}.rank0"
        self._server.send(peer, wire.LeaveOrder(*ids, "resize"))

        def goodbye(node: str) -> Callable[[Any], bool]:
            return lambda message: (
                isinstance(message, wire.SupervisorGoodbye)
                and (message.trial_id, message.incarnation, message.node) == (*ids, node)
            )

        (_, saved), (left_at, left), *gone = self._until(
            lambda message: isinstance(message, wire.SavedCheckpoint),
            lambda message: isinstance(message, wire.Leaving),
            *[goodbye(node.node) for node in spec.nodes],
        )
        parts = {
            "leave": left_at - began - saved.save_s,
            "save": saved.save_s,
            "end": max(at for at, _ in gone) - left_at,
        }
        return left.training_iteration, parts

    def spares(self) -> dict[str, int]:
        """node -> number of a spare that is ready there."""
        assert self._launcher is not None
        numbers = {}
        for node, _ in self._nodes:
            number = self._num_spares
            self._num_spares += 1
            spec = SpareSpec(number, node, self._channel, str(self._folder.root), (), ENV)
            file = self._folder.spare_file(number)
            file.parent.mkdir(mode=0o700, exist_ok=True)
            file.touch(0o600)
            file.write_bytes(msgspec.json.encode(spec))
            self._launcher.start_spare(spec)
            numbers[node] = number
        ready = self._until(
            *[
                lambda message, number=number: (
                    isinstance(message, wire.SpareReady) and message.trial_id == number
                )
                for number in numbers.values()
            ]
        )
        for _, message in ready:
            if message.cold is not None:
                raise SystemExit(f"restart: the spare on {message.node} would serve cold: {message.cold}")
        return numbers

    def measure(self, trial_id: int, num_ranks: int) -> dict[str, Any]:
        first = self.spec(trial_id, 1, num_ranks, None)
        self.start(first)
        iteration, left = self.leave(first)
        cold = self.spec(trial_id, 2, num_ranks, iteration)
        cold_parts = left | self.start(cold)
        # Spares import while the trial trains, as in a real run; they are waited for, so that nothing runs beside the start.
        spares = self.spares()
        iteration, left = self.leave(cold)
        warm = self.spec(trial_id, 3, num_ranks, iteration)
        warm_parts = left | self.start(warm, spares)
        self.leave(warm)
        self._until(lambda message: isinstance(message, StepEnded))
        lines = self._folder.rank_log(trial_id, 3, 0).read_text().splitlines()
        limit_s = next(float(line.split()[1]) for line in lines if line.startswith("limit_s"))
        return {
            "cold_s": cold_parts.pop("total"),
            "warm_s": warm_parts.pop("total"),
            "limit_s": limit_s,
            "parts": {"cold": cold_parts, "warm": warm_parts},
        }


def _median(found: Sequence[Any]) -> Any:
    if isinstance(found[0], dict):
        return {key: _median([each[key] for each in found]) for key in found[0]}
    return round(median(found), 4)


def _bench(kind: str, folder: RunFolder, num_nodes: int) -> Bench:
    if kind == "local":
        bench = Bench(folder, ["127.0.0.1"], [(socket.gethostname(), "127.0.0.1")])
        bench.use(LocalLauncher(folder, notify=bench.notify))
        return bench
    from hpcsched.driver.addresses import addresses_towards
    from hpcsched.launch.allocation import read_allocation
    from hpcsched.launch.command import run_command
    from hpcsched.launch.probe import probe_machine
    from hpcsched.launch.srun import SrunLauncher
    from hpcsched.topology.assemble import MachineOptions

    allocation = read_allocation(os.environ, run_command)
    if allocation is None:
        raise SystemExit(
            "restart: --launcher srun needs an allocation: salloc -N 2 ... python -m tests.benchmarks.restart"
        )
    machine = probe_machine(allocation, MachineOptions(gpus_per_atom=1), os.environ, run_command).machine
    nodes = [(node.name, node.address or node.name) for node in machine.nodes[:num_nodes]]
    bench = Bench(folder, addresses_towards([address for _, address in nodes]), nodes)
    bench.use(
        SrunLauncher(folder, allocation=allocation, machine=machine, table=_Options(), notify=bench.notify)
    )
    return bench


class _Options(msgspec.Struct, frozen=True):
    binding: Any = "overlap"
    srun_args: tuple[str, ...] = ()
    max_steps: int | None = 64
    spares_per_node: int = 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.restart")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--launcher", choices=("local", "srun"), default="local")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument(
        "--nodes", type=int, default=2, help="for srun: how many nodes the ranks are spread over"
    )
    parser.add_argument("--repeat", type=int, default=1, help="medians of so many")
    options = parser.parse_args(arguments)
    ranks = [int(word) for word in options.ranks.split(",")]
    # Beside the working folder, not in /tmp: with srun every node must see it.
    where = None if options.launcher == "local" else str(Path.cwd())
    with tempfile.TemporaryDirectory(prefix="restart-", dir=where) as folder:
        bench = _bench(options.launcher, RunFolder(Path(folder).resolve()), options.nodes)
        try:
            found = {
                str(num): _median([bench.measure(100 * num + turn, num) for turn in range(options.repeat)])
                for num in ranks
            }
        finally:
            bench.close()
    if options.json:
        print(json.dumps(found))
        return 0
    for num, row in found.items():
        print(
            f"{num} ranks: cold {row['cold_s']:.2f} s, warm {row['warm_s']:.2f} s (1/{row['cold_s'] / row['warm_s']:.0f}), "
            f"limit {row['limit_s']:.3f} s (warm is {row['warm_s'] / row['limit_s']:.1f} times that)"
        )
        for start, parts in row["parts"].items():
            print(f"    {start}  " + "  ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
