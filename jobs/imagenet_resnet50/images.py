"""ImageNet as a list of (file, offset, length, label), whether its images lie in folders or in tar shards.

    python images.py [FOLDER]        makes the lists of FOLDER (default: $IMAGENET) where they are missing

A list can be dealt out sample by sample, so an epoch goes on at another number of ranks without repeating or skipping one.
It is made once, before any trial starts (reading the heads of all shards takes minutes on a parallel file system), and kept beside
the data, or beside this file where those may not be written. Delete it when the data change.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import random
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

LAYOUT = """{folder} does not hold ImageNet. Either folders, one a class,
    train/n01440764/n01440764_10026.JPEG ...    val/n01440764/ILSVRC2012_val_00000293.JPEG ...
or WebDataset-style tar shards, a sample being NAME.jpg and NAME.cls (its class number as text)
    train-000000.tar ...                        val-000000.tar ...
Name the folder by IMAGENET=/path. Or try made images, decoding included: --synthetic 64"""
HERE = Path(__file__).resolve().parent
ENDINGS = (".jpeg", ".jpg", ".png")
SIDE = 224

Entry = tuple[str, int, int, int]
"""File, where the image begins in it, its length (0: the whole file), label."""


def find(folder: Path, part: str) -> Iterator[Entry]:
    """The samples of "train" or "val". Ends the program when there are none, saying how to lay them out."""
    shards = sorted(folder.glob(f"{part}-*.tar"))
    if shards:
        for shard in shards:
            yield from _in_shard(shard)
        return
    classes = sorted(path for path in (folder / part).glob("*") if path.is_dir())
    if not classes:
        raise SystemExit(LAYOUT.format(folder=folder))
    for label, path in enumerate(classes):
        for file in sorted(os.scandir(path), key=lambda entry: entry.name):
            if file.name.lower().endswith(ENDINGS):
                yield file.path, 0, 0, label


def _in_shard(shard: Path) -> Iterator[Entry]:
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with tarfile.open(shard) as tar:
        for member in tar:
            name, ending = os.path.splitext(member.name)  # noqa: PTH122  (a name in a tar, not a path here)
            if ending.lower() in ENDINGS:
                images[name] = (member.offset_data, member.size)
            elif ending == ".cls" and (stream := tar.extractfile(member)) is not None:
                labels[name] = int(stream.read())
    for name, (offset, size) in images.items():
        if name not in labels:
            raise SystemExit(f"{shard}: {name} has no .cls")
        yield str(shard), offset, size, labels[name]


def write_index(folder: Path, part: str, spare: Path) -> Path:
    """The list's file; made when it is missing, and complete once it has its name. `spare`: where it may lie when nowhere else."""
    places = _places(folder, part, spare)
    with _alone(spare):
        for file in places:
            if file.exists():
                return file
        entries = find(folder.resolve(), part)  # read by trials, which run in another folder
        text = "".join(f"{path}\t{offset}\t{size}\t{label}\n" for path, offset, size, label in entries)
        for file in places:
            try:
                fresh = file.with_name(f"{file.name}.{os.getpid()}")
                fresh.write_text(text)
                fresh.rename(file)
                return file
            except OSError:
                continue
    raise SystemExit(
        f"neither {folder} nor {HERE} nor {spare} can be written: the list of images has no place"
    )


@contextlib.contextmanager
def _alone(spare: Path) -> Iterator[None]:
    """One process of a run after the other: the first trials come at once, and would all read all heads. Where the file
    system has no locks, they do."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            fcntl.flock(stack.enter_context((spare / ".imagenet-lock").open("w")), fcntl.LOCK_EX)
        yield


def _places(folder: Path, part: str, spare: Path) -> tuple[Path, ...]:
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    return (
        folder / f".index-{part}.tsv",
        HERE / f".index-{digest}-{part}.tsv",
        spare / f"imagenet-index-{part}.tsv",
    )


def judged(num_images: int, limit: int, *, rank: int, world_size: int) -> list[int]:
    """The places in the list that this rank judges. All ranks together judge the same `limit` images however many ranks there
    are, or scores of trials of different sizes could not be compared; and they are drawn from all, for the list is sorted by class."""
    drawn = torch.randperm(num_images, generator=torch.Generator().manual_seed(0))[:limit]
    return [int(place) for place in drawn[rank::world_size]]


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Decoded, cropped images as bytes (224, 224, 3), and labels."""

    def __init__(self, folder: Path, part: str, spare: Path, *, augmented: bool) -> None:
        file = next(file for file in _places(folder, part, spare) if file.exists())
        self.entries = file.read_text().splitlines()
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        path, offset, size, label = self.entries[place].split("\t")
        with Path(path).open("rb") as stream:
            stream.seek(int(offset))
            data = stream.read(int(size) or -1)
        with Image.open(io.BytesIO(data)) as opened:
            if opened.format == "JPEG":
                opened.draft("RGB", (SIDE, SIDE))  # decode at half or a quarter where that is enough
            image = opened.convert("RGB")
        image = random_crop(image) if self.augmented else central_crop(image)
        return torch.from_numpy(np.array(image)), int(label)


def random_crop(image: Image.Image) -> Image.Image:
    """8 % to 100 % of the area, 3:4 to 4:3, flipped every other time (Szegedy et al. 2015)."""
    width, height = image.size
    left, top, right, bottom = 0.0, 0.0, float(width), float(height)
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, high = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if wide <= width and high <= height:
            left, top = random.uniform(0, width - wide), random.uniform(0, height - high)
            right, bottom = left + wide, top + high
            break
    cropped = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    return cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else cropped


def central_crop(image: Image.Image) -> Image.Image:
    """Resized to 256 at its shorter side, then the middle 224."""
    width, height = image.size
    side = min(width, height) * SIDE / 256
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def make_folder(folder: Path, num: int) -> None:
    """A small stand-in: `num` JPEG files in 8 classes, and a quarter as many to judge by. Once; complete when it has its name."""
    if folder.exists():
        return
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    numbers = np.random.default_rng(0)
    for part, many in (("train", num), ("val", max(8, num // 4))):
        for place in range(many):
            label = place % 8
            file = fresh / part / f"class{label}" / f"{place}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            width, height = numbers.integers(240, 400, 2)
            y, x = np.mgrid[0:height, 0:width]
            wave = np.sin((x * np.cos(label) + y * np.sin(label)) / (4 + label))
            pixels = (
                128
                + 90 * wave[:, :, None] * np.cos(label + np.arange(3))
                + numbers.normal(0, 9, (height, width, 3))
            )
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, quality=90)
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(fresh)  # another trial was faster


if __name__ == "__main__":
    data = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("IMAGENET", HERE / "imagenet"))
    for part in ("train", "val"):
        print(f"the list of images is {write_index(data, part, HERE)}")
