"""ResNet-50 on ImageNet: bf16 autocast, channels_last, and sub-epochs of 100 steps and 5,120 validation images as iterations.

python train.py --synthetic 64 --batch 4     alone, on a small folder of made JPEG files
hpcsched run experiment.toml                 many configurations, by the deadline
"""

import argparse
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from images import Images, judged, make_folder, write_index
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

import hpcsched

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 (with the stride), 1 x 1 to four times the channels; the last norm begins at zero."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolution(inputs, channels, 1),
            nn.ReLU(inplace=True),
            convolution(channels, channels, 3, stride),
            nn.ReLU(inplace=True),
            convolution(channels, 4 * channels, 1),
        )
        nn.init.zeros_(self.body[-1][1].weight)
        same = stride == 1 and inputs == 4 * channels
        self.shortcut = nn.Identity() if same else convolution(inputs, 4 * channels, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def resnet50(width: int) -> nn.Sequential:
    """He et al. 2016; `width` is 64 as published."""
    layers: list[nn.Module] = [convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, num in enumerate((3, 4, 6, 3)):
        for place in range(num):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage > 0 and place == 0 else 1))
            inputs = 4 * width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("IMAGENET", Path(__file__).with_name("imagenet"))
    )
    parser.add_argument(
        "--synthetic", type=int, metavar="NUM", help="so many made JPEG files in place of the data"
    )
    parser.add_argument("--batch", type=int, default=128, help="images a rank and step")
    parser.add_argument("--steps", type=int, default=100, help="of a sub-epoch")
    parser.add_argument(
        "--validation", type=int, default=5120, help="images that a sub-epoch is judged by, over all ranks"
    )
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="decoding processes a rank"
    )
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    options = parser.parse_args()
    trial = hpcsched.trial(learning_rate=0.1, momentum=0.9, weight_decay=1e-4)
    spare = Path(os.environ.get("HPCSCHED_RUN_DIR", "."))
    folder = spare / "made-images" if options.synthetic else options.data
    if trial.rank == 0:
        if options.synthetic:
            make_folder(folder, options.synthetic)
        for part in ("train", "val"):
            write_index(folder, part, spare)
    dist.barrier()
    train, judges = (
        Images(folder, "train", spare, augmented=True),
        Images(folder, "val", spare, augmented=False),
    )

    torch.manual_seed(trial.seed)
    torch.backends.cudnn.benchmark = True
    net = DistributedDataParallel(resnet50(options.width).to(trial.device, memory_format=torch.channels_last))
    sgd = torch.optim.SGD(
        net.parameters(),
        lr=trial.config["learning_rate"],
        momentum=trial.config["momentum"],
        weight_decay=trial.config["weight_decay"],
    )
    steps = torch.optim.lr_scheduler.MultiStepLR(sgd, milestones=[60, 120, 160], gamma=0.2)
    scaling = trial.scaling(sgd, batch_size=options.batch, schedule=steps)
    sampler = trial.sampler(len(train), global_batch_size=scaling.global_batch_size)
    trial.track(model=net, optimizer=sgd, scaling=scaling, sampler=sampler)

    on_gpu = trial.device.type == "cuda"
    kept = options.workers > 0
    loader = DataLoader(
        train, batch_sampler=sampler, num_workers=options.workers, pin_memory=on_gpu, persistent_workers=kept
    )
    mine = Subset(
        judges, judged(len(judges), options.validation, rank=trial.rank, world_size=trial.world_size)
    )
    judging = DataLoader(
        mine, options.batch, num_workers=options.workers, pin_memory=on_gpu, persistent_workers=kept
    )
    mean, deviation = (
        torch.tensor(each, device=trial.device).view(3, 1, 1) * 255 for each in (MEAN, DEVIATION)
    )
    autocast = torch.autocast(trial.device.type, torch.bfloat16)

    def prepared(pixels: Tensor) -> Tensor:
        """Bytes (N, 224, 224, 3) -> normalised (N, 3, 224, 224), which in memory is channels_last without a copy."""
        return (pixels.to(trial.device, non_blocking=True).permute(0, 3, 1, 2).float() - mean) / deviation

    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch; a sub-epoch goes on where the last one stopped."""
        while True:
            yield from sampler.over(loader)

    batches = endless()
    for _ in trial:
        net.train()
        sums = torch.zeros(3, device=trial.device)  # loss of the steps, right answers, answers
        for pixels, labels in islice(batches, options.steps):
            with autocast:
                loss = nn.functional.cross_entropy(
                    net(prepared(pixels)), labels.to(trial.device, non_blocking=True)
                )
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            sums[0] += loss.detach()
        scaling.step()
        net.eval()
        for buffer in net.buffers():
            dist.broadcast(buffer, 0)  # a norm's statistics are each rank's own; a checkpoint holds rank 0's
        with torch.no_grad(), autocast:
            for pixels, labels in judging:
                right = net.module(prepared(pixels)).argmax(dim=1) == labels.to(trial.device)
                sums[1:] += torch.stack([right.sum(), torch.tensor(len(labels), device=trial.device)])
        dist.all_reduce(sums)
        trial.report(
            accuracy=sums[1] / sums[2],
            loss=sums[0] / (options.steps * trial.world_size),
            learning_rate=scaling.learning_rates[0],
        )


if __name__ == "__main__":
    main()
