"""MobileNet on random images, SGD with momentum: depthwise convolutions, bound by memory."""

import argparse
import json
import time

import torch
from torch import nn


def conv_block(
    in_channels: int, out_channels: int, kernel_size: int, stride: int, groups: int = 1
) -> nn.Sequential:
    """Build a convolution, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            groups=groups,
            bias=False,
        ),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def mobilenet(classes: int = 1000) -> nn.Sequential:
    """Build MobileNet (Howard et al., 2017)."""
    layers: list[nn.Module] = [conv_block(3, 32, 3, 2)]
    in_channels = 32
    for out_channels, stride in (
        *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
        *((512, 1),) * 5,
        *((1024, 2), (1024, 1)),
    ):
        layers.append(conv_block(in_channels, in_channels, 3, stride, groups=in_channels))
        layers.append(conv_block(in_channels, out_channels, 1, 1))
        in_channels = out_channels
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, classes)
    )


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8, help="timed steps (default: 8)")
    parser.add_argument("--batch", type=int, default=16, help="batch size (default: 16)")
    parser.add_argument(
        "--image", type=int, default=160, help="image height and width in pixels (default: 160)"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    model = mobilenet()
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
