"""What a rank does that comes no further: read from a /proc of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

from hpcsched.launch.still import Watch
from hpcsched.progress import Mark, Phase

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc: Path, state: str, cpu_s: float) -> None:
    folder = proc / "77"
    folder.mkdir(exist_ok=True)
    fields = [state, *["0"] * 10, str(round(cpu_s * TICKS)), "0", *["0"] * 30]
    (folder / "stat").write_text("77 (py (t) hon) " + " ".join(fields) + "\n")


def test_a_rank_is_still_since_its_mark_last_changed(tmp_path: Path) -> None:
    watch = Watch(proc=tmp_path)
    process(tmp_path, "R", 1.0)
    mark = Mark(3, 10, 40, Phase.COMPUTE)
    first = watch.look(5, 77, mark, 100.0)
    assert first is not None
    assert (first.rank, first.iteration, first.num_collectives, first.still_s) == (5, 3, 40, 0.0)
    process(tmp_path, "S", 6.0)
    busy = watch.look(5, 77, mark, 105.0)
    assert busy is not None
    assert (busy.still_s, busy.doing) == (5.0, "computes"), "it had a core to itself"
    asleep = watch.look(5, 77, mark, 110.0)
    assert asleep is not None
    assert (asleep.still_s, asleep.doing) == (10.0, "sleeps")
    process(tmp_path, "T", 6.0)
    stopped = watch.look(5, 77, mark, 115.0)
    assert stopped is not None
    assert stopped.doing == "stopped"
    process(tmp_path, "S", 6.0)
    moved = watch.look(5, 77, Mark(3, 11, 41, Phase.DATA), 120.0)
    assert moved is not None
    assert (moved.still_s, moved.doing) == (0.0, "data")


def test_who_has_written_nothing_or_has_left_is_not_looked_at(tmp_path: Path) -> None:
    watch = Watch(proc=tmp_path)
    assert watch.look(0, 77, None, 1.0) is None
    assert watch.look(0, 77, Mark(9, 1, 1, Phase.LEFT), 2.0) is None
