"""A trial whose ranks are an MPI program: JAX, scikit-learn, a solver; nothing here imports torch.

::

    trial = hpcsched.mpi_trial(alpha=0.1)
    trial.track(solver=solver)         # state_dict() of numbers, strings, lists, dicts and NumPy arrays
    for iteration in trial:
        solver.advance(trial.comm)     # a mpi4py communicator of the script's own
        trial.report(error=solver.error())

A checkpoint is `arrays.npz` (no pickles) and `manifest.json`, written by rank 0 from *its* objects: what is tracked must
have the same state on every rank, or gather it in `state_dict()` (which every rank calls) and scatter it in
`load_state_dict()`. So another number of ranks can go on from it. It is complete once its folder has been renamed, as
`hpcsched.runtime.checkpoint` describes; files that are others' or that others can write are refused, checksums are
compared.

Importing `mpi4py.MPI` in a process that no MPI launcher has started can end it, so this module does that only when a
script asks for such a trial.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hpcsched.errors import CheckpointError, LostCheckpointError, TrialError
from hpcsched.runtime.driverline import Line
from hpcsched.runtime.place import Place, claim, find_place, process_age_s
from hpcsched.runtime.session import Session, ignore_signals, line_of

FORMAT = 1
ARRAYS = "arrays.npz"
MANIFEST = "manifest.json"
_ARRAY, _FLOAT = "$array", "$float"
_POLL_S = 0.02


class MpiManifest(msgspec.Struct, frozen=True):
    """`manifest.json` of an MPI trial's checkpoint."""

    format: int
    trial_id: int
    incarnation: int
    training_iteration: int
    within_iteration: bool
    world_size: int
    config: dict[str, Any]
    state: dict[str, Any]
    """By name; an array is {"$array": key in arrays.npz}."""
    sha256: str
    """Of `arrays.npz`."""
    kind: str = "mpi"


def mpi_trial(*, max_iterations: int | None = None, seed: int | None = None, **defaults: Any) -> MpiTrial:
    """Join the trial that this process is a rank of, by MPI; otherwise as `hpcsched.trial`.

    Without hpcsched (``mpirun -n 4 python solve.py``) its ranks are those of MPI. Raises TrialError when mpi4py is
    missing, or when MPI and hpcsched do not agree who this process is ([launcher] mpi = "pmix" is missing in the
    experiment file).
    """
    age_s = process_age_s()
    place = find_place(os.environ)
    claim(place, os.environ, os.getpid())
    if place.launch is not None:
        ignore_signals()
    began = time.monotonic()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise TrialError(
            f"an MPI trial needs mpi4py and an MPI library: {error}. pip install 'hpcsched[mpi]'"
        ) from error
    world = MPI.COMM_WORLD
    if place.launch is None:
        place = msgspec.structs.replace(place, rank=world.rank, world_size=world.size, local_rank=0)
    elif (world.rank, world.size) != (place.rank, place.world_size):
        raise TrialError(
            f"MPI says rank {world.rank} of {world.size}, hpcsched says {place.rank} of {place.world_size}: set "
            'launcher.mpi = "pmix" in the experiment file, and let mpi4py use the MPI library that Slurm\'s plugin is for'
        )
    made = MpiTrial(
        place,
        world.Dup(),
        world.Dup(),
        line_of(place),
        defaults=defaults,
        max_iterations=max_iterations,
        seed=seed,
        setup_s={"imports": age_s, "group": time.monotonic() - began},
    )
    made._watch_the_end()
    return made


