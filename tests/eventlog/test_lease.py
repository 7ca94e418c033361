from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hpcsched.errors import RunFolderError, SupersededError
from hpcsched.eventlog import lease as lease_module
from hpcsched.eventlog.lease import (
    STALE_S,
    Host,
    Lease,
    acquire,
    holder_of,
    process_start,
    read_lease,
    this_host,
)
from hpcsched.runfolder import RunFolder
from tests.support.journals import a_header, run_folder, segment_bytes, write_segment

T = 1_790_000_000.0


def a_host(
    name: str = "n1", alive: dict[int, int] | None = None, *, boot: str = "b1", namespace: str = "pid:[1]"
) -> Host:
    """`alive`: start times of the processes that live on this host."""
    processes = {100: 5000} if alive is None else alive
    return Host(name=name, boot_id=boot, pid_namespace=namespace, process_start=processes.get)


def taken(folder: RunFolder, *, at: float = T, host: Host | None = None, pid: int = 100) -> Lease:
    lease = acquire(folder, host=host or a_host(), pid=pid, now=at, wall_clock=lambda: at, job_id="4711")
    os.utime(folder.lease, (at, at))
    return lease


def test_the_first_driver_gets_the_first_life(tmp_path: Path) -> None:
    lease = taken(run_folder(tmp_path))
    assert lease.life == 1
    stored = json.loads((tmp_path / "driver.json").read_text())
    assert (stored["host"], stored["pid"], stored["process_start"], stored["job_id"]) == (
        "n1",
        100,
        5000,
        "4711",
    )
    assert (tmp_path / "driver.json").stat().st_mode & 0o777 == 0o600


