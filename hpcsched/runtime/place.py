"""Who this process is: a rank of a trial, a rank under plain torchrun, or a script alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import msgspec

from hpcsched.errors import TrialError
from hpcsched.launchspec import LaunchSpec

LAUNCH_VARIABLE = "HPCSCHED_LAUNCH"
"""Names launch.json; set for the ranks of a trial and for nobody else."""
CLAIMED_VARIABLE = "HPCSCHED_RANK_PID"
"""The process that has joined as this rank."""


class Place(msgspec.Struct, frozen=True):
    """Rank and size as torchrun defines them; `launch` is None outside of hpcsched."""

    rank: int
    world_size: int
    local_rank: int
    launch: LaunchSpec | None
    rendezvous: bool
    """MASTER_ADDR and MASTER_PORT are set: other ranks may exist."""
    num_local_ranks: int = 1
    """Ranks of the trial on this node."""


def find_place(environ: Mapping[str, str]) -> Place:
    """Raises TrialError when the environment says two different things."""
    launch_file = environ.get(LAUNCH_VARIABLE)
    if "RANK" not in environ:
        if launch_file is not None:
            raise TrialError(
                f"{LAUNCH_VARIABLE} is set but RANK is not: a rank is started by hpcsched, not by hand"
            )
        return Place(rank=0, world_size=1, local_rank=0, launch=None, rendezvous=False)
    try:
        rank, world_size, local_rank = (int(environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except (KeyError, ValueError) as error:
        raise TrialError(
            f"RANK, WORLD_SIZE and LOCAL_RANK must all be set to whole numbers: {error}"
        ) from error
    if not 0 <= rank < world_size:
        raise TrialError(f"RANK={rank} is not below WORLD_SIZE={world_size}")
    launch = None if launch_file is None else read_launch(Path(launch_file))
    if launch is not None and launch.world_size != world_size:
        raise TrialError(
            f"WORLD_SIZE={world_size}, but {launch_file} is of {launch.world_size} ranks: hpcsched has started one process a rank; "
            "do not start more from the script (torch.multiprocessing.spawn, torchrun)"
        )
    local_world_size = environ.get("LOCAL_WORLD_SIZE", "")
    return Place(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        launch=launch,
        rendezvous=True,
        num_local_ranks=max(1, int(local_world_size)) if local_world_size.isdigit() else 1,
    )


def claim(place: Place, environ: MutableMapping[str, str], pid: int) -> None:
    """Note in the environment, which children inherit, that process `pid` is this rank now. Raises TrialError when one is already: two
    would answer to the driver by one name, and neither would hear all that it says."""
    if place.launch is None:
        return
    if CLAIMED_VARIABLE not in environ:
        environ[CLAIMED_VARIABLE] = str(pid)
    elif environ[CLAIMED_VARIABLE] == str(pid):
        raise TrialError(
            "the process has joined its trial already: call hpcsched.trial() once, and pass on what it returns"
        )
    else:
        raise TrialError(
            f"rank {place.rank} is process {environ[CLAIMED_VARIABLE]}, which has started this one: only one of them may call "
            "hpcsched.trial(). Where multiprocessing (a DataLoader's workers, say) imports the script again, begin its main part "
            'with `if __name__ == "__main__":`'
        )


def read_launch(file: Path) -> LaunchSpec:
    """Raises TrialError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=LaunchSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise TrialError(f"{file}: cannot read what this trial is to do: {error}") from error


def process_age_s(*, proc: Path = Path("/proc")) -> float:
    """Seconds since this process began (proc_pid_stat(5), field 22); 0 where /proc is not there."""
    try:
        fields = (proc / "self/stat").read_text().rpartition(")")[2].split()
        uptime_s = float((proc / "uptime").read_text().split()[0])
        return max(0.0, uptime_s - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
