"""The picture of a large run: the same view as from the journal, without reading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcsched.core.scheduler import Scheduler
from hpcsched.driver.painter import Painter
from hpcsched.eventlog import picture as room
from hpcsched.eventlog.lease import acquire, holder_of, this_host
from hpcsched.eventlog.picture import Pictures, encoded, last_of, picture_of, write_picture
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import End, Header, Step
from hpcsched.eventlog.state import RunFollower
from hpcsched.eventlog.status import read_status
from hpcsched.runfolder import RunFolder
from hpcsched.screen.frame import Seen, Ui, frame
from hpcsched.screen.watching import Watcher
from tests.support.journals import rewrite
from tests.support.runs import Script, a_run, go_on

ROUGH = Script(crash=(1,), hang=(2,), nan=(3,))


@pytest.fixture(autouse=True)
def every_run_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "FROM_BYTES", 0)
    monkeypatch.setattr(room, "FROM_RECORDS", 0)


def paint(folder: RunFolder, most: int = 10**9, clock: Any = lambda: 0.0) -> None:
    """As the driver does: beside a core that is fed first."""
    painter: Painter | None = None
    core: Scheduler | None = None
    for number, record in enumerate(read_journal(folder)):
        if number == most:
            break
        if isinstance(record, Header) and painter is None:
            core = Scheduler(record.settings)
            painter = Painter(folder, record, core, clock=clock, from_records=0)
        assert painter is not None
        assert core is not None
        if isinstance(record, Step):
            core.handle(record.event)
        painter.take(record)
    assert painter is not None
    painter.close()


def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the journal was read")

    monkeypatch.setattr("hpcsched.eventlog.state.JournalReader.poll", refuse)


def test_status_and_view_are_the_same_from_the_picture_as_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path, script=ROUGH)
    run = RunFollower(folder).look()
    status = read_status(folder).status
    folder.picture.unlink()  # which that reader has left
    paint(folder)
    no_reading(monkeypatch)
    assert read_status(folder).status == status
    seen = Watcher(folder).look()
    assert not seen.is_reading
    expected = Seen(run=run, state=seen.state, now_s=seen.now_s)
    for width, height in ((80, 24), (200, 50)):
        assert frame(seen, Ui(), width, height).plain == frame(expected, Ui(), width, height).plain


def test_a_reader_of_a_journal_that_nobody_writes_leaves_a_picture_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=9.0))
    first = read_status(folder).status
    assert folder.picture.stat().st_mode & 0o777 == 0o600
    with monkeypatch.context() as patched:
        no_reading(patched)
        assert read_status(folder).status == first
    go_on(folder, at=10.0)
    assert read_status(folder).status.state.value == "finished", "an old picture does not count"


def test_while_a_driver_lives_its_picture_counts_though_the_journal_has_gone_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=9.0))
    num = sum(1 for _ in read_journal(folder))
    paint(folder, num - 5)
    lease = acquire(folder)
    lease_life_is_the_journals = msgspec.json.decode(folder.lease.read_bytes())["life"]
    holder = holder_of(folder, host=this_host())
    assert lease_life_is_the_journals >= 1
    found = Pictures(folder).usable(holder)
    assert found is not None
    assert found.num_records == num - 5
    lease.release()
    assert Pictures(folder).usable(holder_of(folder, host=this_host())) is None, "five records are missing"
    seen = Watcher(folder).look()
    assert seen.run.num_records == num


def test_what_is_no_picture_is_as_none(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    status = read_status(folder).status
    for data in (b"", b"{}", b"[1]", folder.picture.read_bytes()[:-10]):
        write_picture(folder, data)
        assert Pictures(folder).newest() is None
        assert read_status(folder).status == status


def test_a_run_that_lost_its_last_record_is_read_anew(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    paint(folder)
    num = sum(1 for _ in read_journal(folder))
    assert last_of(folder.segment(1))[1]
    rewrite(folder, 1, {num - 1: None})
    assert not last_of(folder.segment(1))[1]
    assert Pictures(folder).usable(None) is None


def test_pictures_are_painted_when_it_is_time_to_and_not_of_small_runs(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    records = list(read_journal(folder))
    header = records[0]
    assert isinstance(header, Header)
    now = [0.0]
    core = Scheduler(header.settings)
    painter = Painter(folder, header, core, clock=lambda: now[0], from_records=20)
    painted: list[int] = []
    real = painter._paint
    painter._paint = lambda: (painted.append(painter._run.num_records), real())[1]  # type: ignore[method-assign]
    for record in records:
        if isinstance(record, Step):
            core.handle(record.event)
        if isinstance(record, End):
            break
        painter.take(record)
        painter.refresh()
        now[0] += 0.125
    assert painted[0] == 20
    assert len(painted) == 1 + (len(records) - 1 - 20) // 8
    painter.close()


def test_a_long_curve_is_thinned_and_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFollower(a_run(tmp_path)).look()
    monkeypatch.setattr(room, "MOST_POINTS", 3)
    assert len(run.best_curve) > 3
    picture = picture_of(run)
    assert len(picture.best_curve) <= 4
    assert picture.best_curve[-1] == run.best
    assert msgspec.json.decode(encoded(picture), type=room.Picture) == picture
