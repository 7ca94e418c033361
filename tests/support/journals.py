"""Journals made by hand, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from hpcsched.core.actions import SetTimer
from hpcsched.core.enums import TimerKind
from hpcsched.core.events import ResultReported
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.settings import AshaSettings, Settings
from hpcsched.eventlog.lines import encode_record, line_of, record_of
from hpcsched.eventlog.records import Header, Record, SegmentEnd, Step
from hpcsched.runfolder import RunFolder


def run_folder(root: Path) -> RunFolder:
    root.mkdir(parents=True, exist_ok=True)
    return RunFolder(root)


def a_header(
    life: int = 1, *, settings: Settings | None = None, earlier: tuple[SegmentEnd, ...] = ()
) -> Header:
    return Header(
        life=life,
        experiment='[experiment]\nname = "by hand"\n',
        name="by hand",
        metric="accuracy",
        settings=settings or Settings(policy=AshaSettings()),
        began_at=1_790_000_000.0,
        deadline_s=120.0,
        provenance={"hpcsched": "0.1.0"},
        argv=("hpcsched", "run", "experiment.toml"),
        earlier=earlier,
    )


def a_step(n: int, *, metric: float | None = 0.5) -> Step:
    """A step with a valid form; the core was never asked."""
    return Step(
        n=n,
        event=ResultReported(
            time=float(n),
            trial_id=TrialId(0),
            incarnation=Incarnation(1),
            training_iteration=n,
            metric=metric,
            time_this_iter_s=1.0,
        ),
        actions=(
            SetTimer(because="because", timer=TimerKind.SILENCE_TIMEOUT, at=n + 30.0, trial_id=TrialId(0)),
        ),
    )


def segment_bytes(records: Iterable[Record]) -> bytes:
    crc = 0
    lines = []
    for record in records:
        line, crc = line_of(encode_record(record), crc)
        lines.append(line)
    return b"".join(lines)


def write_segment(folder: RunFolder, life: int, data: bytes) -> Path:
    folder.journal.mkdir(parents=True, exist_ok=True)
    file = folder.segment(life)
    file.write_bytes(data)
    return file


def rewrite(folder: RunFolder, life: int, change: dict[int, Record | None]) -> None:
    """Replace (or, with None, leave out) records of a segment by their index, with checksums that are right again."""
    crc = 0
    records: list[Record] = []
    for line in folder.segment(life).read_bytes().splitlines():
        record, crc = record_of(line, crc)
        records.append(record)
    changed = [change.get(index, record) for index, record in enumerate(records)]
    write_segment(folder, life, segment_bytes([record for record in changed if record is not None]))


def same(a: object, b: object) -> bool:
    """Equal as JSON: what one journal holds against what was meant."""
    return msgspec.json.encode(a) == msgspec.json.encode(b)
