from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import msgspec
import numpy as np
import pytest

from hpcsched.eventlog import hdf5 as hdf5_module
from hpcsched.eventlog import schema
from hpcsched.eventlog.hdf5 import is_up_to_date, seal
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Step
from hpcsched.eventlog.schema_page import page
from tests.support.runs import BEGAN_AT, EXPERIMENT, Script, a_run, go_on

ROUGH = Script(crash=(1,), hang=(2,), nan=(3,))
GOLDEN = {
    "trials": ["trial_id", "config", "state", "best_metric", "training_iteration"],
    "results": [
        "time_s", "trial_id", "incarnation", "training_iteration", "metric", "num_atoms", "time_this_iter_s",
    ],
    "measures": [
        "time_s", "trial_id", "incarnation", "training_iteration", "samples_per_s", "data_wait", "communication", "overhead",
    ],
    "placements": ["trial_id", "incarnation", "node", "gpu", "from_s", "to_s"],
    "best_curve": ["time_s", "trial_id", "incarnation", "training_iteration", "metric", "saved_s"],
    "events": ["time_s", "kind", "trial_id", "incarnation", "data"],
    "actions": ["time_s", "kind", "trial_id", "incarnation", "data", "because"],
    "notes": ["time_s", "topic", "trial_id", "incarnation", "text", "data"],
}  # fmt: skip


def test_tables_columns_and_attributes_are_those_that_others_rely_on(tmp_path: Path) -> None:
    file = seal(a_run(tmp_path, script=ROUGH))
    with h5py.File(file, "r") as log:
        assert {name: list(log[name].dtype.names) for name in log} == GOLDEN
        assert set(log.attrs) == set(schema.ROOT_ATTRIBUTES)
        assert log.attrs["schema_version"] == 1
        assert log.attrs["experiment"] == EXPERIMENT
        assert (log.attrs["began_at"], log.attrs["deadline_s"]) == (BEGAN_AT, 30.0)
        assert (log.attrs["metric"], log.attrs["mode"]) == ("accuracy", "max")
        for name, columns in GOLDEN.items():
            assert log[name].compression == "gzip"
            assert log[name].chunks is not None
            assert log[name].attrs["description"]
            for column in columns:
                assert log[name].attrs[f"{column}.description"]
                if column.endswith("_s") and not column.endswith("_per_s"):
                    assert log[name].attrs[f"{column}.units"] == "s"
            text = [
                column
                for column in columns
                if column in ("config", "state", "kind", "data", "because", "node", "gpu")
            ]
            for column in text:
                info = h5py.check_string_dtype(log[name].dtype[column])
                assert (info.encoding, info.length) == ("utf-8", None)


def test_a_run_without_a_deadline_has_nan_for_it(tmp_path: Path) -> None:
    from hpcsched.core.settings import AshaSettings
    from tests.support.runs import some_settings

    settings = some_settings(AshaSettings(), max_iterations=4, num_trials=4)
    with h5py.File(seal(a_run(tmp_path, settings=settings, deadline_s=None)), "r") as log:
        assert math.isnan(log.attrs["deadline_s"])


def test_events_and_actions_hold_all_that_the_journal_holds(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=ROUGH)
    steps = [record for record in read_journal(folder) if isinstance(record, Step)]
    with h5py.File(seal(folder), "r") as log:
        events, actions = log["events"][:], log["actions"][:]
        results = log["results"][:]
    assert len(events) == len(steps)
    assert [row["kind"].decode() for row in events] == [type(step.event).__name__ for step in steps]
    for row, step in zip(events, steps, strict=True):
        whole = json.loads(msgspec.json.encode(step.event))
        told = json.loads(row["data"])
        for name in ("trial_id", "incarnation"):
            if row[name] != -1:
                told[name] = row[name]
            elif whole.get(name, 0) is None:
                told[name] = None
        assert {**told, "kind": row["kind"].decode(), "time": row["time_s"]} == whole
    logged = [(step.event.time, action) for step in steps for action in step.actions]
    assert [(row["time_s"], row["kind"].decode(), row["because"].decode()) for row in actions] == [
        (time, type(action).__name__, action.because) for time, action in logged
    ]
    reports = [step.event for step in steps if type(step.event).__name__ == "ResultReported"]
    assert len(results) == len(reports)
    assert np.isnan(results["metric"]).sum() == 1
    assert set(results["num_atoms"]) > {1}


