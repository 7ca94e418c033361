"""The supervisor's end of a zygote: starts it, asks it to preload, has it fork ranks."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

from hpcsched.errors import LaunchError
from hpcsched.launch.zygote import ONE_THREAD, Fork, Forked, Preload, Ready

ASKS_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Of a zygote, not of its ranks: `torch.cuda.is_available()` at the top of a module that is preloaded asks NVML, which
does not touch CUDA (torch.cuda.is_available, Note)."""
FORK_LIMIT_S = 20.0
"""A fork that takes longer means that the zygote is stuck: start cold."""


class ZygoteProcess:
    """One zygote. Not thread-safe."""

    def __init__(
        self, preload: Sequence[str], environ: Mapping[str, str], *, python: str = sys.executable
    ) -> None:
        """Raises OSError when it cannot be started."""
        mine, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                (python, "-P", "-m", "hpcsched.launch.zygote", str(theirs.fileno())),
                env=zygote_environment(environ),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        finally:
            theirs.close()
        self._socket = mine
        self._stream = mine.makefile("rwb")
        self._ready: Ready | None = None
        self._send(Preload(tuple(preload)))

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll_ready(self, timeout_s: float = 0.0) -> Ready | None:
        """What it says once it has preloaded; None: not yet. A zygote that has died says that it is cold."""
        if self._ready is None and select.select([self._socket], [], [], timeout_s)[0]:
            line = self._stream.readline()
            if line:
                self._ready = msgspec.json.decode(line, type=Ready)
            else:
                code = self._process.wait()
                self._ready = Ready(cold=f"the preloading process ended with code {code}", preload_s=0.0)
        return self._ready

    def fork(self, request: Fork) -> int:
        """The new rank's pid. Raises LaunchError: the zygote is gone, stuck, or cannot fork."""
        try:
            self._send(request)
            if not select.select([self._socket], [], [], FORK_LIMIT_S)[0]:
                raise LaunchError(f"the preloading process has not forked within {FORK_LIMIT_S:g} s")
            line = self._stream.readline()
        except OSError as error:
            raise LaunchError(f"the preloading process is gone: {error}") from error
        if not line:
            raise LaunchError("the preloading process is gone")
        forked = msgspec.json.decode(line, type=Forked)
        if forked.pid is None:
            raise LaunchError(f"the preloading process could not fork: {forked.error}")
        return forked.pid

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """It ends; its ranks live on."""
        with contextlib.suppress(OSError):
            self._stream.close()
        self._socket.close()

    def _send(self, message: Preload | Fork) -> None:
        self._stream.write(msgspec.json.encode(message) + b"\n")
        self._stream.flush()


def zygote_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What a zygote starts with. Its ranks get their own environment when they are forked; libraries have read some of this by then."""
    return {**ASKS_NVML, **inherited, **ONE_THREAD}


def preload_of(modules: Sequence[str]) -> tuple[str, ...]:
    """Everything that a rank imports anyway, and what the experiment file adds ([trial] preload)."""
    return (
        "torch",
        "torch.distributed",
        "torch.distributed.checkpoint",
        # What torch itself imports late: at the first optimizer (2 s of a warm start, measured), DDP, save and restore.
        "torch._dynamo",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.checkpoint.state_dict_loader",
        "torch.distributed.checkpoint.state_dict_saver",
        "torch.distributed.checkpoint.filesystem",
        "torch.nn.parallel",
        "hpcsched.runtime.trial",
        *modules,
    )


def environment_fits(env: Mapping[str, str]) -> str | None:
    """Why [trial] env cannot be given to a process that has started already; None: it can."""
    late = sorted(name for name in env if name.startswith(("LD_", "PYTHON", "MALLOC_", "GLIBC_", "KMP_")))
    if late:
        return f"[trial.env] sets {', '.join(late)}, which only works from the start of a process"
    return None
