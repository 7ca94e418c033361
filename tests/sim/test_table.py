"""Curve tables: what they mean, and every way in which a file can be wrong named with its file and line."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.errors import InputError
from hpcsched.sim.table import CurveTableError, TableWorkload, load_records, longest

HEADER = "config,study,step,metric,train_s,eval_s\n"
GOOD = HEADER + "a,1,10,0.1,5,1\na,1,20,0.3,11,2\nb,1,10,0.2,4,1\na,2,10,0.15,5,1\n"


def write(folder: Path, text: str, name: str = "curves.csv") -> Path:
    file = folder / name
    if name.endswith(".gz"):
        with gzip.open(file, "wt") as stream:
            stream.write(text)
    else:
        file.write_text(text)
    return file


def test_a_curve_is_a_config_and_study_and_its_durations_are_increments(tmp_path: Path) -> None:
    """a/1: rows at 5+1 = 6 s and 11+2 = 13 s: iterations of 6 s and 7 s."""
    records = load_records(write(tmp_path, GOOD))
    assert [(one.config, one.study) for one in records] == [("a", "1"), ("b", "1"), ("a", "2")]
    assert records[0].durations_s == [6.0, 7.0]
    assert records[0].metrics == [0.1, 0.3]
    assert longest(records) == 2


def test_a_gzipped_file_and_a_folder_read_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder, GOOD, "curves.csv.gz")
    (folder / "README.md").write_text("not a table")
    plain = load_records(write(tmp_path, GOOD))
    packed = load_records(folder)
    assert [(one.config, one.metrics, one.durations_s) for one in plain] == [
        (one.config, one.metrics, one.durations_s) for one in packed
    ]


def test_only_three_columns_are_needed(tmp_path: Path) -> None:
    records = load_records(write(tmp_path, "train_s,config,metric,note\n2,x,1,hello\n3,x,2,there\n"))
    assert (records[0].metrics, records[0].durations_s, records[0].study) == ([1.0, 2.0], [2.0, 1.0], "")


def test_a_held_curve_keeps_its_last_value_and_its_mean_pace(tmp_path: Path) -> None:
    workload = TableWorkload(load_records(write(tmp_path, GOOD)), seed=0)
    curve = workload.curve(0, {"config": "a", "study": "1"})
    assert (curve.metric(2), curve.metric(50)) == (0.3, 0.3)
    assert (curve.duration_s(2), curve.duration_s(50)) == (7.0, 6.5)
    assert (curve.length, curve.recorded) == (None, 2)


def test_a_curve_may_be_done_at_the_end_of_its_record(tmp_path: Path) -> None:
    workload = TableWorkload(load_records(write(tmp_path, GOOD)), seed=0, after_record="done")
    assert workload.curve(0, {"config": "a", "study": "1"}).length == 2


def test_trials_are_drawn_uniformly_with_replacement(tmp_path: Path) -> None:
    """3,000 draws of 3 curves: 1,000 each, standard deviation sqrt(3000 2/9) = 26."""
    workload = TableWorkload(load_records(write(tmp_path, GOOD)), seed=4)
    drawn = [tuple(workload.config(i).values()) for i in range(3000)]
    for curve in (("a", "1"), ("b", "1"), ("a", "2")):
        assert drawn.count(curve) == pytest.approx(1000, abs=130)
    again = TableWorkload(load_records(write(tmp_path, GOOD)), seed=4)
    assert [tuple(again.config(i).values()) for i in (2999, 0, 17)] == [drawn[2999], drawn[0], drawn[17]]


def test_a_missing_metric_is_not_a_number(tmp_path: Path) -> None:
    records = load_records(write(tmp_path, HEADER + "a,1,1,,1,0\na,1,2,nan,2,0\n"))
    assert all(math.isnan(metric) for metric in records[0].metrics)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("config,study,metric\n", "line 1", "no column train_s"),
        (HEADER, "", "no row"),
        ("", "line 1", "no column config, metric, train_s"),
        (HEADER + "a,1,1,good,1,0\n", "line 2", "metric is 'good', not a number"),
        (HEADER + "a,1,1,0.1,1,0\na,1,2,0.2,,0\n", "line 3", "train_s is empty"),
        (HEADER + "a,1,1,0.1,5,0\na,1,2,0.2,5,0\n", "line 3", "not above the 5 s"),
        (HEADER + "a,1,1,0.1,5,0\na,1,2,0.2,4,0\n", "line 3", "must go on in time"),
        (HEADER + "a,1,1,0.1,nan,0\n", "line 2", "not above"),
        (HEADER + "a,1,1,0.1,inf,0\n", "line 2", "not above"),
        (HEADER + "a,1,1\n", "line 2", "train_s is empty"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, text: str, line: str, says: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(CurveTableError) as caught:
        load_records(file)
    assert str(file) in str(caught.value)
    assert line in str(caught.value)
    assert says in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(GOOD.encode())[:-20])
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)))
    for path, says in (
        (tmp_path / "nothing", "no such file"),
        (empty, "no .csv"),
        (torn, "cannot be read"),
        (binary, "binary.csv"),
    ):
        with pytest.raises(CurveTableError, match=says):
            load_records(path)


def test_two_files_of_a_folder_may_not_hold_the_same_curve(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "one.csv")
    write(tmp_path, GOOD, "two.csv")
    with pytest.raises(CurveTableError, match=r"one\.csv and in two\.csv"):
        load_records(tmp_path)


def test_a_listed_trial_that_the_table_does_not_hold_is_an_input_error(tmp_path: Path) -> None:
    workload = TableWorkload(load_records(write(tmp_path, GOOD)), seed=0)
    with pytest.raises(InputError, match="config='c'"):
        workload.curve(0, {"config": "c", "study": "1"})


@given(st.binary(max_size=200))
@settings(max_examples=80, deadline=None)
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("bytes") / "curves.csv"
    file.write_bytes(b"config,metric,train_s\n" + data)
    try:
        records = load_records(file)
    except CurveTableError:
        return
    assert all(duration > 0 for record in records for duration in record.durations_s)


def test_the_recorded_runs_of_algoperf_can_be_read(algoperf: Path) -> None:
    """238 to 338 curves a file, the longest of 173 to 372 rows."""
    counts = {file.name: load_records(file) for file in sorted(algoperf.glob("*.csv.gz"))}
    assert {name: (len(found), longest(found)) for name, found in counts.items()} == {
        "criteo1tb.csv.gz": (238, 192),
        "imagenet_resnet.csv.gz": (286, 372),
        "ogbg.csv.gz": (338, 233),
        "wmt.csv.gz": (338, 173),
    }