class MpiTrial(Session):
    """One rank's view of its trial. Made by `hpcsched.mpi_trial()`."""

    def __init__(
        self,
        place: Place,
        comm: Any,
        own: Any,
        line: Line,
        *,
        defaults: dict[str, Any],
        max_iterations: int | None,
        seed: int | None,
        setup_s: dict[str, float],
    ) -> None:
        super().__init__(
            place, line, defaults=defaults, max_iterations=max_iterations, seed=seed, setup_s=setup_s
        )
        self._comm = comm
        self._own = own
        """For verdicts and saves: messages of the script cannot be taken for ours."""
        self._objects: dict[str, Any] = {}
        self._read: tuple[MpiManifest, Mapping[str, np.ndarray[Any, Any]]] | None = None
        self._has_looked = False

    @property
    def comm(self) -> Any:
        """A communicator (mpi4py) of all ranks, for the script."""
        return self._comm

    def track(self, **objects: Any) -> None:
        """Name what a checkpoint holds, and restore it at once when this incarnation goes on from one. Collective.

        Raises TrialError for an object without state, CheckpointError when the checkpoint is not whole, not ours, of
        another configuration, or of other objects.
        """
        if self._looping:
            raise TrialError("trial.track() after the loop has begun: what is tracked must be known before")
        for name, value in objects.items():
            if name in self._objects:
                raise TrialError(f"trial.track(): {name!r} is tracked already")
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise TrialError(
                    f"trial.track(): {name} is a {type(value).__name__} without state_dict() and load_state_dict()"
                )
        self._objects.update(objects)
        launch = self._launch
        if launch is None or launch.restore is None or not objects:
            return
        began = time.monotonic()
        if not self._has_looked:
            self._has_looked = True
            found = self._first_usable(
                lambda folder: self._agree(lambda: read_checkpoint(folder, launch.config))
            )
            self._read = None if found is None else found[1]
        if self._read is None:
            return  # from scratch
        manifest, arrays = self._read
        missing = sorted(objects.keys() - manifest.state.keys())
        if missing:
            raise CheckpointError(f"{launch.restore}: holds nothing named {', '.join(missing)}")
        for name, value in objects.items():
            value.load_state_dict(_join(manifest.state[name], arrays))
        self._setup_s["restore"] = self._setup_s.get("restore", 0.0) + time.monotonic() - began

    # ---- Session

    @property
    def _is_tracking(self) -> bool:
        return bool(self._objects)

    def _broadcast(self, number: int) -> int:
        return int(self._own.bcast(number, root=0))

    def _wait_for_all(self, limit_s: float) -> None:
        request = self._own.Ibarrier()
        until = time.monotonic() + limit_s
        while not request.Test():
            if time.monotonic() > until:
                raise TrialError(f"other ranks have not left the loop within {limit_s:g} s")
            time.sleep(_POLL_S)

    def _write_checkpoint(self, folder: Path, within: bool) -> tuple[float, int]:
        launch = self._launch
        assert launch is not None, "only a trial of an experiment saves"
        began = time.monotonic()

        def write() -> int:
            arrays: dict[str, np.ndarray[Any, Any]] = {}
            state = {name: _split(value.state_dict(), name, arrays) for name, value in self._objects.items()}
            if self.rank != 0:
                return 0
            return write_checkpoint(
                folder,
                arrays,
                MpiManifest(
                    format=FORMAT,
                    trial_id=launch.trial_id,
                    incarnation=launch.incarnation,
                    training_iteration=self._iteration,
                    within_iteration=within,
                    world_size=self.world_size,
                    config=launch.config,
                    state=state,
                    sha256="",
                ),
            )

        num_bytes = self._own.bcast(self._agree(write), root=0)
        return time.monotonic() - began, int(num_bytes)

    def _leave_groups(self) -> None:
        """MPI_Finalize comes by mpi4py's own exit handler."""

    def _abandon(self) -> None:
        """The others may be waiting for us, and MPI would make the end of this process wait for them."""

    def _agree(self, step: Any) -> Any:
        """Do `step` on every rank; an error on one is an error on all."""
        result, problem = None, None
        try:
            result = step()
        except (OSError, CheckpointError, TrialError) as error:
            problem = (str(error), isinstance(error, LostCheckpointError))
        problems = [each for each in self._own.allgather(problem) if each is not None]
        if problems:
            text, _ = next((each for each in problems if not each[1]), problems[0])
            raise (LostCheckpointError if all(is_lost for _, is_lost in problems) else CheckpointError)(text)
        return result


