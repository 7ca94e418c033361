"""The lease on a run folder (`driver.json`): which driver owns it now.

One driver at a time writes a run folder, also when several hosts see it. The holder renews its lease every 5 s by
renaming a new file over the old one. Who wants the folder

- is refused while the holder's process is provably alive (same host, same boot, same process namespace, a process
  of that number with that start time), however old the lease;
- takes over at once when the holder is provably gone the same way, or has released the lease;
- else takes over when the lease has not been renewed for 30 s. Ages are differences of two modification times that the
  run folder's own file system gave, so that hosts whose clocks differ agree.

A lease is advice, since rename does not exclude; what excludes is the journal's segment, created with O_EXCL under
the number of the life: of two that take over at once only one gets it. `Lease.check_still_ours` finds a newer segment or
a lease of a later life. Who does something before it has its segment (new keys, ending what was left) asks `Lease.check_held`
first: of two that have taken the same life within moments the one that the file names goes on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hpcsched.errors import RunFolderError, SupersededError
from hpcsched.eventlog.reader import newest_life
from hpcsched.runfolder import RunFolder

RENEW_S = 5.0
STALE_S = 30.0


class LeaseRecord(msgspec.Struct, frozen=True):
    """The contents of `driver.json`."""

    life: int
    host: str
    pid: int
    process_start: int
    """Start time of the process, in clock ticks since boot (proc(5), /proc/PID/stat field 22)."""
    boot_id: str
    pid_namespace: str
    job_id: str
    """Slurm job, or ""."""
    renewed_at: float
    """UNIX seconds by the holder's clock; for people, not for the age."""
    endpoints: tuple[str, ...] = ()
    """Where a live driver takes orders, such as "tcp://10.77.0.1:23456", the most useful first; () before it listens."""
    server_key: str = ""
    """Its public key there (CURVE, Z85); "" before it listens."""
    remark: str = ""
    """One line that `hpcsched status` shows, such as that the disk does not take records."""
    released: bool = False
    """The holder ended in order."""


class Host(msgspec.Struct, frozen=True):
    """What tells one process of one host from all others."""

    name: str
    boot_id: str
    pid_namespace: str
    process_start: Callable[[int], int | None]
    """Start time of a process in clock ticks since boot; None when there is no such process."""


def this_host() -> Host:
    return Host(
        name=socket.gethostname(),
        boot_id=_text(Path("/proc/sys/kernel/random/boot_id")),
        pid_namespace=_link(Path("/proc/self/ns/pid")),
        process_start=process_start,
    )


def process_start(pid: int) -> int | None:
    """Clock ticks since boot at which a process began; None when there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def folder_clock(folder: RunFolder) -> float:
    """The time now, as the run folder's file system gives it to a file written now."""
    probe = folder.root / f".clock-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        probe.write_bytes(b"")
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


class Holder(msgspec.Struct, frozen=True):
    """What is known about who holds a run folder."""

    record: LeaseRecord
    age_s: float
    alive: bool | None
    """True or False where it can be proven from here; None: unknown, the age decides."""

    @property
    def holds(self) -> bool:
        if self.record.released or self.alive is False:
            return False
        return self.alive is True or self.age_s < STALE_S


def read_lease(folder: RunFolder) -> LeaseRecord | None:
    """The lease as it stands; None when there is none. Raises RunFolderError when it is no lease."""
    try:
        return msgspec.json.decode(folder.lease.read_bytes(), type=LeaseRecord)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFolderError(f"{folder.lease}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise RunFolderError(
            f"{folder.lease}: not the lease of a driver: {error}. If no driver runs on this folder, delete the file."
        ) from error


def holder_of(folder: RunFolder, *, host: Host, now: float | None = None) -> Holder | None:
    """Who holds the folder, with what can be proven from `host`; None when nobody ever did.

    `now`: seconds on the file system's clock; None: the time that this host has, corrected by nothing, which is
    enough for showing (a reader may not be able to write into the folder).
    """
    record = read_lease(folder)
    if record is None:
        return None
    with contextlib.suppress(FileNotFoundError):
        renewed_at = folder.lease.stat().st_mtime
        age_s = (time.time() if now is None else now) - renewed_at
        return Holder(record=record, age_s=age_s, alive=_is_alive(record, host))
    return None


def _is_alive(record: LeaseRecord, host: Host) -> bool | None:
    here = (host.name, host.boot_id, host.pid_namespace)
    if (record.host, record.boot_id, record.pid_namespace) != here or not record.boot_id:
        return None
    return host.process_start(record.pid) == record.process_start


