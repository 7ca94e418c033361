"""Handwritten digits: an ordinary torch.distributed script.

    torchrun --nproc-per-node 2 plain_digits.py

`jobs/digits/train.py` is the same script as a trial; the lines that differ are counted by a test.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DistributedSampler

GLOBAL_BATCH = 48  # over all ranks, so that a score does not depend on how many ranks a trial happens to have


class Net(nn.Sequential):
    """Two convolutions on 8 x 8 pixels. No dropout and no batch norm: their numbers would depend on the ranks."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 10),
        )


def digits(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """1,347 images to train on and 450 to judge by, always the same ones.

    scikit-learn brings the file (`sklearn.datasets.load_digits`); to import all of it takes longer than an iteration.
    """
    sklearn = find_spec("sklearn")
    if sklearn is None or sklearn.origin is None:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn")
    rows = np.loadtxt(
        Path(sklearn.origin).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.int64
    )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(rows[:, :64], dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16
    labels = torch.tensor(rows[:, 64])[order]
    return images[450:].to(device), labels[450:].to(device), images[:450].to(device), labels[:450].to(device)


def main() -> None:
    dist.init_process_group()
    config = {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    torch.manual_seed(0)
    images, labels, test_images, test_labels = digits(device)

    net = DistributedDataParallel(Net().to(device))
    sgd = torch.optim.SGD(
        net.parameters(),
        lr=config["learning_rate"],
        momentum=config["momentum"],
        weight_decay=config["weight_decay"],
    )
    sampler = DistributedSampler(range(len(labels)))

    for epoch in range(20):
        net.train()
        sampler.set_epoch(epoch)
        for batch in BatchSampler(sampler, GLOBAL_BATCH // dist.get_world_size(), drop_last=True):
            sgd.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            sgd.step()
        net.eval()
        with torch.no_grad():
            scores = net.module(test_images)
        accuracy = (scores.argmax(dim=1) == test_labels).float().mean()
        loss = nn.functional.cross_entropy(scores, test_labels)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}  accuracy {accuracy:.4f}  loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
