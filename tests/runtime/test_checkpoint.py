from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from hpcsched.errors import CheckpointError, TrialError
from hpcsched.runtime import checkpoint
from hpcsched.runtime.checkpoint import MANIFEST, FileSum, open_checkpoint, read_manifest, restore, save
from hpcsched.runtime.snapshot import take
from tests.support.groups import Objects, file_size_limit, groups_of_one

CONFIG = {"learning_rate": 0.1, "layers": [1, 2]}


def save_to(folder: Path, objects: Objects, **changes: Any) -> checkpoint.Saved:
    fields: dict[str, Any] = {
        "trial_id": 3,
        "incarnation": 1,
        "training_iteration": 5,
        "within_iteration": False,
        "config": CONFIG,
        "group": groups_of_one().saves,
    }
    return save(folder, take(objects.tracked, rank=0, num_ranks=1), **(fields | changes))


def restore_from(folder: Path, objects: Objects, *, config: dict[str, Any] = CONFIG) -> None:
    group = groups_of_one().saves
    manifest = open_checkpoint(folder, config=config, group=group)
    restore(folder, manifest, objects.tracked, objects.named, group=group)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint-5"


def test_what_is_restored_is_what_was_saved_and_goes_on_the_same(folder: Path) -> None:
    saved = Objects()
    save_to(folder, saved)
    fresh = Objects(seed=1, steps=0)
    restore_from(folder, fresh)
    assert fresh.numbers() == saved.numbers()
    for objects in (saved, fresh):
        torch.manual_seed(9)
        objects.train()
        objects.train()
    assert fresh.numbers() == saved.numbers()


def test_saving_changes_nothing(folder: Path) -> None:
    objects = Objects()
    before = objects.numbers()
    save_to(folder, objects)
    assert objects.numbers() == before


def test_the_model_file_is_read_by_plain_torch(folder: Path) -> None:
    objects = Objects()
    save_to(folder, objects)
    state = torch.load(folder / "model.pt", weights_only=True)
    assert {name: value.tolist() for name, value in state.items()} == {
        name: value.tolist() for name, value in objects.net.state_dict().items()
    }


def test_the_tensors_are_read_by_plain_torch_distributed_checkpoint(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    objects = Objects()
    save_to(folder, objects)
    wanted = {"model/weight": torch.zeros(3, 6)}
    dcp.load(wanted, checkpoint_id=folder, no_dist=True)
    assert torch.equal(wanted["model/weight"], objects.net.weight)


def test_nothing_is_left_beside_a_finished_checkpoint(folder: Path) -> None:
    result = save_to(folder, Objects())
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint-5"]
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert result.num_bytes == sum(sizes.values()) - sizes[MANIFEST]
    assert read_manifest(folder).files.keys() == sizes.keys() - {MANIFEST}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_nobody_else_can_read_or_write_it_whatever_the_umask(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        save_to(folder, Objects())
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    restore_from(folder, Objects(seed=1, steps=0))


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "model.pt"])
@pytest.mark.parametrize("harm", ["alter", "truncate", "remove", "open to others", "link"])
def test_a_file_that_is_not_as_it_was_written_is_refused(folder: Path, name: str, harm: str) -> None:
    save_to(folder, Objects())
    file = folder / name
    data = file.read_bytes()
    match harm:
        case "alter":
            file.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
        case "truncate":
            file.write_bytes(data[:-1])
        case "remove":
            file.unlink()
        case "open to others":
            file.chmod(0o620)
        case "link":
            file.rename(folder.parent / "elsewhere")
            file.symlink_to(folder.parent / "elsewhere")
    target = Objects(seed=1, steps=0)
    before = target.numbers()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        restore_from(folder, target)
    assert target.numbers() == before