class Lease:
    """Our own lease, from `acquire`. Thread-safe; `keep_renewing` does the renewals in its own thread."""

    def __init__(self, folder: RunFolder, record: LeaseRecord, wall_clock: Callable[[], float]) -> None:
        self.folder = folder
        self._record = record
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def life(self) -> int:
        """The number of our life: of the segment that we are to create."""
        return self._record.life

    @property
    def record(self) -> LeaseRecord:
        return self._record

    def check_still_ours(self) -> None:
        """Raises SupersededError when another driver has taken the folder over."""
        newest = newest_life(self.folder)
        if newest > self.life:
            raise SupersededError(
                f"{self.folder.segment(newest)} exists: another driver (life {newest}) has taken over {self.folder.root}; "
                f"this one (life {self.life}) writes nothing more and stops."
            )
        found = read_lease(self.folder)
        if found is not None and found.life > self.life:
            raise SupersededError(
                f"{self.folder.lease} names life {found.life} (host {found.host}, process {found.pid}): another driver has "
                f"taken over {self.folder.root}; this one (life {self.life}) writes nothing more and stops."
            )

    def check_held(self) -> None:
        """Raises RunFolderError when the file does not name this process: another one has taken the folder in the same moment."""
        found = read_lease(self.folder)
        if found is None or _process_of(found) != _process_of(self._record):
            who = "nobody" if found is None else f"process {found.pid} on {found.host}"
            raise RunFolderError(
                f"{self.folder.lease} names {who} and not this driver, which has just taken {self.folder.root}: another one was started in the "
                f"same moment. `hpcsched status {self.folder.root}` shows whether it drives the run; if it does not, start again"
            )

    def renew(
        self,
        *,
        endpoints: tuple[str, ...] | None = None,
        server_key: str | None = None,
        remark: str | None = None,
    ) -> None:
        """Say that we live, and where. Raises SupersededError; OSError when the folder cannot be written at all.

        On a full disk the old file only gets a new time, which needs no space.
        """
        with self._lock:
            self.check_still_ours()
            changed = msgspec.structs.replace(
                self._record,
                renewed_at=self._wall_clock(),
                endpoints=self._record.endpoints if endpoints is None else endpoints,
                server_key=self._record.server_key if server_key is None else server_key,
                remark=self._record.remark if remark is None else remark,
            )
            try:
                _write(self.folder, changed)
            except OSError:
                os.utime(self.folder.lease)
            self._record = changed

    def keep_renewing(
        self,
        *,
        lost: Callable[[SupersededError], None],
        trouble: Callable[[OSError | None], None] = lambda _: None,
        every_s: float = RENEW_S,
    ) -> None:
        """Renew in a thread until `release`. `lost` is called once when the folder is another's; `trouble` with each
        failed renewal, and with None when it works again. Both in that thread; they must return at once."""
        assert self._thread is None, "one renewing thread a lease"

        def run() -> None:
            failing = False
            while not self._stop.wait(every_s):
                try:
                    self.renew()
                except SupersededError as error:
                    lost(error)
                    return
                except (OSError, RunFolderError) as error:
                    failing = True
                    cause = error if isinstance(error, OSError) else OSError(str(error))
                    trouble(cause)
                else:
                    if failing:
                        trouble(None)
                    failing = False

        self._thread = threading.Thread(target=run, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """End the renewals and say that we ended in order. Never raises for a lost lease or a bad disk: a lease that
        stays behind grows old."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * RENEW_S)
        with self._lock, contextlib.suppress(SupersededError, OSError, RunFolderError):
            self.check_still_ours()
            self.check_held()
            self._record = msgspec.structs.replace(self._record, released=True, renewed_at=self._wall_clock())
            _write(self.folder, self._record)


def acquire(
    folder: RunFolder,
    *,
    job_id: str = "",
    host: Host | None = None,
    pid: int | None = None,
    now: float | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> Lease:
    """Take the folder for a new driver life, whose number is `Lease.life`. The folder must exist.

    Raises RunFolderError while another driver holds it (and says who, and what to do), or when it cannot be written.
    `now`: seconds on the folder's clock (default: ask its file system).
    """
    host = host or this_host()
    pid = os.getpid() if pid is None else pid
    try:
        now = folder_clock(folder) if now is None else now
        holder = holder_of(folder, host=host, now=now)
        if holder is not None and holder.holds:
            raise RunFolderError(_refusal(folder, holder))
        newest = newest_life(folder)
        record = LeaseRecord(
            life=newest + 1,
            host=host.name,
            pid=pid,
            process_start=host.process_start(pid) or 0,
            boot_id=host.boot_id,
            pid_namespace=host.pid_namespace,
            job_id=job_id,
            renewed_at=wall_clock(),
        )
        _write(folder, record)
    except OSError as error:
        raise RunFolderError(
            f"{folder.root}: cannot be taken: {error.strerror or error} ({error.filename}). It must exist, be writable and "
            "have space; choose another run folder with --run-dir."
        ) from error
    return Lease(folder, record, wall_clock)


def _process_of(record: LeaseRecord) -> tuple[object, ...]:
    return record.host, record.boot_id, record.pid_namespace, record.pid, record.process_start


def _refusal(folder: RunFolder, holder: Holder) -> str:
    record = holder.record
    who = f"process {record.pid} on {record.host}" + (f", Slurm job {record.job_id}" if record.job_id else "")
    if holder.alive:
        proof = "it is alive"
        cure = (
            f"Wait for it, stop it with `hpcsched stop {folder.root}`, or use another run folder (--run-dir)."
        )
    else:
        proof = f"it renewed its lease {max(0.0, holder.age_s):.0f} s ago"
        cure = (
            f"If it is dead, try again in {max(1.0, STALE_S - holder.age_s):.0f} s: a lease that is not renewed for "
            f"{STALE_S:.0f} s is free. Else stop it with `hpcsched stop {folder.root}`, or use another run folder (--run-dir)."
        )
    return f"{folder.root} is in use by another driver (life {record.life}: {who}): {proof}. {cure}"


def _write(folder: RunFolder, record: LeaseRecord) -> None:
    temporary = folder.root / f".driver.json-{record.life}-{os.getpid()}-{threading.get_native_id()}"
    try:
        fd = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(folder.lease)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""
