"""Handwritten digits: an ordinary torch.distributed script that is also a trial.

    python train.py                              alone, with the defaults below
    torchrun --nproc-per-node 2 train.py         two ranks, no hpcsched
    hpcsched run experiment.toml                 many configurations, by the deadline

Lines marked (*) are all that hpcsched needs.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcsched

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
    trial = hpcsched.trial(learning_rate=0.05, momentum=0.9, weight_decay=1e-4, max_iterations=20)  # (*)
    config = trial.config  # (*)
    device = trial.device  # (*)
    torch.manual_seed(trial.seed)  # (*)
    images, labels, test_images, test_labels = digits(device)

    net = DistributedDataParallel(Net().to(device))
    sgd = torch.optim.SGD(
        net.parameters(),
        lr=config["learning_rate"],
        momentum=config["momentum"],
        weight_decay=config["weight_decay"],
    )
    sampler = trial.sampler(len(labels), global_batch_size=GLOBAL_BATCH)  # (*) goes on at any number of ranks
    trial.track(model=net, optimizer=sgd, sampler=sampler)  # (*) what a checkpoint holds; restores one, too

    for _ in trial:  # (*) every rank leaves at the same boundary when asked
        net.train()
        for batch in sampler.batches():  # (*)
            sgd.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            sgd.step()
        net.eval()
        with torch.no_grad():
            scores = net.module(test_images)
        accuracy = (scores.argmax(dim=1) == test_labels).float().mean()
        loss = nn.functional.cross_entropy(scores, test_labels)
        trial.report(accuracy=accuracy, loss=loss)  # (*)


if __name__ == "__main__":
    main()
