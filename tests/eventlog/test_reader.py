from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.core.enums import ExperimentState
from hpcsched.errors import JournalDamagedError, LogError, RunFolderError
from hpcsched.eventlog.lines import encode_record, line_of
from hpcsched.eventlog.reader import JournalReader, read_journal
from hpcsched.eventlog.records import End, SegmentEnd
from hpcsched.runfolder import RunFolder
from tests.support.journals import a_header, a_step, run_folder, segment_bytes, write_segment

FOUR = [a_header(), a_step(1), a_step(2), a_step(3)]
DATA = segment_bytes(FOUR)
LAST = len(segment_bytes(FOUR[:3]))
"""Where the last record begins."""


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, DATA)
    assert list(read_journal(folder)) == FOUR


@given(st.integers(LAST, len(DATA) - 1))
def test_a_last_record_torn_at_any_byte_is_dropped_and_all_before_it_kept(cut: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder(Path(root))
        write_segment(folder, 1, DATA[:cut])
        reader = JournalReader(folder)
        assert list(reader.poll()) == FOUR[:3]
        assert [tail.num_bytes for tail in reader.torn_tails] == ([cut - LAST] if cut > LAST else [])


@given(st.integers(0, LAST - 1), st.integers(1, 255))
def test_a_changed_byte_before_the_last_record_is_reported_where_it_is(at: int, flip: int) -> None:
    """Also when the line feed between two records is hit, or a new one appears."""
    damaged = bytearray(DATA)
    damaged[at] ^= flip
    starts = [len(segment_bytes(FOUR[:k])) for k in range(4)]
    record = max(k for k in range(4) if starts[k] <= at)
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder(Path(root))
        file = write_segment(folder, 1, bytes(damaged))
        with pytest.raises(JournalDamagedError) as caught:
            list(read_journal(folder))
        assert caught.value.file == str(file)
        assert (caught.value.line, caught.value.byte_offset) == (record + 1, starts[record])
        assert str(starts[record]) in str(caught.value)


def test_a_changed_byte_in_a_whole_last_record_is_damage_since_it_may_have_been_acknowledged(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, DATA[:-10] + b"#" + DATA[-9:])
    with pytest.raises(JournalDamagedError) as caught:
        list(read_journal(folder))
    assert caught.value.line == 4


def test_a_hole_of_nul_bytes_in_the_last_line_is_a_torn_record(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, DATA[: LAST + 20] + b"\0" * 30 + DATA[LAST + 50 :])
    assert list(read_journal(folder)) == FOUR[:3]


def with_a_hole(durable: int | None, hole: slice) -> bytes:
    """Five records; the third is written while the second's sync is under way, the others behind it as well."""
    data, crc = b"", 0
    starts = []
    for number, record in enumerate([a_header(), *(a_step(n) for n in range(1, 5))]):
        starts.append(len(data))
        line, crc = line_of(encode_record(record), crc, durable if number >= 3 else None)
        data += line
    begin, end = starts[2] + hole.start, starts[2] + hole.stop
    return data[:begin] + b"\0" * (end - begin) + data[end:]


SECOND = len(segment_bytes(FOUR[:2]))
"""Where the hole's line begins."""


@pytest.mark.parametrize(
    "hole", [slice(0, 40), slice(20, 60), slice(0, 400)], ids=["head", "middle", "two lines"]
)
def test_a_hole_before_lines_that_were_written_before_it_was_durable_is_torn(
    tmp_path: Path, hole: slice
) -> None:
    """A node died while several syncs were under way, and a later group had reached the disk."""
    folder = run_folder(tmp_path)
    write_segment(folder, 1, with_a_hole(SECOND, hole))
    reader = JournalReader(folder)
    assert list(reader.poll()) == FOUR[:2]
    assert reader.ends[0].num_bytes == SECOND


@pytest.mark.parametrize("durable", [None, SECOND + 1], ids=["says nothing", "was durable"])
def test_a_hole_before_lines_that_do_not_prove_it_torn_is_damage(tmp_path: Path, durable: int | None) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, with_a_hole(durable, slice(0, 40)))
    with pytest.raises(JournalDamagedError) as caught:
        list(read_journal(folder))
    assert (caught.value.line, caught.value.byte_offset) == (3, SECOND)


@pytest.mark.parametrize(
    "lines",
    [[0, 1, 3], [0, 2, 1, 3], [0, 1, 1, 2, 3], [1, 2, 3]],
    ids=["missing", "out of order", "doubled", "no header"],
)
def test_lines_that_are_missing_doubled_or_out_of_order_are_damage(tmp_path: Path, lines: list[int]) -> None:
    folder = run_folder(tmp_path)
    whole = DATA.splitlines(keepends=True)
    write_segment(folder, 1, b"".join(whole[k] for k in lines))
    with pytest.raises(JournalDamagedError):
        list(read_journal(folder))


