"""The paper's CIFAR-10 models in plain torch, for images of 32 x 32. `width` is 64 as published; smaller for a quick look."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

NUM_CLASSES = 10


def convolution(inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Without its own bias: the norm has one."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    """He et al. 2016: two 3 x 3 convolutions, or (`bottleneck`) 1 x 1, 3 x 3, 1 x 1 with four times the channels."""

    def __init__(self, inputs: int, channels: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * channels if bottleneck else channels
        if bottleneck:
            layers = [
                convolution(inputs, channels, 1),
                nn.ReLU(inplace=True),
                convolution(channels, channels, 3, stride=stride),
                nn.ReLU(inplace=True),
                convolution(channels, outputs, 1),
            ]
        else:
            layers = [
                convolution(inputs, channels, 3, stride=stride),
                nn.ReLU(inplace=True),
                convolution(channels, outputs, 3),
            ]
        self.body = nn.Sequential(*layers)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def resnet(blocks: tuple[int, ...], width: int, *, bottleneck: bool) -> nn.Module:
    layers: list[nn.Module] = [convolution(3, width, 3), nn.ReLU(inplace=True)]
    inputs = width
    for stage, num in enumerate(blocks):
        channels = width << stage
        for place in range(num):
            stride = 2 if stage > 0 and place == 0 else 1
            layers.append(Residual(inputs, channels, stride, bottleneck=bottleneck))
            inputs = 4 * channels if bottleneck else channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, NUM_CLASSES))


def vgg16(width: int) -> nn.Module:
    """Simonyan and Zisserman 2015, with batch norm and one linear layer, as is usual for CIFAR-10."""
    layers: list[nn.Module] = []
    inputs = 3
    for times, num in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(num):
            layers += [convolution(inputs, times * width, 3), nn.ReLU(inplace=True)]
            inputs = times * width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, NUM_CLASSES))


class Shuffle(nn.Module):
    """Ma et al. 2018 (ShuffleNet V2): half of the channels pass, half are worked on, then they are mixed."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        taken = inputs if stride == 2 else half
        self.stride = stride
        self.work = nn.Sequential(
            convolution(taken, half, 1),
            nn.ReLU(inplace=True),
            convolution(half, half, 3, stride=stride, groups=half),
            convolution(half, half, 1),
            nn.ReLU(inplace=True),
        )
        self.passing = (
            nn.Sequential(
                convolution(inputs, inputs, 3, stride=2, groups=inputs),
                convolution(inputs, half, 1),
                nn.ReLU(inplace=True),
            )
            if stride == 2
            else nn.Identity()
        )

    def forward(self, images: Tensor) -> Tensor:
        left, right = (images, images) if self.stride == 2 else images.chunk(2, dim=1)
        both = torch.stack([self.passing(left), self.work(right)], dim=2)
        return both.flatten(1, 2)  # channel by channel from the one and the other: that is the shuffle


def shufflenet(width: int) -> nn.Module:
    channels = width // 8 * 3  # 24 at width 64
    layers: list[nn.Module] = [convolution(3, channels, 3), nn.ReLU(inplace=True)]
    for outputs, num in ((116, 4), (232, 8), (464, 4)):
        for place in range(num):
            scaled = max(4, outputs * width // 64 // 4 * 4)
            layers.append(Shuffle(channels, scaled, 2 if place == 0 else 1))
            channels = scaled
    last = 16 * width
    head = [convolution(channels, last, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(last, NUM_CLASSES))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": lambda width: resnet((2, 2, 2, 2), width, bottleneck=False),
    "resnet50": lambda width: resnet((3, 4, 6, 3), width, bottleneck=True),
    "vgg16": vgg16,
    "shufflenet": shufflenet,
}
