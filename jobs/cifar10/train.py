"""CIFAR-10 as the HyperSched paper trained it: SGD, 128 images a GPU and step, the rate times the root of the GPUs.

python train.py --synthetic 512              alone, on made images
hpcsched run experiment.toml                 many configurations, by the deadline
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from images import made, read_folder
from models import MODELS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcsched

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def augment(images: torch.Tensor) -> torch.Tensor:
    """A random crop of 32 out of 40, and a flip of every other image, each image its own."""
    num = len(images)
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2, num, 1), device=images.device)
    side = torch.arange(32, device=images.device)
    columns = torch.where(torch.rand(num, 1, device=images.device) < 0.5, side, 31 - side)
    rows, columns = (top + side)[:, None, :, None], (left + columns)[:, None, None, :]
    return padded[
        torch.arange(num, device=images.device)[:, None, None, None],
        torch.arange(3, device=images.device)[:, None, None],
        rows,
        columns,
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("CIFAR10", Path(__file__).with_name("cifar-10-batches-py")),
    )
    parser.add_argument(
        "--synthetic", type=int, metavar="NUM", help="so many made images in place of the data"
    )
    parser.add_argument("--batch", type=int, default=128, help="images a rank and step")
    options = parser.parse_args()
    trial = hpcsched.trial(learning_rate=0.1, momentum=0.9, weight_decay=5e-4)
    torch.manual_seed(trial.seed)
    train, test = made(options.synthetic) if options.synthetic else read_folder(options.data)
    images, labels, test_images, test_labels = (tensor.to(trial.device) for tensor in (*train, *test))
    mean, deviation = (
        torch.tensor(each, device=trial.device).view(3, 1, 1) * 255 for each in (MEAN, DEVIATION)
    )

    net = DistributedDataParallel(MODELS[options.model](options.width).to(trial.device))
    sgd = torch.optim.SGD(
        net.parameters(),
        lr=trial.config["learning_rate"],
        momentum=trial.config["momentum"],
        weight_decay=trial.config["weight_decay"],
    )
    steps = torch.optim.lr_scheduler.MultiStepLR(sgd, milestones=[60, 120, 160], gamma=0.2)
    scaling = trial.scaling(
        sgd, batch_size=options.batch, schedule=steps
    )  # at more GPUs: the rate grows, slowly
    sampler = trial.sampler(len(labels), global_batch_size=scaling.global_batch_size)
    trial.track(model=net, optimizer=sgd, scaling=scaling, sampler=sampler)
    autocast = torch.autocast(trial.device.type, torch.bfloat16, enabled=trial.device.type == "cuda")

    for _ in trial:
        torch.manual_seed(
            (trial.seed * 1_000 + trial.iteration) * 1_000 + trial.rank
        )  # crops: of this epoch and rank
        net.train()
        total, num_steps = torch.zeros((), device=trial.device), 0
        for batch in sampler.batches():
            pixels = augment((images[batch].float() - mean) / deviation)
            with autocast:
                loss = nn.functional.cross_entropy(net(pixels), labels[batch])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            total, num_steps = total + loss.detach(), num_steps + 1
        scaling.step()
        mine = slice(trial.rank, None, trial.world_size)
        right = torch.zeros((), device=trial.device)
        net.eval()
        for buffer in net.buffers():
            dist.broadcast(buffer, 0)  # a norm's statistics are each rank's own; a checkpoint holds rank 0's
        with torch.no_grad(), autocast:
            for pixels, answers in zip(
                test_images[mine].split(500), test_labels[mine].split(500), strict=True
            ):
                right += (net.module((pixels.float() - mean) / deviation).argmax(dim=1) == answers).sum()
        sums = torch.stack([right, total / num_steps])
        dist.all_reduce(sums)
        accuracy, loss = sums / torch.tensor([len(test_labels), trial.world_size], device=trial.device)
        trial.report(accuracy=accuracy, loss=loss, learning_rate=scaling.learning_rates[0])


if __name__ == "__main__":
    main()
