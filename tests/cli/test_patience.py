from __future__ import annotations

import io
import itertools

import pytest

from hpcsched.cli import patience
from hpcsched.cli.patience import said
from hpcsched.eventlog.reader import JournalReader, read_journal
from hpcsched.runfolder import RunFolder
from tests.support.runs import a_run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return a_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SLICE", 20)


def told(folder: RunFolder, stream: io.StringIO, *, tick_s: float) -> str:
    """With a clock that goes on by `tick_s` at each look."""
    ticks = itertools.count()
    records = list(said(JournalReader(folder), stream=stream, clock=lambda: tick_s * next(ticks)))
    assert records == list(read_journal(folder)), "nothing is added or lost"
    return stream.getvalue()


def test_a_short_reading_says_nothing(folder: RunFolder) -> None:
    assert told(folder, Terminal(), tick_s=0.0) == ""


def test_a_long_one_says_how_far_it_is_and_takes_it_back(folder: RunFolder) -> None:
    text = told(folder, Terminal(), tick_s=1.0)
    *lines, last = text.split("\r")[1:]
    assert last == "\x1b[K"
    shares = [int(line.rpartition("(")[2].removesuffix(" %)")) for line in lines]
    assert len(shares) > 2
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 100


def test_into_a_file_it_is_said_once(folder: RunFolder) -> None:
    text = told(folder, io.StringIO(), tick_s=1.0)
    assert text.startswith("hpcsched: reading the journal, ")
    assert text.count("\n") == 1
