"""A run of 10,000 trials and a million results, looked at: `python -m tests.benchmarks.report [--json]`.

Makes the journal of such a run (the real core over the simulated world, ASHA on 512 atoms, a checkpoint at each leaving)
with the picture that a driver keeps beside it, and seals `log.h5`. Then each look is taken in a process of its own, with its peak
of memory: the first row on the screen of `hpcsched watch`, one refresh of it, `hpcsched status --json`, `hpcsched report`; and
beside them, as the measure of the machine, the reading of the whole journal. `--keep DIR` leaves the run there, and takes one that
is there already.

Seconds are of this machine, wall and processor; compare them with those of reading the journal in the same run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcsched.core.actions import Action
from hpcsched.core.events import Event
from hpcsched.runfolder import RunFolder

NUM_TRIALS = 10_000
NUM_RESULTS = 1_000_000
NUM_ATOMS = 512
GPUS_PER_NODE = 8
LOOKS = ("journal", "first_row", "refresh", "status", "report")


def make_run(root: Path, num_trials: int) -> int:
    """The run folder of a finished run; returns its number of results."""
    from hpcsched.core.scheduler import Scheduler
    from hpcsched.core.settings import AshaSettings, Settings
    from hpcsched.eventlog.hdf5 import seal
    from hpcsched.eventlog.lines import encode_record, line_of
    from hpcsched.eventlog.picture import encoded, picture_of, write_picture
    from hpcsched.eventlog.records import End, Header, Step
    from hpcsched.eventlog.state import RunFollower
    from hpcsched.sim.paper import PaperWorkload
    from hpcsched.sim.request import NO_TIMEOUTS
    from hpcsched.sim.simulate import simulate
    from hpcsched.sim.world import WorldSettings
    from hpcsched.topology.machine import Node, atoms_of_nodes

    settings = Settings(
        policy=AshaSettings(),
        grace_period=16,
        max_iterations=16 * 2**10,
        reduction_factor=2,
        multiple_of=1,
        num_trials=num_trials,
        timeouts=NO_TIMEOUTS,
    )
    gpus = tuple(str(k) for k in range(GPUS_PER_NODE))
    nodes = tuple(
        Node(name=f"n{k:03}", gpus=gpus, cores=tuple(range(2 * GPUS_PER_NODE)))
        for k in range(NUM_ATOMS // GPUS_PER_NODE)
    )
    folder = RunFolder(root)
    folder.journal.mkdir(parents=True)
    experiment = '[experiment]\nname = "large"\nmetric = "score"\n'
    folder.experiment.write_text(experiment)
    header = Header(
        life=1, experiment=experiment, name="large", metric="score", settings=settings, began_at=1_790_000_000.0
    )  # fmt: skip
    with folder.segment(1).open("wb", buffering=1 << 20) as stream:
        crc = number = 0

        def write(record: Any) -> None:
            nonlocal crc
            line, crc = line_of(encode_record(record), crc)
            stream.write(line)

        def see(event: Event, actions: Sequence[Action]) -> None:
            nonlocal number
            number += 1
            write(Step(n=number, event=event, actions=tuple(actions)))

        write(header)
        core = Scheduler(settings)
        run = simulate(
            settings,
            PaperWorkload(0),
            machine=atoms_of_nodes(nodes, 1, source="benchmark"),
            deadline_s=None,
            world=WorldSettings(start_up_s=5.0, save_s=1.0),
            observer=see,
            scheduler=core,
        )
        write(End(time=run.finished_s, state=run.state, exit_code=0))
    seal(folder)
    state = RunFollower(folder).look()
    write_picture(folder, encoded(picture_of(state)))
    return run.num_results


def look(what: str, root: Path) -> dict[str, float]:
    """One look in this process, without the start of Python: seconds of wall and processor, peak of memory in MB."""
    from hpcsched.eventlog.status import read_status
    from hpcsched.screen.frame import Ui, frame
    from hpcsched.screen.watching import Watcher

    folder = RunFolder(root)
    watcher = Watcher(folder)
    if what == "refresh":
        watcher.look()
        folder.picture.touch()  # as if the driver had painted again
    began, cpu_began = time.perf_counter(), time.process_time()
    match what:
        case "journal":
            from hpcsched.eventlog.reader import read_journal

            for _ in read_journal(folder):
                pass
        case "first_row" | "refresh":
            picture = frame(watcher.look(), Ui(), 200, 50).plain
            assert "trial state" in picture
        case "status":
            assert read_status(folder).status.best is not None
        case "report":
            from hpcsched.report.page import write_report

            write_report(root)
        case _:
            raise ValueError(what)
    cpu_s, wall_s = time.process_time() - cpu_began, time.perf_counter() - began
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def command(root: Path, *words: str) -> dict[str, float]:
    """A whole command, with the start of Python and of the package."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "hpcsched", words[0], str(root), *words[1:]],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {"wall_s": time.perf_counter() - began}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.report")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR")
    parser.add_argument("--look", choices=LOOKS, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.look is not None:
        print(json.dumps(look(options.look, options.keep)))
        return 0
    with tempfile.TemporaryDirectory(prefix="hpcsched-report-") as temporary:
        root = options.keep or Path(temporary) / "run"
        if not (root / "journal").is_dir():
            make_run(root, options.trials)
        found: dict[str, Any] = {}
        for what in LOOKS:
            done = subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.report", "--look", what, "--keep", str(root)],
                check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            found[what] = json.loads(done.stdout)
        found["hpcsched status --json"] = command(root, "status", "--json")
        found["hpcsched watch --once"] = command(root, "watch", "--once")
        folder = RunFolder(root)
        found["sizes"] = {
            "journal_mb": sum(file.stat().st_size for file in folder.journal.iterdir()) / 1e6,
            "log_mb": folder.log.stat().st_size / 1e6,
            "picture_mb": folder.picture.stat().st_size / 1e6,
            "report_mb": folder.report.stat().st_size / 1e6,
        }
    whole = found["journal"]["cpu_s"]
    for what in LOOKS[1:]:
        found[what]["of_reading_the_journal"] = found[what]["cpu_s"] / whole
    if options.json:
        print(json.dumps(found))
        return 0
    for what, figures in found.items():
        print(f"{what:24}" + "  ".join(f"{name} {value:9.3f}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
