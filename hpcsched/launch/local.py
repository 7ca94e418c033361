"""Launcher for one computer: the supervisor is a child process. The rest of a rank's life is as in a Slurm step."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hpcsched.errors import CommandError
from hpcsched.launch.checks import answer_in
from hpcsched.launch.command import run_command
from hpcsched.launch.environment import srun_environment
from hpcsched.launch.launcher import Notify, StepEnded, StepRefused, is_for_good
from hpcsched.launch.openfiles import prefixed
from hpcsched.launch.processes import end_marked
from hpcsched.launch.tails import tail_of
from hpcsched.launchspec import LaunchNode, LaunchSpec, SpareSpec
from hpcsched.runfolder import RunFolder

KILL_GRACE_S = 2.0
"""After kill(): the supervisor, told by the channel, ends by itself."""
CHECK_LIMIT_S = 30.0
GONE_LIMIT_S = 10.0
"""Longest wait until a SIGKILLed process is really gone."""


class _Launch:
    """One supervisor: started, perhaps to be killed, ended."""

    def __init__(
        self,
        ids: tuple[int, int],
        node: str,
        marks: dict[str, str],
        log: Path,
        process: subprocess.Popen[bytes],
    ) -> None:
        self.ids = ids
        """Trial and incarnation; of a spare that waits its number and 0."""
        self.node = node
        self.marks = [marks]
        """Environments by which its processes are known."""
        self.log = log
        self.process = process
        self.ended: StepEnded | None = None
        self.is_forgotten = False
        self.done = threading.Event()


class LocalLauncher:
    """Starts supervisors as subprocesses, each in its own session. See `Launcher`."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        notify: Notify,
        environ: Mapping[str, str] | None = None,
        python: str = sys.executable,
        kill_grace_s: float = KILL_GRACE_S,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix`: words before the command of a supervisor (see `openfiles`)."""
        self._folder = folder
        self._notify = notify
        self._environ = srun_environment(os.environ if environ is None else environ)
        self._python = python
        self._kill_grace_s = kill_grace_s
        self._prefix = tuple(prefix)
        self._launches: dict[tuple[int, int], list[_Launch]] = {}
        self._lock = threading.Lock()
        self._closing = False

    @property
    def keeps_spares(self) -> bool:
        return True

    def start(self, spec: LaunchSpec) -> None:
        """One supervisor for each node of the placement (usually one: this computer)."""
        mpi = spec.mpi != "none"
        for node in spec.nodes:
            file = self._folder.launch_file(spec.trial_id, spec.incarnation)
            self._spawn(
                (spec.trial_id, spec.incarnation),
                node.node,
                ("hpcsched.launch.mpi_task" if mpi else "hpcsched.launch.supervisor", str(file)),
                _marks(spec, self._folder)
                | {"HPCSCHED_NODE": node.node}
                | (_mpiexec_variables() if mpi else {}),
                self._folder.supervisor_log(spec.trial_id, spec.incarnation, node.node),
                before=("mpiexec", "-n", str(len(node.gpus))) if mpi else (),
            )

    def start_spare(self, spec: SpareSpec) -> None:
        file = self._folder.spare_file(spec.number)
        marks = {"HPCSCHED_RUN_DIR": str(self._folder.root), "HPCSCHED_SPARE": str(spec.number)}
        self._spawn(
            (spec.number, 0), spec.node, ("hpcsched.launch.spare", str(file)), marks, file.with_suffix(".log")
        )

    def adopt(self, spec: LaunchSpec, spares: Sequence[int]) -> None:
        ids = (spec.trial_id, spec.incarnation)
        with self._lock:
            for number in spares:
                for launch in self._launches.pop((number, 0), []):
                    launch.ids = ids
                    launch.marks.append(_marks(spec, self._folder) | {"HPCSCHED_NODE": launch.node})
                    launch.log = self._folder.supervisor_log(*ids, launch.node)
                    self._launches.setdefault(ids, []).append(launch)

    def _spawn(
        self,
        ids: tuple[int, int],
        node: str,
        module: tuple[str, str],
        marks: dict[str, str],
        log: Path,
        before: tuple[str, ...] = (),
    ) -> None:
        env = self._environ | marks
        try:
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            argv = prefixed(self._prefix, (*before, self._python, "-P", "-m", *module, "--node", node), env)
            with log.open("ab") as output:
                process = subprocess.Popen(
                    argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )  # fmt: skip
        except OSError as error:
            why = f"{node}: the supervisor could not be started: {error}"
            self._notify(StepRefused(*ids, why, 5.0, "site" if is_for_good(error) else "slurm"))
            return
        launch = _Launch(ids, node, marks, log, process)
        with self._lock:
            self._launches.setdefault(ids, []).append(launch)
        threading.Thread(target=self._wait, args=(launch,), name="hpcsched-launch", daemon=True).start()

    def note_step(self, trial_id: int, incarnation: int, step_id: str) -> None:
        """Nothing to learn: there are no steps."""

    def kill(self, trial_id: int, incarnation: int) -> None:
        with self._lock:
            launches = list(self._launches.get((trial_id, incarnation), ()))
        if not launches:
            self._notify(StepEnded(trial_id, incarnation, 0, "nothing was launched", ()))
        for launch in launches:
            threading.Thread(
                target=self._kill, args=(launch, self._kill_grace_s), name="hpcsched-kill", daemon=True
            ).start()

    def forget(self, trial_id: int, incarnation: int) -> None:
        with self._lock:
            for launch in self._launches.get((trial_id, incarnation), ()):
                launch.is_forgotten = True
            self._drop((trial_id, incarnation))

    def _drop(self, ids: tuple[int, int]) -> None:
        """What is forgotten and has ended; the rest is for `close` to end."""
        left = [
            launch
            for launch in self._launches.get(ids, ())
            if not (launch.is_forgotten and launch.ended is not None)
        ]
        if left:
            self._launches[ids] = left
        else:
            self._launches.pop(ids, None)

    def check(self, node: LaunchNode, *, invented: bool) -> str | None:
        argv: tuple[str, ...] = (
            self._python,
            "-P",
            "-m",
            "hpcsched.launch.checks",
            msgspec.json.encode(node).decode(),
        )
        argv += ("--invented",) if invented else ()
        try:
            text = run_command(argv, timeout_s=CHECK_LIMIT_S, env=self._environ)
        except CommandError as error:
            text = error.stdout
        return answer_in(text)

    def close(self) -> None:
        self._closing = True
        with self._lock:
            alive = [
                launch for launches in self._launches.values() for launch in launches if launch.ended is None
            ]
        for launch in alive:
            threading.Thread(
                target=self._kill, args=(launch, self._kill_grace_s), name="hpcsched-kill", daemon=True
            ).start()
        end = time.monotonic() + self._kill_grace_s + GONE_LIMIT_S
        for launch in alive:
            launch.done.wait(max(0.0, end - time.monotonic()))

    # ---- threads

    def _wait(self, launch: _Launch) -> None:
        code = launch.process.wait()
        # Its ranks have died with it, and it ended the rest; where it was killed itself, a process that its ranks had
        # forked may live on.
        with self._lock:
            marks = list(launch.marks)
            own = self._folder.incarnation(*launch.ids)
        gone = True
        for mark in marks:
            gone = end_marked(mark, limit_s=GONE_LIMIT_S, logs_under=own)[1] and gone
        with self._lock:
            launch.ended = StepEnded(
                *launch.ids, code, tail_of(launch.log) if code else "", (launch.node,) if gone else ()
            )
            self._drop(launch.ids)
        launch.done.set()
        self._notify(launch.ended)

    def _kill(self, launch: _Launch, grace_s: float) -> None:
        if launch.ended is not None:
            self._notify(launch.ended)
            return
        if not launch.done.wait(grace_s):
            launch.process.terminate()
            if not launch.done.wait(grace_s):
                launch.process.kill()


def _mpiexec_variables() -> dict[str, str]:
    """Open MPI's mpiexec (mpirun(1)) is for machines of its own: here ranks share cores, and a container's user is often root."""
    shared = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return shared | root if os.geteuid() == 0 else shared


def _marks(spec: LaunchSpec, folder: RunFolder) -> dict[str, str]:
    """What the environment of every process of an incarnation holds (`rank_environment` says the same)."""
    return {
        "HPCSCHED_RUN_DIR": str(folder.root),
        "HPCSCHED_TRIAL_ID": str(spec.trial_id),
        "HPCSCHED_INCARNATION": str(spec.incarnation),
    }
