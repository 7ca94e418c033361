"""hpcsched: inside one Slurm allocation, by a fixed deadline, the best configuration, trained as far as it can be."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcsched.api.run import open_run, start
    from hpcsched.batch.job import submit
    from hpcsched.report.load import load
    from hpcsched.runtime.mpi import mpi_trial
    from hpcsched.runtime.trial import trial

__version__ = "0.1.0"
__all__ = ["load", "mpi_trial", "open_run", "start", "submit", "trial"]

_LATER = {
    "load": "hpcsched.report.load",
    "mpi_trial": "hpcsched.runtime.mpi",
    "open_run": "hpcsched.api.run",
    "start": "hpcsched.api.run",
    "submit": "hpcsched.batch.job",
    "trial": "hpcsched.runtime.trial",
}
"""Names that cost an import (torch, h5py) and are therefore fetched when first asked for."""


def __getattr__(name: str) -> Any:
    where = _LATER.get(name)
    if where is None:
        raise AttributeError(f"module 'hpcsched' has no attribute {name!r}")
    return getattr(import_module(where), name)
