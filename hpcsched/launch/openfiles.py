"""How many files the driver may have open, and trials.

A connection to each supervisor and each rank 0 is a file: beyond a few hundred trials at once the soft limit of many sites, 1024, is not
enough, and any process may raise its own up to the hard one. Trials keep the user's: programs that use select(2) or close
every descriptor up to the limit suffer from a high one, and srun hands its own on to the nodes.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Mapping, Sequence

MOST = 65_536
"""Some sites have a hard limit of a thousand million."""


def raise_soft_limit(environ: Mapping[str, str], *, most: int = MOST) -> tuple[str, ...]:
    """For this process. What is to stand before the words of a command that is to have the limit of before: prlimit(1).

    Nothing is done, and () returned, where the limit is high enough, may not be raised, or there is no prlimit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ()
    prlimit = shutil.which("prlimit", path=environ.get("PATH"))
    if prlimit is None:
        return ()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return ()
    return (prlimit, f"--nofile={soft}:")


def prefixed(prefix: Sequence[str], argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Raises OSError as to start `argv` itself would, when there is no such program."""
    if prefix and shutil.which(argv[0], path=environ.get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return (*prefix, *argv)
