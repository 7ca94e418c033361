"""Which spares a driver starts, and what it says of those that it does not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from hpcsched import wire
from hpcsched.channel.server import Arrived
from hpcsched.driver.sparekeeper import SpareKeeper
from hpcsched.launchspec import Channel, LaunchSpec, SpareSpec
from hpcsched.runfolder import RunFolder


class Told:
    """Stands in for the launcher, the channel and the log."""

    def __init__(self, root: Path, env: dict[str, str], **options: Any) -> None:
        self.started: list[SpareSpec] = []
        self.notes: list[str] = []
        trial = SimpleNamespace(preload=("datasets",), env=env)
        spec: Any = SimpleNamespace(
            trial=trial, launcher=SimpleNamespace(spares_per_node=1), timeouts=SimpleNamespace(start=300.0)
        )
        self.killed: list[int] = []
        launcher: Any = SimpleNamespace(
            start_spare=self.started.append,
            forget=lambda *_: None,
            kill=lambda number, _: self.killed.append(number),
            keeps_spares=options.pop("keeps_spares", True),
        )
        server: Any = SimpleNamespace(send=lambda *_: None)
        folder = RunFolder(root)
        folder.spare_file(0).parent.mkdir()
        self.keeper = SpareKeeper(
            spec,
            folder,
            launcher,
            server,
            Channel(("tcp://127.0.0.1:1",), "a", "b"),
            note=lambda text, _: self.notes.append(text),
            **{"warm": True, "one_node": False, **options},
        )
        for now in (1.0, 2.0):
            self.keeper.keep(["n1", "n2"], now, somebody_trains=True)

    def ready(self) -> None:
        """All spares have preloaded."""
        for spec in self.started:
            ready = wire.SpareReady(spec.number, 0, node=spec.node, pid=1, cold=None, preload_s=1.0)
            self.keeper.says(Arrived(f"{spec.number}.0.sup.{spec.node}", ready, 3.0), 3.0)


def test_a_spare_is_told_the_environment_of_the_trials(tmp_path: Path) -> None:
    told = Told(tmp_path, {"LD_PRELOAD": "libjemalloc.so", "PYTORCH_ALLOC_CONF": "x:y"})
    spec, _ = told.started
    assert spec.env == {"LD_PRELOAD": "libjemalloc.so", "PYTORCH_ALLOC_CONF": "x:y"}
    file = RunFolder(tmp_path).spare_file(0)
    assert msgspec.json.decode(file.read_bytes(), type=SpareSpec) == spec
    assert file.stat().st_mode & 0o777 == 0o600
    assert not told.notes


def test_why_no_spares_are_kept_for_an_environment_is_said_once(tmp_path: Path) -> None:
    told = Told(tmp_path, {"OMP_PROC_BIND": "close"})
    assert not told.started
    [note] = told.notes
    assert note.startswith("trials start cold: [trial.env] sets OMP_PROC_BIND")


def incarnation_on(*nodes: str) -> LaunchSpec:
    made: Any = SimpleNamespace(
        command=(sys.executable, "train.py"),
        wrap=(),
        nodes=[SimpleNamespace(node=node) for node in nodes],
        trial_id=0,
        incarnation=1,
    )
    return made  # type: ignore[no-any-return]


def test_where_only_ranks_of_one_step_can_talk_spares_serve_one_node_and_the_log_says_so_once(
    tmp_path: Path,
) -> None:
    told = Told(tmp_path, {}, one_node=True)
    told.ready()
    assert told.keeper.give(incarnation_on("n1", "n2"), 4.0) is None
    assert told.keeper.give(incarnation_on("n1", "n2"), 5.0) is None
    [note] = told.notes
    assert note.startswith("trials on several nodes start cold: on this network (HPE Slingshot)")
    assert told.keeper.give(incarnation_on("n2"), 6.0) == [1]


def test_elsewhere_the_spares_of_several_nodes_serve_one_trial(tmp_path: Path) -> None:
    told = Told(tmp_path, {})
    told.ready()
    assert told.keeper.give(incarnation_on("n1", "n2"), 4.0) == [0, 1]
    assert not told.notes


def test_where_a_step_holds_its_gpus_no_spare_is_started(tmp_path: Path) -> None:
    assert not Told(tmp_path, {}, keeps_spares=False).started


def test_a_spare_that_does_not_get_ready_in_time_is_ended_and_told(tmp_path: Path) -> None:
    """Though it is heard of: what it imports hangs, say."""
    told = Told(tmp_path, {})
    ready = wire.SpareReady(1, 0, node="n2", pid=1, cold=None, preload_s=1.0)
    told.keeper.says(Arrived("1.0.sup.n2", ready, 3.0), 3.0)
    for number, node in ((0, "n1"), (1, "n2")):
        told.keeper.says(
            Arrived(f"{number}.0.sup.{node}", wire.Heartbeat(number, 0, node=node), 302.0), 302.0
        )
    told.keeper.keep(["n1", "n2"], 302.0, somebody_trains=True)
    assert told.killed == [0]
    assert told.notes == [
        "spare 0 on n1 was not ready within 300 s ([timeouts] start) and is ended; trials there start cold"
    ]
    assert [spec.number for spec in told.started] == [0, 1]
