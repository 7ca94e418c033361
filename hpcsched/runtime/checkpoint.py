"""A trial's checkpoint: a folder that is complete the moment it has its name, and is believed only when it is ours.

Layout of ``checkpoint-ITERATION/``, readable by plain torch::

    .metadata, __RANK_0.distcp   torch.distributed.checkpoint (any world size): tensors only
    model.pt                     torch.load(weights_only=True): the model's plain state dict, where it fits on one rank
    manifest.json                what it is, all state that is no tensor, and a SHA-256 of every other file

**Writing.** Everything goes into ``checkpoint-ITERATION.tmp-XXXX/``, is flushed to disk, the manifest last; then one
rename gives the folder its name. Killed at any instant before, there is no such checkpoint and older ones are
untouched. The ranks agree after each step, so that an error on one (a full disk) is an error on all, not a hang.

**Reading.** A folder or file that belongs to another user or that others can write is refused before anything in it is
looked at; then the checksums are compared (each rank reads its share), then the configuration. `.metadata` is a pickle by
torch's format: it is read by an unpickler that knows only the few value types such a file is made of.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

from hpcsched.errors import CheckpointError, HpcschedError, LostCheckpointError
from hpcsched.runtime.snapshot import Snapshot
from hpcsched.runtime.tracked import Tracked

FORMAT = 1
MANIFEST = "manifest.json"
MODEL_FILE = "model.pt"
APPEARS_S = 2.0
"""How long a checkpoint that is to be restored may take to appear."""

_T = TypeVar("_T")


class FileSum(msgspec.Struct, frozen=True):
    sha256: str
    num_bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """`manifest.json`."""

    format: int
    trial_id: int
    incarnation: int
    training_iteration: int
    """Iterations that are done."""
    within_iteration: bool
    """Saved at a `trial.boundary()`: part of the next iteration is in the state too."""
    world_size: int
    config: dict[str, Any]
    torch: str
    state: dict[str, Any]
    """Skeletons by name, see `trees`."""
    files: dict[str, FileSum]


class Saved(msgspec.Struct, frozen=True):
    folder: Path
    save_s: float
    num_bytes: int


def save(
    folder: Path,
    snapshot: Snapshot | Exception,
    *,
    trial_id: int,
    incarnation: int,
    training_iteration: int,
    within_iteration: bool,
    config: Mapping[str, Any],
    group: dist.ProcessGroup,
) -> Saved:
    """Write the checkpoint `folder`. Collective over `group` (gloo); raises CheckpointError on every rank alike.

    Touches nothing but the snapshot: with one of copies it may run in a thread while training goes on. `snapshot` may be why
    this rank has none: then it fails on all of them.
    """
    began = time.monotonic()
    rank = dist.get_rank(group)

    def begin() -> tuple[Path | None, str]:
        if isinstance(snapshot, Exception):
            raise snapshot
        return _make(folder) if rank == 0 else None, snapshot.deal

    begun = _agree(group, f"{folder}: cannot begin", begin)
    assert isinstance(snapshot, Snapshot), "else all have failed together"
    plain, skeletons = snapshot.plain, snapshot.skeletons
    temporary = begun[0][0]
    assert temporary is not None
    try:
        other = next((place for place, (_, deal) in enumerate(begun) if deal != begun[0][1]), None)
        if other is not None:
            raise CheckpointError(
                f"{folder}: rank {other} tracks other parameters or optimizer states than rank 0: "
                "track a model that is the same on every rank, or one that is sharded by DTensors"
            )
        _agree(
            group,
            f"{folder}: cannot write the tensors",
            lambda: _write_shards(temporary, snapshot.tensors, group),
        )

        def seal_shards() -> dict[str, FileSum]:
            if rank == 0 and plain is not None:
                _write_file(temporary / MODEL_FILE, lambda stream: torch.save(plain, stream))
            names = [path for path in temporary.iterdir() if path.name.startswith(f"__{rank}_")]
            if rank == 0:
                names += [temporary / ".metadata"] + ([temporary / MODEL_FILE] if plain is not None else [])
            for path in names:
                path.chmod(0o600)  # whatever the umask: a file that others can write would be refused
            return {path.name: _sum(path) for path in names}

        sums = {
            name: file_sum
            for part in _agree(group, f"{folder}: cannot seal the files", seal_shards)
            for name, file_sum in part.items()
        }

        def publish() -> None:
            if rank != 0:
                return
            manifest = Manifest(
                format=FORMAT,
                trial_id=trial_id,
                incarnation=incarnation,
                training_iteration=training_iteration,
                within_iteration=within_iteration,
                world_size=dist.get_world_size(group),
                config=dict(config),
                torch=str(torch.__version__),
                state=skeletons,
                files=dict(sorted(sums.items())),
            )
            _write_file(temporary / MANIFEST, lambda stream: stream.write(msgspec.json.encode(manifest)))
            _sync_folder(temporary)
            temporary.rename(folder)
            _sync_folder(folder.parent)

        _agree(group, f"{folder}: cannot finish it", publish)
    except BaseException:
        if rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Saved(folder, time.monotonic() - began, sum(file_sum.num_bytes for file_sum in sums.values()))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder that is ours alone. Raises LostCheckpointError, or CheckpointError for a disk that does not answer."""
    _refuse_foreign(folder, directory=True)
    file = folder / MANIFEST
    _refuse_foreign(file, directory=False)
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except OSError as error:
        raise CheckpointError(f"{file}: unreadable: {error}") from error
    except msgspec.DecodeError as error:
        raise LostCheckpointError(f"{file}: unreadable: {error}") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"{file}: format {manifest.format}, this version reads {FORMAT}")
    return manifest


