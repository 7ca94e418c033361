"""This process's limit of open files, and one that has many open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def soft_limit(num: int) -> Iterator[int]:
    """Within it the soft limit is `num`; gives the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def many_open(num: int) -> Iterator[None]:
    """Descriptors up to `num` are in use."""
    with soft_limit(num + 200):
        fds = [os.open(os.devnull, os.O_RDONLY)]
        try:
            while fds[-1] < num:
                fds.append(os.dup(fds[0]))
            yield
        finally:
            for fd in fds:
                os.close(fd)


def limit_of(pid: int) -> int:
    """The soft limit of a process."""
    text = Path(f"/proc/{pid}/limits").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("Max open files")]
    return int(line.split()[3])