def write_checkpoint(folder: Path, arrays: Mapping[str, np.ndarray[Any, Any]], manifest: MpiManifest) -> int:
    """Write and rename; bytes written. Raises OSError or CheckpointError, and then there is no such folder."""
    if folder.exists():
        raise CheckpointError(f"{folder}: exists already")
    fresh = folder.with_name(f"{folder.name}.tmp-{secrets.token_hex(4)}")
    fresh.mkdir(mode=0o700, parents=True)
    try:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **dict(arrays))
        data = buffer.getvalue()
        manifest = msgspec.structs.replace(manifest, sha256=hashlib.sha256(data).hexdigest())
        text = msgspec.json.encode(manifest)
        for name, content in ((ARRAYS, data), (MANIFEST, text)):
            handle = os.open(fresh / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        _sync(fresh)
        fresh.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return len(data) + len(text)


def read_checkpoint(
    folder: Path, config: Mapping[str, Any] | None = None
) -> tuple[MpiManifest, Mapping[str, np.ndarray[Any, Any]]]:
    """(manifest, arrays) of a checkpoint that is whole, ours, and of this configuration. Raises CheckpointError, and
    LostCheckpointError for one that is missing or damaged."""
    for path in (folder, folder / MANIFEST, folder / ARRAYS):
        try:
            info = path.lstat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LostCheckpointError(f"{path}: {error.strerror}: the checkpoint is not complete") from error
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        if info.st_uid != os.geteuid() or stat.S_ISLNK(info.st_mode) or info.st_mode & 0o022:
            raise CheckpointError(
                f"{path}: is another user's, a link, or others can write it; it is not loaded"
            )
    data = (folder / ARRAYS).read_bytes()
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=MpiManifest)
    except OSError as error:
        raise CheckpointError(f"{folder / MANIFEST}: unreadable: {error}") from error
    except msgspec.DecodeError as error:
        raise LostCheckpointError(f"{folder / MANIFEST}: unreadable: {error}") from error
    if manifest.format != FORMAT or manifest.kind != "mpi":
        raise CheckpointError(f"{folder / MANIFEST}: format {manifest.format} of {manifest.kind!r}")
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise LostCheckpointError(f"{folder / ARRAYS}: altered or cut off; this checkpoint is not used")
    if config is not None and manifest.config != dict(config):
        raise CheckpointError(f"{folder}: belongs to another configuration")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return manifest, {name: arrays[name] for name in arrays.files}


def _split(tree: Any, path: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(tree, np.ndarray):
        if tree.dtype.hasobject:
            raise TrialError(f"{path}: an array of Python objects cannot be put into a checkpoint")
        arrays[path] = tree
        return {_ARRAY: path}
    if isinstance(tree, np.generic):
        tree = tree.item()
    if isinstance(tree, float) and not math.isfinite(tree):
        return {_FLOAT: str(tree)}  # JSON has no word for it
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, list | tuple):
        return [_split(item, f"{path}/{place}", arrays) for place, item in enumerate(tree)]
    if isinstance(tree, Mapping) and all(isinstance(key, str) and not key.startswith("$") for key in tree):
        return {key: _split(value, f"{path}/{key}", arrays) for key, value in tree.items()}
    raise TrialError(
        f"{path}: a {type(tree).__name__} cannot be put into a checkpoint (numbers, strings, lists, dicts with text keys and arrays can)"
    )


def _join(tree: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(tree, list):
        return [_join(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _ARRAY in tree:
        return arrays[tree[_ARRAY]]
    if _FLOAT in tree:
        return float(tree[_FLOAT])
    return {key: _join(value, arrays) for key, value in tree.items()}


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