def verify_files(folder: Path, manifest: Manifest, *, share: int = 0, of: int = 1) -> None:
    """Compare owner, mode, length and checksum of every `of`-th file from `share`. Raises as `read_manifest`."""
    for place, (name, expected) in enumerate(sorted(manifest.files.items())):
        if place % of != share:
            continue
        if "/" in name or name in {"", ".", ".."}:
            raise LostCheckpointError(f"{folder / MANIFEST}: names a file outside of its folder: {name!r}")
        file = folder / name
        _refuse_foreign(file, directory=False)
        found = _sum(file)
        if found != expected:
            raise LostCheckpointError(
                f"{file}: altered or cut off ({found.num_bytes} bytes where {expected.num_bytes} were written, or another checksum); "
                "this checkpoint is not used"
            )


def read_whole(folder: Path, *, group: dist.ProcessGroup) -> Manifest:
    """Manifest of a checkpoint that is whole and ours. Collective; raises LostCheckpointError, or CheckpointError for a disk that
    does not answer, on every rank alike."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)

    def check() -> Manifest:
        wait_for_folder(folder)
        manifest = read_manifest(folder)
        verify_files(folder, manifest, share=rank, of=world_size)
        return manifest

    return _agree(group, f"{folder}: cannot restore", check)[rank]


def refuse_another(folder: Path, manifest: Manifest, *, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError when it is not of this configuration."""
    if manifest.config != dict(config):
        other = sorted(
            key
            for key in manifest.config.keys() | config.keys()
            if manifest.config.get(key) != config.get(key)
        )
        raise CheckpointError(f"{folder}: belongs to another configuration: {', '.join(other)} differ")


def open_checkpoint(folder: Path, *, config: Mapping[str, Any], group: dist.ProcessGroup) -> Manifest:
    """Manifest of a checkpoint that is whole, ours and of this configuration. Collective; raises CheckpointError."""
    manifest = read_whole(folder, group=group)
    refuse_another(folder, manifest, config=config)
    return manifest


def wait_for_folder(folder: Path, *, limit_s: float = APPEARS_S) -> None:
    """Return once it is there, or after `limit_s`: another node may have renamed it a moment ago, and a file system of the network
    may not know yet here. To list the folder above makes it look again."""
    until = time.monotonic() + limit_s
    while not folder.exists() and time.monotonic() < until:
        try:
            if folder.name in os.listdir(folder.parent):  # noqa: PTH208 - names are all that is wanted
                return
        except OSError:
            return
        time.sleep(0.1)


def restore(
    folder: Path, manifest: Manifest, tracked: Tracked, names: Mapping[str, Any], *, group: dist.ProcessGroup
) -> None:
    """Load `names` of `tracked` from an opened checkpoint. Collective; raises CheckpointError."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    why = f"{folder}: cannot restore"
    destinations = _agree_local(group, why, lambda: tracked.destinations(names, manifest.state))
    if destinations:
        reader = _agree_local(group, why, lambda: _reader(folder))
        try:
            load(dict(destinations), storage_reader=reader, process_group=group)
        except (CheckpointException, Exception) as error:  # the former is a BaseException
            raise CheckpointError(f"{why}: {_reason(error)}") from error
    tracked.load(names, manifest.state, destinations)


# ---- writing


def _write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

    streams: list[_Watched] = []

    class WatchedFileSystem(FileSystem):
        @contextmanager
        def create_stream(self, path: str | os.PathLike[str], mode: str) -> Any:
            with super().create_stream(path, mode) as stream:
                streams.append(_Watched(stream))
                yield streams[-1]

    writer = FileSystemWriter(folder, thread_count=1, sync_files=True, overwrite=False)
    writer.fs = WatchedFileSystem()
    try:
        save_tensors(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:  # a BaseException: `except Exception` would let it pass
        said = next((stream.problem for stream in streams if stream.problem is not None), error)
        raise CheckpointError(_reason(said)) from error


def _make(folder: Path) -> Path:
    if folder.exists():
        raise CheckpointError(f"{folder}: exists already")
    temporary = folder.with_name(f"{folder.name}.tmp-{secrets.token_hex(4)}")
    temporary.mkdir(mode=0o700, parents=True)
    temporary.chmod(0o700)
    return temporary


def _write_file(path: Path, write: Callable[[Any], object]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        watched = _Watched(stream)
        try:
            write(watched)
        except Exception as error:
            if watched.problem is not None:
                raise watched.problem from error
            raise
        stream.flush()
        os.fsync(stream.fileno())


class _Watched:
    """A stream that remembers what the disk answered: torch.save turns a full disk into a RuntimeError that does
    not say so."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.problem: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return int(self._stream.write(data))
        except OSError as error:
            self.problem = self.problem or error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- reading


