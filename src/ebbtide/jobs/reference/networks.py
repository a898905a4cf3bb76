"""AlexNet and ResNet for small images.

ResNet's depth counts convolutions and the last layer: 20 has three blocks of two convolutions in each of three
groups, 29 three bottlenecks of three (He et al., 2016, for CIFAR-10). Version 1 normalises after each convolution,
version 2 before it ("pre-activation"). Networks are narrower than those for CIFAR-10's 32 x 32 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_DEPTHS = {20: False, 29: True}


class Dropout(nn.Module):
    """Dropout with a random generator of its own, so that its state can be saved.

    Args:
        rate: Share of inputs set to zero.
        generator: Generator to draw from; its state is saved in checkpoints.
    """

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        self.rate = rate
        self.generator = generator

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return inputs
        kept = torch.rand(inputs.shape, generator=self.generator) >= self.rate
        return inputs * kept / (1.0 - self.rate)


def alexnet(channels: int, classes: int, generator: torch.Generator, width: int = 16) -> nn.Module:
    """Krizhevsky's five convolutions and three dense layers, scaled to small images."""

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]

    return nn.Sequential(
        *convolution(channels, width),
        nn.MaxPool2d(2),
        *convolution(width, 3 * width),
        nn.MaxPool2d(2),
        *convolution(3 * width, 6 * width),
        *convolution(6 * width, 4 * width),
        *convolution(4 * width, 4 * width),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        Dropout(0.5, generator),
        nn.Linear(16 * width, 8 * width),
        nn.ReLU(),
        Dropout(0.5, generator),
        nn.Linear(8 * width, 8 * width),
        nn.ReLU(),
        nn.Linear(8 * width, classes),
    )


class _Block(nn.Module):
    """A residual block.

    Args:
        shapes: Channels in and out, kernel and stride of each convolution.
        before: Whether to normalise and activate before each convolution (version 2) or after.
    """

    def __init__(self, shapes: Sequence[tuple[int, int, int, int]], *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
            for inputs, outputs, kernel, stride in shapes
        )
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(inputs if before else outputs) for inputs, outputs, _, _ in shapes
        )
        stride = max(stride for *_, stride in shapes)
        first, last = shapes[0][0], shapes[-1][1]
        same = stride == 1 and first == last
        self.shortcut = nn.Identity() if same else nn.Conv2d(first, last, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        values = inputs
        if self.before:
            for norm, convolution in zip(self.norms, self.convolutions, strict=True):
                values = convolution(torch.relu(norm(values)))
            return torch.add(values, self.shortcut(inputs))
        for place, (norm, convolution) in enumerate(zip(self.norms, self.convolutions, strict=True)):
            values = norm(convolution(values))
            if place < len(self.norms) - 1:
                values = torch.relu(values)
        return torch.relu(values + self.shortcut(inputs))


def resnet(version: int, depth: int, channels: int, classes: int, width: int = 8) -> nn.Module:
    """A residual network.

    Args:
        version: Version of ResNet, 1 or 2.
        depth: Number of layers, 20 or 29.
        channels: Number of channels of the images.
        classes: Number of classes to predict.
        width: Number of channels of the first convolution.
    """
    before, bottleneck = version == 2, _DEPTHS[depth]
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
    if not before:
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for group in range(3):
        outputs = width * 2**group * (2 if bottleneck else 1)
        for place in range(3):
            stride = 2 if group and not place else 1
            if bottleneck:
                inner = outputs // 4
                shapes = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
            else:
                shapes = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
            layers.append(_Block(shapes, before=before))
            inputs = outputs
    if before:
        layers += [nn.BatchNorm2d(inputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