def test_trials_and_placements_agree_with_the_results(tmp_path: Path) -> None:
    with h5py.File(seal(a_run(tmp_path, script=ROUGH)), "r") as log:
        trials, results, placements = log["trials"][:], log["results"][:], log["placements"][:]
    assert list(trials["trial_id"]) == list(range(12))
    for row in trials:
        own = results[results["trial_id"] == row["trial_id"]]
        assert row["best_metric"] == pytest.approx(np.nanmax(own["metric"]))
        assert row["training_iteration"] <= own["training_iteration"].max()
        assert set(json.loads(row["config"])) == {"learning_rate", "momentum"}
    for row in results:
        held = placements[
            (placements["trial_id"] == row["trial_id"])
            & (placements["incarnation"] == row["incarnation"])
            & (placements["from_s"] < row["time_s"])
            & (row["time_s"] <= placements["to_s"])
        ]
        assert len(held) == row["num_atoms"]


def test_a_log_sealed_while_the_run_lives_says_so_and_is_out_of_date_later(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    with h5py.File(seal(folder), "r") as log:
        assert log.attrs["state"] == "running"
        assert math.isnan(log.attrs["over_s"])
        assert np.isnan(log["placements"]["to_s"]).any()
    assert is_up_to_date(folder)
    go_on(folder, at=8.0)
    assert not is_up_to_date(folder)
    seal(folder)
    assert is_up_to_date(folder)
    folder.segment(2).write_bytes(folder.segment(2).read_bytes() + b'{"crc32":')
    assert is_up_to_date(folder), "a torn tail is nothing new"


def test_h5dump_reads_it(tmp_path: Path) -> None:
    h5dump = shutil.which("h5dump")
    if h5dump is None:
        pytest.skip("h5dump is not installed (hdf5-tools)")
    file = seal(a_run(tmp_path))
    shown = subprocess.run([h5dump, "-H", str(file)], capture_output=True, text=True, check=True).stdout
    for name, columns in GOLDEN.items():
        assert f'DATASET "{name}"' in shown
        for column in columns:
            assert f'"{column}";' in shown


def test_sealing_is_a_command_of_its_own_that_imports_no_torch(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    code = (
        "import sys; from hpcsched.eventlog.seal import main; code = main(['seal', sys.argv[1]]); "
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules; sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder.root)], check=True)
    assert is_up_to_date(folder)
    done = subprocess.run(
        [sys.executable, "-m", "hpcsched.eventlog.seal", str(tmp_path / "nowhere")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


_SEAL_SLOWLY = """
import os, sys
from pathlib import Path
from hpcsched.eventlog import hdf5
from hpcsched.runfolder import RunFolder
made = hdf5._TableWriter.flush
def flush(self):
    made(self)
    print("wrote", flush=True)
    sys.stdin.readline()
hdf5._TableWriter.flush = flush
hdf5.seal(RunFolder(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("flushes", [1, 4, 7])
def test_a_seal_that_is_killed_leaves_the_old_log(tmp_path: Path, flushes: int) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    seal(folder)
    old = folder.log.read_bytes()
    go_on(folder, at=8.0)
    process = subprocess.Popen(
        [sys.executable, "-c", _SEAL_SLOWLY, str(folder.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(flushes):
        assert process.stdout.readline() == "wrote\n"
        process.stdin.write("\n")
        process.stdin.flush()
    process.send_signal(signal.SIGKILL)
    process.wait()
    if folder.log.read_bytes() != old:
        assert flushes == len(schema.TABLES), "it had come to its end"
    abandoned = list(folder.root.glob(".log.h5-*"))
    for file in abandoned:
        os.utime(file, (0, 0))
    seal(folder)
    assert is_up_to_date(folder)
    assert list(folder.root.glob(".log.h5-*")) == []


def test_a_full_disk_leaves_the_old_log_and_says_what_to_do(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(kill_at=7.0))
    seal(folder)
    old = folder.log.read_bytes()
    go_on(folder, at=8.0)
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "runpy.run_module('hpcsched.eventlog.seal', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder.root)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("RunFolderError: ") or "The journal is whole" in last, done.stderr[-2000:]
    assert folder.log.read_bytes() == old
    assert list(folder.root.glob(".log.h5-*")) == []


def test_rows_beyond_one_block_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_module, "_BLOCK", 7)
    folder = a_run(tmp_path)
    num_steps = sum(isinstance(record, Step) for record in read_journal(folder))
    with h5py.File(seal(folder), "r") as log:
        assert len(log["events"]) == num_steps
        assert list(log["events"]["time_s"]) == sorted(log["events"]["time_s"])


def test_the_documentation_of_the_schema_is_the_schema() -> None:
    import hpcsched

    stored = Path(hpcsched.__file__).parent / "docs" / "log_schema.md"
    assert stored.read_text() == page(), (
        "make it again: python -m hpcsched.eventlog.schema_page > hpcsched/docs/log_schema.md"
    )
