"""Launcher for one computer: the supervisor is a child process. The rest of a rank's life is as in a Slurm step."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from hpcsched.launch.environment import srun_environment
from hpcsched.launch.launcher import Notify, StepEnded, StepRefused
from hpcsched.launch.processes import end_marked
from hpcsched.launch.tails import tail_of
from hpcsched.launchspec import LaunchSpec
from hpcsched.runfolder import RunFolder

KILL_GRACE_S = 2.0
"""After kill(): the supervisor, told by the channel, ends by itself."""
GONE_LIMIT_S = 10.0
"""Longest wait until a SIGKILLed process is really gone."""


class _Launch:
    """One supervisor: started, perhaps to be killed, ended."""

    def __init__(self, spec: LaunchSpec, node: str, process: subprocess.Popen[bytes]) -> None:
        self.spec = spec
        self.node = node
        self.process = process
        self.ended: StepEnded | None = None
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
    ) -> None:
        self._folder = folder
        self._notify = notify
        self._environ = srun_environment(os.environ if environ is None else environ)
        self._python = python
        self._kill_grace_s = kill_grace_s
        self._launches: dict[tuple[int, int], list[_Launch]] = {}
        self._lock = threading.Lock()
        self._closing = False

    def start(self, spec: LaunchSpec) -> None:
        """One supervisor for each node of the placement (usually one: this computer)."""
        for node in spec.nodes:
            file = self._folder.launch_file(spec.trial_id, spec.incarnation)
            argv = [self._python, "-P", "-m", "hpcsched.launch.supervisor", str(file), "--node", node.node]
            env = self._environ | _marks(spec, self._folder)
            log = self._folder.supervisor_log(spec.trial_id, spec.incarnation, node.node)
            try:
                log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with log.open("ab") as output:
                    process = subprocess.Popen(
                        argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                    )  # fmt: skip
            except OSError as error:
                why = f"{node.node}: the supervisor could not be started: {error}"
                self._notify(StepRefused(spec.trial_id, spec.incarnation, why, 5.0, "site"))
                continue
            launch = _Launch(spec, node.node, process)
            with self._lock:
                self._launches.setdefault((spec.trial_id, spec.incarnation), []).append(launch)
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

    def end_orphans(self) -> list[str]:
        found, gone = end_marked({"HPCSCHED_RUN_DIR": str(self._folder.root)}, limit_s=GONE_LIMIT_S)
        return [f"process {process.pid}{'' if gone else ' (may still be ending)'}" for process in found]

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
        marks = _marks(launch.spec, self._folder)
        _, gone = end_marked(marks | {"HPCSCHED_NODE": launch.node}, limit_s=GONE_LIMIT_S)
        log = self._folder.supervisor_log(launch.spec.trial_id, launch.spec.incarnation, launch.node)
        launch.ended = StepEnded(
            launch.spec.trial_id,
            launch.spec.incarnation,
            code,
            tail_of(log) if code else "",
            (launch.node,) if gone else (),
        )
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


def _marks(spec: LaunchSpec, folder: RunFolder) -> dict[str, str]:
    """What the environment of every process of an incarnation holds (`rank_environment` says the same)."""
    return {
        "HPCSCHED_RUN_DIR": str(folder.root),
        "HPCSCHED_TRIAL_ID": str(spec.trial_id),
        "HPCSCHED_INCARNATION": str(spec.incarnation),
    }
