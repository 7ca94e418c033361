"""`best/`: the best complete checkpoint, always whole.

`best` is a symbolic link to a folder beside it; a new best is made complete under a new name and the link is
replaced by one rename, so that whoever looks sees the old best or the new one, never a mixture or nothing.
Files are hard links where the file system has them (no second copy of a large model), else copies.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcsched.runfolder import RunFolder

MANIFEST = "manifest.json"
"""Every complete checkpoint has one (`runtime.checkpoint`, `runtime.mpi`): it is written last."""


def publish_best(
    folder: RunFolder, checkpoint: Path, facts: dict[str, Any], still_ours: Callable[[], bool] = lambda: True
) -> None:
    """Make `best/` hold this checkpoint: `checkpoint/` (all its files), `model.pt`, `best.json`.

    Publishing the same checkpoint again changes nothing but `best.json`'s place. Raises OSError (disk full, the checkpoint is not
    there, ...): the old best then still stands. `still_ours` is asked when all is ready: where another driver has taken the run folder over
    meanwhile, its best stands.
    """
    name = f".best-{facts['trial_id']}-{facts['incarnation']}-{facts['training_iteration']}"
    target = folder.root / name
    if not (target / "best.json").exists():
        fresh = folder.root / f"{name}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        # For the owner alone, whatever the umask: a trial may go on from here, and believes no folder that others can write.
        (fresh / "checkpoint").mkdir(mode=0o700, parents=True)
        (fresh / "checkpoint").chmod(0o700)
        for source in sorted(checkpoint.rglob("*")):
            destination = fresh / "checkpoint" / source.relative_to(checkpoint)
            if source.is_dir():
                destination.mkdir(parents=True, exist_ok=True)
            else:
                destination.parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(source, destination)
        if not (fresh / "checkpoint" / MANIFEST).exists():  # to list a folder that is not there gives nothing
            shutil.rmtree(fresh, ignore_errors=True)
            raise OSError(errno.ENOENT, "the checkpoint is not there, or not whole", str(checkpoint))
        model = checkpoint / "model.pt"
        if model.exists():
            _link_or_copy(model, fresh / "model.pt")
        with (fresh / "best.json").open("w") as file:
            json.dump(facts, file, indent=2, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        if not still_ours():
            shutil.rmtree(fresh, ignore_errors=True)
            return
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    elif not still_ours():
        return
    link = folder.root / ".best.link"
    with contextlib.suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(name)
    link.rename(folder.best)
    for old in folder.root.glob(".best-*"):
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def _link_or_copy(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:  # no hard links here (other device, file system without them): a copy is as good
        shutil.copy2(source, destination)
