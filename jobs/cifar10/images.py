"""CIFAR-10's standard python batches, read without trusting them; or made images.

The files are pickles. A pickle can run anything, so they are read by an unpickler that knows NumPy arrays and no other
class, and what comes out is checked.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
LAYOUT = """{folder} does not hold CIFAR-10. Get "CIFAR-10 python version" (cifar-10-python.tar.gz, 163 MB) of
https://www.cs.toronto.edu/~kriz/cifar.html and unpack it, so that there are
    cifar-10-batches-py/data_batch_1 ... data_batch_5, test_batch
and name that folder by CIFAR10=/path/to/cifar-10-batches-py. Or try made images: --synthetic 512"""

Images = tuple[torch.Tensor, torch.Tensor]
"""Images (N, 3, 32, 32) of bytes, and labels (N)."""


class BatchUnpickler(pickle.Unpickler):
    """Knows what a batch is made of, and nothing that can act."""

    ALLOWED = frozenset(
        (module, name)
        for module, names in {
            "numpy": ("ndarray", "dtype"),
            "numpy.core.multiarray": ("_reconstruct",),
            "numpy._core.multiarray": ("_reconstruct",),
            "_codecs": ("encode",),
        }.items()
        for name in names
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(
                f"names {module}.{name}, which no CIFAR-10 batch needs; it is not loaded"
            )
        return super().find_class(module, name)


def read_batch(file: Path) -> Images:
    """Raises ValueError for a file that is no batch."""
    try:
        with file.open("rb") as stream:
            batch = BatchUnpickler(stream, encoding="bytes").load()
        data, labels = batch[b"data"], np.asarray(batch[b"labels"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ValueError(f"{file}: no CIFAR-10 batch: {error}") from error
    good = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (len(labels), 3072)
    if not good or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < 10)).all():
        raise ValueError(
            f"{file}: no CIFAR-10 batch: it holds other arrays than 3,072 bytes and a label of 0 to 9 an image"
        )
    return torch.from_numpy(data.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels.astype(np.int64))


def read_folder(folder: Path) -> tuple[Images, Images]:
    """(to train on, to judge by). Ends the program when it is not there, saying how to lay it out."""
    if not (folder / TEST_FILE).exists():
        raise SystemExit(LAYOUT.format(folder=folder))
    parts = [read_batch(folder / name) for name in TRAIN_FILES]
    images, labels = (torch.cat(piece) for piece in zip(*parts, strict=True))
    return (images, labels), read_batch(folder / TEST_FILE)


def made(num: int) -> tuple[Images, Images]:
    """Coloured stripes, a direction and a colour a class, under noise: learnable, the same each time."""
    random = np.random.default_rng(0)
    labels = np.arange(num + num // 4) % 10
    y, x = np.mgrid[0:32, 0:32]
    angle = labels[:, None, None] * np.pi / 10
    waves = np.sin(
        0.8 * (x * np.cos(angle) + y * np.sin(angle)) + random.uniform(0, 6.3, (len(labels), 1, 1))
    )
    colour = 0.5 + 0.5 * np.cos(labels[:, None] * 0.6 + np.arange(3) * 2.1)
    images = (
        128 + 60 * waves[:, None] * colour[:, :, None, None] + random.normal(0, 20, (len(labels), 3, 32, 32))
    )
    pixels = torch.from_numpy(images.clip(0, 255).astype(np.uint8))
    answers = torch.from_numpy(labels.astype(np.int64))
    return (pixels[:num], answers[:num]), (pixels[num:], answers[num:])
