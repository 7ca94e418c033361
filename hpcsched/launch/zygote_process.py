"""The supervisor's end of a zygote: starts it, asks it to preload, has it fork ranks."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from hpcsched.errors import LaunchError
from hpcsched.launch.zygote import ONE_THREAD, Fork, Forked, Preload, Ready

ASKS_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Of a zygote, not of its ranks: `torch.cuda.is_available()` at the top of a module that is preloaded asks NVML, which
does not touch CUDA (torch.cuda.is_available, Note)."""
BINDING = frozenset(
    {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "KMP_PLACE_THREADS"}
)
"""OpenMP makes its list of cores as it is loaded (libgomp), which in a zygote are those of the whole step: ranks would put their
threads on each other's. Where these are inherited, zygotes do without: their ranks' threads go where they like on the rank's cores."""
_BINDS_NOTHING = frozenset({"", "false", "none", "disabled"})
FORK_LIMIT_S = 20.0
"""A fork that takes longer means that the zygote is stuck: start cold."""


class ZygoteProcess:
    """One zygote. Not thread-safe."""

    def __init__(
        self,
        preload: Sequence[str],
        environ: Mapping[str, str],
        env: Mapping[str, str] = MappingProxyType({}),
        *,
        python: str = sys.executable,
    ) -> None:
        """`env`: [trial] env, beside `environ`, of the ranks that it will fork. Raises OSError when it cannot be started."""
        self.env = dict(env)
        mine, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                (python, "-P", "-m", "hpcsched.launch.zygote", str(theirs.fileno())),
                env=zygote_environment(environ, env),
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


def zygote_environment(inherited: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """What a zygote starts with: much is read when a process starts or a library is loaded (LD_PRELOAD, PYTORCH_ALLOC_CONF,
    TORCH_DISTRIBUTED_DEBUG), so [trial] env is there by then. Its ranks get their own environment, all of it, as they are forked."""
    kept = {name: value for name, value in inherited.items() if name not in BINDING}
    return {**ASKS_NVML, **kept, **env, **ONE_THREAD}


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


def environment_fits(env: Mapping[str, str], started_with: Mapping[str, str]) -> str | None:
    """Why ranks with this [trial] env cannot be forked by a process that was started with that one; None: they can."""
    binding = sorted(name for name in BINDING if env.get(name, "").lower() not in _BINDS_NOTHING)
    if binding:
        return (
            f"[trial.env] sets {', '.join(binding)}: cores are handed out when a process starts, and one that starts ahead does not have "
            "those of its rank yet"
        )
    if env != started_with:
        names = sorted(name for name, _ in env.items() ^ started_with.items())
        return f"[trial.env] is not what the preloading process was started with: {', '.join(dict.fromkeys(names))}"
    return None
