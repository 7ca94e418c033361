"""Spares as processes: they are started where some are missing, heard, given to incarnations, and ended (which of them waits where: `spares`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from hpcsched import wire
from hpcsched.channel.server import Arrived, Server
from hpcsched.config.spec import ExperimentSpec
from hpcsched.driver.crew import SILENT_AFTER_S, supervisor_peer
from hpcsched.driver.private import write_private
from hpcsched.driver.spares import Spares
from hpcsched.launch.launcher import Launcher
from hpcsched.launch.zygote import script_of
from hpcsched.launch.zygote_process import environment_fits
from hpcsched.launchspec import Channel, LaunchSpec, SpareSpec
from hpcsched.runfolder import RunFolder


class SpareKeeper:
    """Of one driver life; all in the loop's thread."""

    def __init__(
        self,
        spec: ExperimentSpec,
        folder: RunFolder,
        launcher: Launcher,
        server: Server,
        channel: Channel,
        *,
        warm: bool,
        one_node: bool,
        note: Callable[[str, float], None],
    ) -> None:
        """`warm`: there are to be any, where the launcher can keep them. `one_node`: each serves alone, for its ranks cannot talk to those of another step. `note`: into
        the log and to whoever looks on."""
        self._folder = folder
        self._launcher = launcher
        self._server = server
        self._channel = channel
        self._preload = spec.trial.preload
        self._env = spec.trial.env
        cold = environment_fits(self._env, self._env)
        self._warm = warm and launcher.keeps_spares and cold is None
        self._untold = [f"trials start cold: {cold}"] if warm and cold is not None else []
        """What the log has still to say, once."""
        self._one_node = one_node
        self._apart_is_told = False
        self._spares = Spares(spec.launcher.spares_per_node)
        self._start_limit_s = spec.timeouts.start
        self._note = note

    def says(self, arrived: Arrived, now: float) -> None:
        message = arrived.message
        number = message.trial_id
        match message:
            case wire.SupervisorHello(step_id=step_id):
                self._spares.heard(number, now)
                if step_id:
                    self._launcher.note_step(number, 0, step_id)
                self._server.send(arrived.peer, wire.SupervisorWelcome(number, 0))
            case wire.Heartbeat():
                self._spares.heard(number, now)
                self._server.send(arrived.peer, wire.SupervisorWelcome(number, 0))
            case wire.SpareReady(cold=cold):
                self._spares.ready(number, cold, now)
                if cold is not None:
                    self._note(f"trials start cold: {cold}", now)
                    self._end(number)
            case _:
                pass

    def ended(self, number: int, why: str, now: float) -> None:
        """Its step has, or never began."""
        self._launcher.forget(number, 0)
        if self._spares.lost(number, now):
            self._note(f"spare {number} has ended: {why}", now)

    def keep(self, nodes: Iterable[str], now: float, *, somebody_trains: bool) -> None:
        """So many on each of `nodes`. They import while the first trials do: whoever comes next then starts in a moment."""
        while self._untold:
            self._note(self._untold.pop(0), now)
        if not self._warm:
            return
        for number in self._spares.silent(now, SILENT_AFTER_S):
            self._end(number)
        for number, node in self._spares.late(now, self._start_limit_s):
            self._end(number)
            self._note(
                f"spare {number} on {node} was not ready within {self._start_limit_s:.6g} s ([timeouts] start) and is ended; "
                "trials there start cold",
                now,
            )
        if not somebody_trains:
            return  # there is nothing yet (or any more) to be ready for
        for number, node in self._spares.missing(nodes, now):
            spec = SpareSpec(
                number=number,
                node=node,
                channel=self._channel,
                run_dir=str(self._folder.root),
                preload=self._preload,
                env=self._env,
            )
            try:
                write_private(self._folder.spare_file(number), msgspec.json.encode(spec))
            except OSError as error:
                self._spares.lost(number, now)
                self._note(f"no spare on {node}: {error}", now)
                continue
            self._launcher.start_spare(spec)

    def give(self, spec: LaunchSpec, now: float) -> list[int] | None:
        """Have the spares of all its nodes take the incarnation; None: it starts cold."""
        if not self._warm or script_of(spec.command, spec.wrap, _rank_path()) is None:
            return None
        if self._one_node and len(spec.nodes) > 1:
            if not self._apart_is_told:
                self._apart_is_told = True
                self._note(
                    "trials on several nodes start cold: on this network (HPE Slingshot) ranks can only talk within one Slurm step, and each spare "
                    "is a step of its own",
                    now,
                )
            return None
        spares = self._spares.take([node.node for node in spec.nodes], now, SILENT_AFTER_S)
        if spares is None:
            return None
        launch_file = str(self._folder.launch_file(spec.trial_id, spec.incarnation))
        for node, number in spares.items():
            self._server.send(supervisor_peer(number, 0, node), wire.TakeTrial(number, 0, launch_file))
        return list(spares.values())

    def end_all(self) -> None:
        for number, _ in self._spares.drop_all():
            self._end(number)

    def _end(self, number: int) -> None:
        self._launcher.kill(number, 0)


def _rank_path() -> str:
    """PATH as ranks see it: this interpreter's folder first, in a virtual environment."""
    folder = str(Path(sys.executable).parent)
    return os.pathsep.join(
        filter(None, (folder if sys.prefix != sys.base_prefix else "", os.environ.get("PATH", "")))
    )
