"""ResNet-50 on random images, SGD with momentum: convolutions, large allocations in every step."""

import argparse
import json
import time

import torch
from torch import nn


def bottleneck_body(in_channels: int, width: int, stride: int) -> nn.Sequential:
    """Build the body of a bottleneck block: 1x1, 3x3 and 1x1 convolutions."""
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, 4 * width, 1, bias=False),
        nn.BatchNorm2d(4 * width),
    )


def basic_body(in_channels: int, width: int, stride: int) -> nn.Sequential:
    """Build the body of a basic block: two 3x3 convolutions."""
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
    )


ARCHITECTURES = {18: (basic_body, 1, (2, 2, 2, 2)), 50: (bottleneck_body, 4, (3, 4, 6, 3))}
"""By depth: block body, channel expansion, and number of blocks in each stage."""


class ResidualBlock(nn.Module):
    """Residual block: a convolutional body and a shortcut."""

    def __init__(self, body: nn.Module, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
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
    body, expansion, blocks_per_stage = ARCHITECTURES[depth]
    in_channels = 64
    for width, num_blocks, first_stride in zip(
        (64, 128, 256, 512), blocks_per_stage, (1, 2, 2, 2), strict=True
    ):
        for block in range(num_blocks):
            stride = first_stride if block == 0 else 1
            layers.append(
                ResidualBlock(
                    body(in_channels, width, stride), in_channels, expansion * width, stride
                )
            )
            in_channels = expansion * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, classes)]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default: 10)")
    parser.add_argument("--batch", type=int, default=16, help="batch size (default: 16)")
    parser.add_argument(
        "--image", type=int, default=224, help="image height and width in pixels (default: 224)"
    )
    parser.add_argument(
        "--depth", type=int, default=50, choices=(18, 50), help="layers (default: 50)"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    model = resnet(options.depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    images = torch.randn(options.batch, 3, options.image, options.image)
    labels = torch.randint(1000, (options.batch,))

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_fn(model(images), labels)
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