def test_a_folder_or_manifest_that_others_can_write_is_refused(folder: Path) -> None:
    save_to(folder, Objects())
    folder.chmod(0o770)
    with pytest.raises(CheckpointError, match="others can write it"):
        read_manifest(folder)
    folder.chmod(0o700)
    (folder / MANIFEST).chmod(0o602)
    with pytest.raises(CheckpointError, match="others can write it"):
        read_manifest(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    save_to(folder, Objects())
    os.chown(folder / "__0_0.distcp", 12345, -1)
    with pytest.raises(CheckpointError, match="belongs to user 12345"):
        restore_from(folder, Objects())


def test_a_checkpoint_of_another_configuration_is_refused(folder: Path) -> None:
    save_to(folder, Objects())
    with pytest.raises(CheckpointError, match="another configuration: learning_rate differ"):
        restore_from(folder, Objects(), config=CONFIG | {"learning_rate": 0.2})


def test_a_model_of_another_shape_is_refused_and_named(folder: Path) -> None:
    save_to(folder, Objects())
    with pytest.raises(CheckpointError, match="of another shape"):
        restore_from(folder, Objects(features=7, steps=0))


@pytest.mark.parametrize("cut", [0, 1, 200])
def test_a_cut_off_manifest_is_refused(folder: Path, cut: int) -> None:
    save_to(folder, Objects())
    manifest = (folder / MANIFEST).read_bytes()
    (folder / MANIFEST).write_bytes(manifest[:cut])
    with pytest.raises(CheckpointError, match="unreadable"):
        read_manifest(folder)


def test_a_pickle_that_acts_is_never_run_even_with_the_right_checksum(folder: Path) -> None:
    save_to(folder, Objects())
    proof = folder.parent / "acted"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.system, (f"touch {proof}",))

    file = folder / ".metadata"
    file.write_bytes(pickle.dumps(Evil()))
    manifest = read_manifest(folder)
    files = manifest.files | {".metadata": checkpoint._sum(file)}
    (folder / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    with pytest.raises(CheckpointError, match="no checkpoint of tensors needs"):
        restore_from(folder, Objects())
    assert not proof.exists()


def test_a_manifest_that_points_outside_of_its_folder_is_refused(folder: Path) -> None:
    save_to(folder, Objects())
    manifest = read_manifest(folder)
    files = manifest.files | {"../other": FileSum("0", 0)}
    (folder / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    with pytest.raises(CheckpointError, match="outside of its folder"):
        restore_from(folder, Objects())


@pytest.mark.parametrize("num_bytes", [0, 100, 1500, 3500])
def test_a_full_disk_leaves_the_older_checkpoint_and_a_clear_message(folder: Path, num_bytes: int) -> None:
    objects = Objects(features=200)
    save_to(folder, objects)
    saved = objects.numbers()
    objects.train()
    with file_size_limit(num_bytes), pytest.raises(CheckpointError, match="File too large"):
        save_to(folder.with_name("checkpoint-6"), objects)
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint-5"]
    restored = Objects(features=200, seed=1, steps=0)
    restore_from(folder, restored)
    assert restored.numbers() == saved
    save_to(folder.with_name("checkpoint-6"), objects)  # and once there is room again


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="Not a directory"):
        save_to(tmp_path / "file" / "checkpoint-5", Objects())


def test_an_existing_checkpoint_is_never_overwritten(folder: Path) -> None:
    save_to(folder, Objects())
    with pytest.raises(CheckpointError, match="exists already"):
        save_to(folder, Objects())


def test_state_that_is_no_tensor_survives(folder: Path) -> None:
    class Odd:
        def __init__(self, state: dict[str, Any]) -> None:
            self.state = state

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    state: dict[str, Any] = {
        "nan": float("inf"),
        "pair": (1, (2.5, None)),
        "by number": {1: "a", (2, 3): torch.arange(3, dtype=torch.int16)},
        "bytes": b"\x00\xff",
        "$": "not a tag",
        "list": [True, torch.tensor(2.0)],
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    group = groups_of_one().saves
    for odd in (Odd(state), Odd({})):
        tracked = checkpoint.Tracked()
        tracked.add({"odd": odd})
        if odd.state:
            save(
                folder,
                take(tracked, rank=0, num_ranks=1),
                trial_id=1,
                incarnation=1,
                training_iteration=1,
                within_iteration=False,
                config={},
                group=group,
            )
        else:
            restore(
                folder, open_checkpoint(folder, config={}, group=group), tracked, {"odd": odd}, group=group
            )
            assert repr(odd.state) == repr(state)
    assert not (folder / "model.pt").exists()


def test_what_cannot_be_saved_is_named(folder: Path) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"loader": {"socket": object()}}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    tracked = checkpoint.Tracked()
    tracked.add({"odd": Odd()})
    with pytest.raises(TrialError, match="odd/loader/socket: a object cannot be put into a checkpoint"):
        tracked.state()


def test_killed_at_any_instant_of_a_save_every_named_checkpoint_is_whole(tmp_path: Path) -> None:
    """50 processes save one checkpoint after the other until SIGKILL; forked, so that torch is imported once."""
    script = Path(__file__).parent / "killed_saves.py"
    done = subprocess.run(  # noqa: PLW1510  (looked at below)
        [sys.executable, script, tmp_path, "50"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kills, whole, unfinished = map(int, done.stdout.split())
    assert kills == 50
    assert whole >= 50  # each process had finished at least its first
    assert unfinished >= 10  # and the kills did hit saves under way
