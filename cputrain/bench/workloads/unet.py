"""A U-Net that marks random pictures, Adam: convolutions at full size, and much to remember."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional


def twice(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """U-Net with skip connections: a contracting path and an expanding path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(
            twice(inside, outside) for inside, outside in zip([3, *sizes], sizes, strict=False)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * size, size, 2, stride=2) for size in sizes[-2::-1]
        )
        self.joined = nn.ModuleList(twice(2 * size, size) for size in sizes[-2::-1])
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for place, layer in enumerate(self.down):
            x = layer(x if place == 0 else functional.max_pool2d(x, 2))
            seen.append(x)
        seen.pop()
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([seen.pop(), up(x)], dim=1))
        out: torch.Tensor = self.out(x)
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="timed steps (default: 6)")
    parser.add_argument("--batch", type=int, default=4, help="pictures in a step (default: 4)")
    parser.add_argument("--image", type=int, default=128, help="pixels of a side (default: 128)")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = UNet(width=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss()
    images = torch.randn(options.batch, 3, options.image, options.image)
    marks = torch.randint(2, (options.batch, 1, options.image, options.image)).float()

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_of(model(images), marks)
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