def test_a_renamed_segment_is_damage(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 2, DATA)
    with pytest.raises(JournalDamagedError, match="life 1"):
        list(read_journal(folder))


def test_a_missing_number_of_a_step_is_damage(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, segment_bytes([a_header(), a_step(1), a_step(3)]))
    with pytest.raises(JournalDamagedError, match="step 3 follows step 1") as caught:
        list(read_journal(folder))
    assert caught.value.line == 3


def test_a_record_after_the_end_of_a_life_is_damage(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    end = End(time=2.0, state=ExperimentState.FINISHED, exit_code=0)
    write_segment(folder, 1, segment_bytes([a_header(), end, a_step(1)]))
    with pytest.raises(JournalDamagedError, match="follows the end"):
        list(read_journal(folder))


def test_a_newer_schema_is_refused_in_words(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    newer = DATA.splitlines(keepends=True)[0].replace(b'"schema_version":1', b'"schema_version":2')
    from hpcsched.eventlog.lines import line_of

    payload = newer[newer.index(b'"record":') + 9 : -2]
    write_segment(folder, 1, line_of(payload, 0)[0])
    with pytest.raises(LogError, match="newer hpcsched"):
        list(read_journal(folder))


def test_a_folder_without_a_journal_says_what_a_run_folder_is(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no journal here"):
        list(read_journal(RunFolder(tmp_path)))
    with pytest.raises(RunFolderError, match="no journal here"):
        list(read_journal(RunFolder(tmp_path / "missing")))


# ---- lives


def test_each_life_may_end_in_a_torn_record_and_the_next_goes_on(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, DATA[:-5])
    reader = JournalReader(folder)
    list(reader.poll())
    second = [a_header(2, earlier=reader.ends), a_step(3), a_step(4)]
    write_segment(folder, 2, segment_bytes(second)[:-1])
    assert list(read_journal(folder)) == FOUR[:3] + second[:2]


def test_what_a_superseded_driver_still_writes_does_not_count(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, segment_bytes(FOUR[:3]))
    second = [
        a_header(2, earlier=(SegmentEnd(life=1, num_bytes=LAST, num_records=3),)),
        a_step(3, metric=0.9),
    ]
    write_segment(folder, 2, segment_bytes(second))
    write_segment(folder, 1, DATA)  # the old one wakes and writes its step 3 as well
    assert list(read_journal(folder)) == FOUR[:3] + second
    write_segment(folder, 1, DATA[:LAST] + b"anything at all\n")
    assert list(read_journal(folder)) == FOUR[:3] + second


def test_a_life_that_died_before_its_header_is_nothing(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, DATA)
    write_segment(folder, 2, b"")
    assert list(read_journal(folder)) == FOUR
    ends = (
        SegmentEnd(life=1, num_bytes=len(DATA), num_records=4),
        SegmentEnd(life=2, num_bytes=0, num_records=0),
    )
    third = [a_header(3, earlier=ends), a_step(4)]
    write_segment(folder, 3, segment_bytes(third))
    assert list(read_journal(folder)) == FOUR + third


def test_an_earlier_segment_that_has_lost_records_is_damage(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, DATA[:LAST])
    write_segment(
        folder,
        2,
        segment_bytes([a_header(2, earlier=(SegmentEnd(life=1, num_bytes=len(DATA), num_records=4),))]),
    )
    with pytest.raises(JournalDamagedError, match="a later life has read"):
        list(read_journal(folder))


# ---- following


def test_a_follower_sees_each_record_once_and_waits_for_half_lines(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    reader = JournalReader(folder)
    seen = []
    for cut in (*range(0, len(DATA), 23), len(DATA)):
        write_segment(folder, 1, DATA[:cut])
        seen += list(reader.poll())
    assert seen == FOUR
    assert reader.generation == 0


def test_a_follower_begins_again_when_a_new_life_takes_back_what_it_has_seen(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    write_segment(folder, 1, DATA)
    reader = JournalReader(folder)
    assert list(reader.poll()) == FOUR
    second = [
        a_header(2, earlier=(SegmentEnd(life=1, num_bytes=LAST, num_records=3),)),
        a_step(3, metric=0.9),
    ]
    write_segment(folder, 2, segment_bytes(second))
    assert list(reader.poll()) == FOUR[:3] + second
    assert reader.generation == 1