def test_while_the_process_is_provably_alive_a_second_driver_is_refused_however_old_the_lease(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    taken(folder)
    with pytest.raises(RunFolderError) as caught:
        acquire(folder, host=a_host(), pid=200, now=T + 1000.0)
    message = str(caught.value)
    assert "process 100 on n1, Slurm job 4711" in message
    assert "it is alive" in message
    assert "hpcsched stop" in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("processes", [{}, {100: 9999}], ids=["gone", "its number has another process now"])
def test_a_holder_that_is_provably_gone_is_followed_at_once(
    tmp_path: Path, processes: dict[int, int]
) -> None:
    folder = run_folder(tmp_path)
    taken(folder)
    write_segment(folder, 1, segment_bytes([a_header()]))
    assert acquire(folder, host=a_host(alive=processes), pid=200, now=T + 1.0).life == 2


@pytest.mark.parametrize(
    "other",
    [a_host("n2", {}), a_host("n1", {}, boot="b2"), a_host("n1", {}, namespace="pid:[2]")],
    ids=["another host", "the same name, another boot", "another process namespace"],
)
def test_where_nothing_can_be_proven_the_lease_counts_for_thirty_seconds(tmp_path: Path, other: Host) -> None:
    folder = run_folder(tmp_path)
    taken(folder)
    with pytest.raises(RunFolderError, match=r"renewed its lease 29 s ago.*try again in 1 s"):
        acquire(folder, host=other, pid=200, now=T + 29.0)
    assert acquire(folder, host=other, pid=200, now=T + STALE_S).life == 1


def test_a_released_lease_is_free_at_once(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    taken(folder).release()
    write_segment(folder, 1, segment_bytes([a_header()]))
    assert acquire(folder, host=a_host("n2"), pid=7, now=T + 1.0).life == 2


def test_a_renewal_tells_the_endpoints_their_key_and_a_remark_and_keeps_them(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    lease = taken(folder)
    lease.renew(endpoints=("tcp://10.0.0.1:23456",), server_key="z85")
    lease.renew(remark="disk full")
    found = read_lease(folder)
    assert found is not None
    assert (found.endpoints, found.server_key) == (("tcp://10.0.0.1:23456",), "z85")
    assert found.remark == "disk full"


def test_who_finds_a_newer_segment_is_superseded(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    lease = taken(folder)
    write_segment(folder, 1, segment_bytes([a_header()]))
    lease.check_still_ours()
    write_segment(folder, 2, b"")
    with pytest.raises(SupersededError, match="life 2"):
        lease.renew()


def test_who_finds_a_lease_of_a_later_life_is_superseded_and_leaves_it_alone(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    old = taken(folder)
    write_segment(folder, 1, segment_bytes([a_header()]))
    new = taken(folder, at=T + 40.0, host=a_host("n2", {8: 1}), pid=8)
    assert new.life == 2
    with pytest.raises(SupersededError, match="host n2, process 8"):
        old.check_still_ours()
    old.release()
    assert read_lease(folder) == new.record
    new.check_still_ours()


def test_of_two_that_take_the_folder_in_one_moment_the_one_that_the_file_names_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path)
    monkeypatch.setattr(lease_module, "holder_of", lambda *_, **__: None)  # both look before either writes
    first = taken(folder)
    first.check_held()
    second = taken(folder, host=a_host("n2", {8: 1}), pid=8)
    assert first.life == second.life
    with pytest.raises(RunFolderError, match="process 8 on n2 and not this driver") as caught:
        first.check_held()
    assert caught.value.exit_code == 2
    first.release()
    second.check_held()
    assert read_lease(folder) == second.record, "not released by the other"
    folder.lease.unlink()
    with pytest.raises(RunFolderError, match="names nobody"):
        second.check_held()


def test_on_a_full_disk_a_lease_is_still_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path)
    lease = taken(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lease_module, "_write", full)
    lease.renew()
    assert folder.lease.stat().st_mtime > T + 60.0  # the file system's own time, not the one it was taken at


def test_a_file_that_is_no_lease_is_an_input_error(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    folder.lease.write_text("{")
    with pytest.raises(RunFolderError, match=r"not the lease of a driver"):
        acquire(folder, host=a_host(), pid=1, now=T)


def test_a_missing_folder_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="must exist"):
        acquire(RunFolder(tmp_path / "missing"), host=a_host(), pid=1)


# ---- real processes


def test_this_process_is_alive_and_one_that_has_ended_is_not(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    acquire(folder)
    holder = holder_of(folder, host=this_host())
    assert holder is not None
    assert holder.alive is True
    child = subprocess.Popen(["sleep", "60"])
    start = process_start(child.pid)
    assert start is not None
    record = msgspec.structs.replace(holder.record, pid=child.pid, process_start=start)
    folder.lease.write_bytes(msgspec.json.encode(record))
    assert (found := holder_of(folder, host=this_host())) is not None
    assert found.holds
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie is dead
    assert (found := holder_of(folder, host=this_host())) is not None
    assert found.alive is False
    assert not found.holds
    child.wait()
    assert acquire(folder).life == 1


def test_the_renewing_thread_tells_when_the_folder_is_lost(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    lease = acquire(folder)
    lost = threading.Event()
    told: list[SupersededError] = []

    def tell(error: SupersededError) -> None:
        told.append(error)
        lost.set()

    lease.keep_renewing(lost=tell, every_s=0.01)
    write_segment(folder, 2, b"")
    assert lost.wait(20.0)
    assert len(told) == 1
    lease.release()
    found = read_lease(folder)
    assert found is not None
    assert not found.released


def test_the_renewing_thread_outlives_a_folder_that_cannot_be_written_for_a_while(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    lease = acquire(folder)
    told: list[OSError | None] = []

    def trouble(error: OSError | None) -> None:
        told.append(error)

    def expect(condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            if condition():
                return
            threading.Event().wait(0.01)
        raise AssertionError(told)

    lease.keep_renewing(lost=lambda _: None, trouble=trouble, every_s=0.01)
    folder.root.rename(tmp_path / "away")
    expect(lambda: bool(told) and told[0] is not None)
    (tmp_path / "away").rename(folder.root)
    expect(lambda: told[-1] is None)
    lease.release()
    found = read_lease(folder)
    assert found is not None
    assert found.released
