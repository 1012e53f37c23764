"""ResNet-50 on random pictures, SGD with momentum: convolutions, and memory that comes and goes."""

import argparse
import json
import time

import torch
from torch import nn


def bottleneck(inside: int, width: int, stride: int) -> nn.Sequential:
    """Build the body of a bottleneck block: 1x1, 3x3 and 1x1 convolutions."""
    return nn.Sequential(
        nn.Conv2d(inside, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, 4 * width, 1, bias=False),
        nn.BatchNorm2d(4 * width),
    )


def basic(inside: int, width: int, stride: int) -> nn.Sequential:
    """Build the body of a basic block: two 3x3 convolutions."""
    return nn.Sequential(
        nn.Conv2d(inside, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
    )


KINDS = {18: (basic, 1, (2, 2, 2, 2)), 50: (bottleneck, 4, (3, 4, 6, 3))}
"""By depth: block body, channel expansion, and number of blocks in each stage."""


class Block(nn.Module):
    """Residual block: a convolutional body and a shortcut."""

    def __init__(self, body: nn.Module, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.BatchNorm2d(outside)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.relu(self.body(images) + self.shortcut(images))
        return out


def resnet(depth: int, classes: int = 1000) -> nn.Sequential:
    """Build ResNet (He et al., 2015), with the stride in the 3x3 convolution (v1.5)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    body, wider, blocks = KINDS[depth]
    inside = 64
    for width, count, first_stride in zip((64, 128, 256, 512), blocks, (1, 2, 2, 2), strict=True):
        for number in range(count):
            stride = first_stride if number == 0 else 1
            layers.append(Block(body(inside, width, stride), inside, wider * width, stride))
            inside = wider * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default: 10)")
    parser.add_argument("--batch", type=int, default=16, help="pictures in a step (default: 16)")
    parser.add_argument("--image", type=int, default=224, help="pixels of a side (default: 224)")
    parser.add_argument("--depth", type=int, default=50, choices=(18, 50), help="(default: 50)")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = resnet(options.depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    images = torch.randn(options.batch, 3, options.image, options.image)
    labels = torch.randint(1000, (options.batch,))

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_of(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)

    result = {
        "losses": losses[:20],
        "seconds_per_step": seconds[1:],
        "samples_per_step": options.batch,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
