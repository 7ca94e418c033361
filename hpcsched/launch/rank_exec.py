"""Become a rank: `python -I -S rank_exec.py SUPERVISOR_PID CORES COMMAND...`, run by the node supervisor.

Between fork and exec of a process with threads almost nothing is safe, so the supervisor spawns this small program
(standard library only, some 10 ms), which arranges its own process and then becomes the command:

- a session of its own, so that one signal reaches the rank and all of its process group;
- SIGTERM and SIGINT ignored: when a job is cancelled Slurm signals every process at once, and the channel decides;
- SIGKILL when the supervisor dies (prctl(2), PR_SET_PDEATHSIG), so that nothing trains on unseen;
- the core set, and the NUMA nodes of its memory (HPCSCHED_MEMORY_NODES), which whatever it runs inherits.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
MPOL_BIND = 2
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261}
"""Number of the system call (glibc has no function for it; libnuma may not be there)."""


def bind_memory(text: str) -> bool:
    """Take memory from these NUMA nodes only ("0", "0,1"; set_mempolicy(2)). False where that is not allowed or nothing is asked."""
    number = SET_MEMPOLICY.get(os.uname().machine)
    nodes = text.split(",")
    if number is None or not all(node.isdecimal() for node in nodes):
        return False
    mask = 0
    for node in nodes:
        mask |= 1 << int(node)
    size = mask.bit_length() // 64 + 1
    words = (ctypes.c_ulong * size)(*(mask >> 64 * word & (1 << 64) - 1 for word in range(size)))
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(number, MPOL_BIND, words, ctypes.c_ulong(64 * size + 1)) == 0)


def main() -> None:
    supervisor, cores, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:  # it died before the line above
        os._exit(137)
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    bind_memory(os.environ.get("HPCSCHED_MEMORY_NODES", ""))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(
            f"hpcsched: cannot run {command[0]!r}: {error.strerror} (PATH is {os.environ.get('PATH', '')})",
            file=sys.stderr,
            flush=True,
        )
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