def _refuse_foreign(path: Path, *, directory: bool) -> None:
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LostCheckpointError(f"{path}: {error.strerror}: the checkpoint is not complete") from error
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    if not (stat.S_ISDIR(info.st_mode) if directory else stat.S_ISREG(info.st_mode)):
        raise CheckpointError(f"{path}: is no plain {'folder' if directory else 'file'}; it is not followed")
    if info.st_uid != os.geteuid():
        raise CheckpointError(f"{path}: belongs to user {info.st_uid}, not to us; it is not loaded")
    if stat.S_IMODE(info.st_mode) & 0o022:
        raise CheckpointError(
            f"{path}: others can write it (mode {stat.S_IMODE(info.st_mode):04o}); it is not loaded. If you trust it: chmod go-w"
        )


def _sum(path: Path) -> FileSum:
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return FileSum(digest, stream.tell())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the value types of a `.metadata` file and nothing that can act."""

    _CLASSES = frozenset(
        {
            ("torch.distributed.checkpoint.metadata", "Metadata"),
            ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
            ("torch.distributed.checkpoint.metadata", "TensorProperties"),
            ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
            ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
            ("torch.distributed.checkpoint.metadata", "StorageMeta"),
            ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            ("torch.serialization", "_get_layout"),
            ("torch", "Size"),
            ("pathlib", "PosixPath"),
            ("pathlib", "Path"),
            ("collections", "OrderedDict"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._CLASSES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout)):
            return getattr(torch, name)
        raise CheckpointError(
            f".metadata names {module}.{name}, which no checkpoint of tensors needs; it is not loaded"
        )


def _reader(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

    with (folder / ".metadata").open("rb") as stream:
        metadata = _MetadataUnpickler(stream).load()
    if not isinstance(metadata, Metadata):
        raise CheckpointError(f"{folder / '.metadata'}: holds a {type(metadata).__name__}")
    for key, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{folder / '.metadata'}: {key} is no tensor; it is not loaded")
    for entry in (metadata.storage_data or {}).values():
        if Path(entry.relative_path).name != entry.relative_path:
            raise CheckpointError(f"{folder / '.metadata'}: names a file outside of its folder")

    class Reader(FileSystemReader):
        def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
            if metadata.storage_meta is None:
                metadata.storage_meta = StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata  # type: ignore[no-any-return]  # checked above; the unpickler returns Any

    return Reader(folder)


# ---- agreement


def _agree(group: dist.ProcessGroup, what: str, step: Callable[[], _T]) -> list[_T]:
    """Do `step` on every rank and learn of each other: all results by rank, or the same CheckpointError everywhere."""
    mine: tuple[_T | None, str | None, bool]
    cause: Exception | None = None
    try:
        mine = (step(), None, False)
    except Exception as error:
        cause = error
        mine = (None, _reason(error), isinstance(error, LostCheckpointError))
    results: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(results, mine, group=group)
    problems = [(rank, *result[1:]) for rank, result in enumerate(results) if result[1] is not None]
    if problems:
        # What a disk cannot tell now is no proof that anything is lost.
        rank, problem, _ = next((each for each in problems if not each[2]), problems[0])
        kind = LostCheckpointError if all(is_lost for _, _, is_lost in problems) else CheckpointError
        raise kind(f"{what}: {problem} (rank {rank})") from cause
    return [value for value, _, _ in results]


def _agree_local(group: dist.ProcessGroup, what: str, step: Callable[[], _T]) -> _T:
    """Like `_agree` for a result that stays on its rank."""
    kept: list[_T] = []
    _agree(group, what, lambda: kept.append(step()))
    return kept[0]


def _reason(error: BaseException) -> str:
    """One line: the innermost cause says what the disk said."""
    failures = getattr(error, "failures", None)  # torch's CheckpointException: rank -> (exception, stack)
    if failures:
        error = next(iter(failures.values()))[0]
    if isinstance(error, HpcschedError):
        return str(error)
    if isinstance(error, OSError):
        name = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{name}"
    return f"{type(error).__name__}: {error}"
